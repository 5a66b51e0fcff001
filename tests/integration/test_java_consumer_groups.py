"""Kafka's group tools and `kbroker groups` with a group of the consumer protocol (KIP-848)."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.test_java_tools import CONFIGS, GROUPS, rows
from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka.tools import TOOLS, Tools

confluent_kafka: Any = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GROUP, TOPIC = "workers", "work"
SETTINGS = {"num.partitions": "4", "group.consumer.assignment.interval.ms": "0"}


@pytest.fixture(scope="module")
def tools(broker: BrokerProcess) -> Tools:
    need.kafka_tools()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(8):
        producer.produce(TOPIC, b"x", partition=number % 4)
    assert producer.flush(30) == 0
    return Tools(broker.bootstrap)


def member(tools: Tools) -> Any:
    known = {"bootstrap.servers": tools.bootstrap, "group.id": GROUP, "group.protocol": "consumer"}
    consumer = confluent_kafka.Consumer({**known, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    return consumer


def described(tools: Tools) -> dict[str, Any]:
    command = [sys.executable, "-m", "kbroker", "groups", "describe", GROUP, "--json", "-b", tools.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (group,) = json.loads(done.stdout)
    return dict(group)


def test_a_group_of_the_consumer_protocol(tools: Tools) -> None:
    """The group can be listed, described and configured; its offsets can be reset, and it can be deleted, when it is
    empty.
    """
    consumer = member(tools)

    def has_read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
        return {one.offset for one in consumer.committed(consumer.assignment(), 10)} == {2}

    wait_for("all records are read and committed", has_read, 60)
    listed = rows(tools(GROUPS, "--list", "--type", "consumer", "--state"))
    assert [GROUP, "Consumer", "Stable"] in listed or [GROUP, "Stable"] in [row[:1] + row[-1:] for row in listed], (
        listed
    )
    assert [GROUP, "Consumer", "consumer"] in rows(tools(TOOLS + "GroupsCommand", "--list"))
    state = rows(tools(GROUPS, "--describe", "--group", GROUP, "--state", "--verbose"))
    assert (state[1][0], state[1][-1]) == (GROUP, "1"), state
    assert {"GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"} <= set(state[0]), state
    assert "Stable" in state[1], state
    assert "uniform" in state[1], state
    members = rows(tools(GROUPS, "--describe", "--group", GROUP, "--members", "--verbose"))
    assert {"CURRENT-EPOCH", "TARGET-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-ASSIGNMENT"} <= set(members[0]), members
    assert members[1].count(f"{TOPIC}:0,1,2,3") == 2, members
    offsets = rows(tools(GROUPS, "--describe", "--group", GROUP, "--offsets"))
    assert sorted((int(row[2]), row[3:6]) for row in offsets[1:]) == [(n, ["2", "2", "0"]) for n in range(4)], offsets

    mine = described(tools)
    assert (mine["type"], mine["state"], mine["assignor"], mine["epoch"]) == ("consumer", "Stable", "uniform", 2)
    (only,) = mine["members"]
    assert (only["epoch"], only["protocol"]) == (2, "consumer")
    assert only["target"] == only["assignment"]

    name = ("--entity-type", "groups", "--entity-name", GROUP)
    tools(CONFIGS, "--alter", *name, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in tools(CONFIGS, "--describe", *name)

    where = ("--group", GROUP, "--topic", TOPIC)
    refused = tools(GROUPS, "--reset-offsets", *where, "--to-earliest", "--execute", status=None)
    assert "Stable" in refused, refused
    refused = tools(GROUPS, "--delete", "--group", GROUP, status=None)
    assert "not empty" in refused.lower() or "non_empty" in refused.lower(), refused

    consumer.close()
    wait_for("the group is empty", lambda: described(tools)["state"] == "Empty", 60)
    moved = rows(tools(GROUPS, "--reset-offsets", *where, "--to-earliest", "--execute"))
    assert sorted((row[1], row[3]) for row in moved if row[0] == GROUP) == [(TOPIC, "0")] * 4, moved
    assert "successful" in tools(GROUPS, "--delete", "--group", GROUP).lower()
    assert GROUP not in tools(GROUPS, "--list")
