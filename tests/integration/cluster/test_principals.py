"""Users, ACLs, tokens and quotas of the cluster, applied to the clients of kbroker."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.scram import SCRAM_SHA_256
from tests.integration.test_authorization import EVERYTHING
from tests.support.broker import wait_for
from tests.support.client import Body, Client, new_topics, scram_user, set_quotas
from tests.support.either_broker import SCRAM_MODULE
from tests.support.kafka import KafkaCluster
from tests.support.member_node import TOKEN, MemberNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ITERATIONS = 4096
CREATE_TOPICS, CREATE_ACLS, DESCRIBE_CONFIGS, DESCRIBE_ACLS = 19, 30, 32, 29
CREATE_TOKEN, DESCRIBE_TOKENS = 38, 41
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_USERS, ALTER_USERS = 48, 49, 50, 51
TOPIC, PREFIXED, CREATE, ALLOW = 2, 4, 5, 3
NAMES = ("__consumer_offsets", "bad/name", "unknown", "viewed")  # in the order that Kafka requires


def session(bootstrap: str, user: str, password: str, more: str = "") -> Cluster:
    """Return a cluster whose connections log in with SCRAM."""
    line = f'{SCRAM_MODULE} required username="{user}" password="{password}"{more};'
    values = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}
    security = ClientSecurity(values)
    return security.open_cluster(bootstrap)


@pytest.fixture
def user(member: MemberNode, request: pytest.FixtureRequest) -> str:
    """SCRAM user without rights, created through kbroker; the password is the name."""
    name: str = request.node.name.replace("test_", "user-")
    salt = b"salt of the user"
    body = scram_user(name, ITERATIONS, salt, SCRAM_SHA_256.salted_password(name, salt, ITERATIONS))
    with Client(member.bootstrap) as client:
        (result,) = client.call(ALTER_USERS, 0, body)["Results"]
    assert result["ErrorCode"] == 0
    return name


@pytest.fixture
def logged_in(member: MemberNode, user: str) -> Iterator[Connection]:
    """Connection of the user to kbroker, opened when its metadata has the user."""

    def can_log_in() -> bool:
        try:
            with session(member.secured, user, user) as found:
                found.connection_to(None)
        except KafkaError:
            return False
        return True

    wait_for("the user", can_log_in)
    with session(member.secured, user, user) as found:
        yield found.connection_to(None)


def create(connection: Connection | Client, *names: str) -> Body:
    call: Callable[..., Body] = connection.call if isinstance(connection, Client) else connection.request
    return call(CREATE_TOPICS, 7, new_topics(*names))


def allow(member: MemberNode, user: str, operation: int, prefix: str) -> None:
    row = {
        "ResourceType": TOPIC, "ResourceName": prefix, "ResourcePatternType": PREFIXED, "Principal": f"User:{user}",
        "Host": "127.0.0.1", "Operation": operation, "PermissionType": ALLOW,
    }  # fmt: skip
    with Client(member.bootstrap) as client:
        (result,) = client.call(CREATE_ACLS, 3, {"Creations": [row]})["Results"]
    assert result["ErrorCode"] == 0


def test_rights_are_those_of_the_client(
    kafka: KafkaCluster, member: MemberNode, user: str, logged_in: Connection
) -> None:
    """The controller and kbroker deny a request until an ACL allows the user's operation from the user's host."""
    (denied,) = create(logged_in, f"{user}-topic")["Topics"]
    assert denied["ErrorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    asked = {"Resources": [{"ResourceType": TOPIC, "ResourceName": f"{user}-topic", "ConfigurationKeys": []}]}
    (unseen,) = logged_in.request(DESCRIBE_CONFIGS, 4, asked)["Results"]
    assert unseen["ErrorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    allow(member, user, CREATE, user)
    wait_for("the right", lambda: create(logged_in, f"{user}-topic")["Topics"][0]["ErrorCode"] == 0)
    allow(member, user, 10, user)  # DescribeConfigs
    wait_for("the configs", lambda: logged_in.request(DESCRIBE_CONFIGS, 4, asked)["Results"][0]["ErrorCode"] == 0)


def test_tokens_of_the_cluster(kafka: KafkaCluster, member: MemberNode, user: str, logged_in: Connection) -> None:
    """A token that was created through kbroker logs in at kbroker and at Kafka, and cannot create another token."""
    token = logged_in.request(CREATE_TOKEN, 3, {"Renewers": [], "MaxLifetimeMs": -1})
    assert (token["ErrorCode"], token["PrincipalName"]) == (0, user)
    secret = base64.b64encode(token["Hmac"]).decode()

    def rows(bootstrap: str) -> list[Body]:
        with session(bootstrap, token["TokenId"], secret, ' tokenauth="true"') as owner:
            connection = owner.connection_to(None)
            refused = connection.request(CREATE_TOKEN, 3, {"Renewers": [], "MaxLifetimeMs": -1})
            assert refused["ErrorCode"] == Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            found: list[Body] = connection.request(DESCRIBE_TOKENS, 3, {"Owners": None})["Tokens"]
            return found

    def is_known(bootstrap: str) -> bool:
        try:
            return not rows(bootstrap)
        except KafkaError:
            return False

    with session(member.secured, user, user) as owner:
        wait_for("the token", lambda: owner.connection_to(None).request(DESCRIBE_TOKENS, 3, {"Owners": None})["Tokens"])
        (mine,) = owner.connection_to(None).request(DESCRIBE_TOKENS, 3, {"Owners": None})["Tokens"]
    (port,) = [one.rpartition(":")[2] for one in kafka.secured.split(",")[:1]]
    with session(f"127.0.0.1:{port}", user, user) as owner:
        wait_for("the token", lambda: owner.connection_to(None).request(DESCRIBE_TOKENS, 3, {"Owners": None})["Tokens"])
        (theirs,) = owner.connection_to(None).request(DESCRIBE_TOKENS, 3, {"Owners": None})["Tokens"]
    assert mine == theirs
    for bootstrap in (member.secured, f"127.0.0.1:{port}"):
        rows(bootstrap)


def test_quotas_of_the_controller_throttle_the_client(member: MemberNode, user: str, logged_in: Connection) -> None:
    """kbroker passes on the controller's throttle time and does not read the connection meanwhile (KIP-599)."""
    quota = set_quotas("user", user, {"controller_mutation_rate": 1.0})
    allow(member, user, CREATE, user)
    with Client(member.bootstrap) as client:
        assert client.call(ALTER_QUOTAS, 1, quota)["Entries"][0]["ErrorCode"] == 0
        wait_for("the quota", lambda: client.call(DESCRIBE_QUOTAS, 1, {"Components": [], "Strict": False})["Entries"])
    wait_for("the right", lambda: create(logged_in, f"{user}-0")["Topics"][0]["ErrorCode"] in (0, 36))
    delay_ms = 0
    for number in range(1, 40):
        response = create(logged_in, *(f"{user}-{number}-{part}" for part in range(4)))
        delay_ms = response["ThrottleTimeMs"]
        if delay_ms:
            break
    assert delay_ms > 0
    begun = time.monotonic()
    logged_in.request(DESCRIBE_USERS, 0, {"Users": []})
    assert time.monotonic() - begun >= min(delay_ms / 1000, 1) * 0.8


