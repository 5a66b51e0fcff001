"""Kafka's kafka-acls with kbroker."""

import re
from collections.abc import Iterator

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.kafka.tools import Tools

ACLS = "org.apache.kafka.tools.AclCommand"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    need.kafka_tools()
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with BrokerProcess(tmp_path_factory.mktemp("java-acls") / "data", settings) as broker:
        yield Tools(broker.bootstrap)


def listed(text: str) -> list[tuple[str, str, str, str]]:
    """Return the resource, principal, operation and permission of each printed ACL."""
    found, resource = [], ""
    for line in text.splitlines():
        if match := re.search(r"ResourcePattern\(resourceType=(\w+), name=(.*), patternType=(\w+)\)", line):
            resource = " ".join(match.groups())
        elif match := re.search(r"\(principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)", line):
            found.append((resource, f"{match[1]} {match[2]}", match[3], match[4]))
    return sorted(found)


def test_kafka_acls(tools: Tools) -> None:
    """kafka-acls adds ACLs for a consumer and for a prefix, lists those that match a name, and removes ACLs."""
    tools(ACLS, "--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "readers")
    tools(ACLS, "--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "Write", "--topic",
          "or", "--resource-pattern-type", "prefixed")  # fmt: skip
    assert listed(tools(ACLS, "--list", "--topic", "orders", "--resource-pattern-type", "match")) == [
        ("TOPIC or PREFIXED", "User:* 10.0.0.1", "WRITE", "DENY"),
        ("TOPIC orders LITERAL", "User:alice *", "DESCRIBE", "ALLOW"),
        ("TOPIC orders LITERAL", "User:alice *", "READ", "ALLOW"),
    ]
    assert listed(tools(ACLS, "--list", "--group", "readers")) == [
        ("GROUP readers LITERAL", "User:alice *", "READ", "ALLOW")
    ]
    tools(ACLS, "--remove", "--force", "--topic", "orders", "--resource-pattern-type", "any")
    assert [row[0] for row in listed(tools(ACLS, "--list"))] == ["GROUP readers LITERAL", "TOPIC or PREFIXED"]