def test_views_are_those_of_kafka(kafka: KafkaCluster, member: MemberNode, user: str) -> None:
    """Users, ACLs, quotas, configs and nodes that kbroker describes are equal to those of a broker of Kafka."""
    allow(member, user, CREATE, user)
    views: tuple[tuple[str, int, Body], ...] = (
        ("DescribeUserScramCredentials", 0, {"Users": None}),
        ("DescribeAcls", 3, EVERYTHING),
        ("DescribeClientQuotas", 1, {"Components": [], "Strict": False}),
        ("DescribeConfigs", 4, {"Resources": [{"ResourceType": 4, "ResourceName": "", "ConfigurationKeys": None}]}),
        ("DescribeCluster", 2, {"EndpointType": 1, "IncludeFencedBrokers": True}),
        ("Metadata", 13, {"Topics": None}),
        ("DescribeTopicPartitions", 0, {"Topics": [{"Name": name} for name in NAMES], "Cursor": None}),
        ("ListConfigResources", 1, {"ResourceTypes": []}),
    )
    with Client(member.bootstrap) as mine, Client(kafka.brokers[0].bootstrap) as theirs:
        assert create(mine, "viewed")["Topics"][0]["ErrorCode"] == 0
        for view in views:
            assert_settles(lambda view=view: [normal(one.call(*view)) for one in (mine, theirs)])  # type: ignore[misc]


def assert_settles(pair: Callable[[], list[object]]) -> None:
    """Compare two responses until they are equal, as the metadata of either broker may lag."""
    deadline = time.monotonic() + 10
    found, expected = pair()
    while found != expected and time.monotonic() < deadline:
        time.sleep(0.05)
        found, expected = pair()
    assert found == expected


def test_leaders_without_the_listener_of_the_client(member: MemberNode) -> None:
    """A client whose listener the leaders lack receives no leader, and an error with the reason."""
    with Client(member.bootstrap) as client:
        assert create(client, "of-another-listener")["Topics"][0]["ErrorCode"] == 0

    def error(version: int) -> int:
        with Client(member.front) as front:
            (topic,) = front.call("Metadata", version, {"Topics": [{"Name": "of-another-listener"}]})["Topics"]
        (row,) = topic["Partitions"] or [{"LeaderId": 0, "ErrorCode": 0}]
        assert row["LeaderId"] in (-1, 0)
        found: int = row["ErrorCode"]
        return found

    wait_for("the topic", lambda: error(13) == Errors.LISTENER_NOT_FOUND)
    assert error(5) == Errors.LEADER_NOT_AVAILABLE


def test_partitions_of_other_brokers_are_not_counted_here(member: MemberNode) -> None:
    """Metrics about replicas count only this node's replicas, of which there are none."""
    with urlopen(f"{member.http}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    for name in ("partition_count", "offline_replica_count"):
        assert f"kafka_server_replica_manager_{name} 0.0" in lines


def test_quotas_of_the_cluster_throttle_requests_to_kbroker(member: MemberNode) -> None:
    """kbroker enforces and explains a quota that was set through Kafka's controller."""
    quota = set_quotas("client-id", "greedy", {"request_percentage": 0.01})
    with Client(member.bootstrap) as client:
        assert client.call(ALTER_QUOTAS, 1, quota)["Entries"][0]["ErrorCode"] == 0

    def explained() -> dict[str, Any]:
        query = "user=ANONYMOUS&client-id=greedy"
        request = Request(f"{member.http}/quotas/explain?{query}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=10) as response:
            found: dict[str, Any] = json.load(response)
        return found

    wait_for("the quota", lambda: "0.01" in json.dumps(explained()))
    with Client(member.bootstrap, client_id="greedy") as greedy:
        wait_for("a delay", lambda: greedy.call("Metadata", 13, {"Topics": None})["ThrottleTimeMs"] > 0)


def normal(value: object) -> object:
    """Return a response with its rows sorted, and without the controller id."""
    if isinstance(value, dict):
        return {name: normal(one) for name, one in value.items() if name != "ControllerId"}
    if isinstance(value, list):
        return sorted(map(normal, value), key=repr)
    return value
