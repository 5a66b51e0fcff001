"""Kafka's kafka-streams-groups, and its decoder of __consumer_offsets, with a streams group of kbroker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_java_tools import rows
from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client
from tests.support.kafka.tools import TOOLS, Tools, run_tool
from tests.support.kill import create_topic

TOOL = TOOLS + "streams.StreamsGroupCommand"
CHANGELOG = "app-store-changelog"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    need.kafka_tools()
    settings = {
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
    with BrokerProcess(tmp_path / "data", settings) as broker:
        create_topic(broker.bootstrap, "lines", 2)
        yield broker


def beat(client: Client, epoch: int, **fields: Any) -> dict[str, Any]:
    """Send a heartbeat of the only member of the group."""
    body: dict[str, Any] = {"GroupId": "app", "MemberId": "m", "MemberEpoch": epoch, **fields}
    found = client.call("StreamsGroupHeartbeat", 0, body)
    assert found["ErrorCode"] == 0, found
    return found


def join(client: Client) -> int:
    """Join with a topology that has a store, whose changelog is created; return the member epoch."""
    store = {"Name": CHANGELOG, "Partitions": 0, "ReplicationFactor": 0, "TopicConfigs": []}
    part = {"SubtopologyId": "0", "SourceTopics": ["lines"], "SourceTopicRegex": [], "StateChangelogTopics": [store]}
    part |= {"RepartitionSinkTopics": [], "RepartitionSourceTopics": [], "CopartitionGroups": []}
    nothing: dict[str, list[object]] = {"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": []}
    topology = {"Epoch": 0, "Subtopologies": [part]}
    first = {"Topology": topology, "RebalanceTimeoutMs": 60_000, "ProcessId": "process", "ClientTags": [], **nothing}
    epoch: int = beat(client, 0, **first)["MemberEpoch"]
    found = beat(client, epoch)
    assert found["Status"] == []
    assert found["ActiveTasks"] == [{"SubtopologyId": "0", "Partitions": [0, 1]}]
    epoch = found["MemberEpoch"]
    return epoch


def test_life_of_a_group(broker: BrokerProcess, tmp_path: Path) -> None:
    """The group can be listed and described; when it is empty, its offsets can be reset and the group deleted."""
    tools = Tools(broker.bootstrap)
    with Client(broker.bootstrap) as client:
        epoch = join(client)
        places = [{"PartitionIndex": index, "CommittedOffset": 0, "CommittedMetadata": ""} for index in range(2)]
        topics = [{"Name": "lines", "Partitions": places}]
        who = {"GenerationIdOrMemberEpoch": epoch, "MemberId": "m"}
        committed = client.call("OffsetCommit", 9, {"GroupId": "app", **who, "Topics": topics})
        assert committed["Topics"][0]["Partitions"][0]["ErrorCode"] == 0
        assert rows(tools(TOOL, "--list", "--state")) == [["GROUP", "STATE"], ["app", "Stable"]]
        assert "app" in tools(TOOL, "--list")
        state = rows(tools(TOOL, "--describe", "--group", "app", "--state", "--verbose"))
        assert (state[1][0], "Stable" in state[1]) == ("app", True)
        members = tools(TOOL, "--describe", "--group", "app", "--members", "--verbose")
        assert re.search(r"^app\s+3\s+0\s+3?\s*m\s.*process", members, re.MULTILINE), members
        assert "0:[0,1]" in members, members
        offsets = rows(tools(TOOL, "--describe", "--group", "app", "--offsets"))
        assert ["app", "lines", "0", "0"] in [row[:3] + row[-1:] for row in offsets]
        beat(client, -1)
    wait_for("the end of the member", lambda: "Empty" in tools(TOOL, "--list", "--state"))
    reset = tools(TOOL, "--reset-offsets", "--group", "app", "--to-latest", "--input-topic", "lines", "--execute")
    assert "lines" in reset
    assert "lines" in tools(TOOL, "--delete-offsets", "--group", "app", "--input-topic", "lines")
    deleted = tools(TOOL, "--delete", "--group", "app", "--delete-all-internal-topics")
    assert "app" in deleted
    assert "app" not in tools(TOOL, "--list")
    assert CHANGELOG not in tools(TOOLS + "TopicCommand", "--list")


def test_records_are_read_by_kafka(broker: BrokerProcess, tmp_path: Path) -> None:
    """Kafka's decoder reads each record of the group in __consumer_offsets with the values of the protocol."""
    with Client(broker.bootstrap) as client:
        join(client)
        beat(client, -1)
    broker.stop()
    (log,) = (tmp_path / "data" / "__consumer_offsets-0").glob("*.log")
    done = run_tool(TOOLS + "DumpLogSegments", "--offsets-decoder", "--files", str(log))
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[int, list[Any]] = {}
    for key, value in re.findall(r"key: (\{.*?\}) payload: (\{.*\}|null|.*)$", done.stdout, re.MULTILINE):
        data = json.loads(value)["data"] if value.startswith("{") else None
        found.setdefault(int(json.loads(key)["type"]), []).append(data)
    assert sorted(kind for kind in found if kind >= 17) == [17, 19, 20, 21, 22, 23], done.stdout[-3000:]
    assert found[17][1]["epoch"] == 3
    assert found[17][1]["validatedTopologyEpoch"] == 0
    assert found[17][1]["lastAssignmentConfigs"] == [{"key": "num.standby.replicas", "value": "0"}]
    assert found[19][0]["processId"] == "process"
    assert found[21][1]["activeTasks"] == [{"subtopologyId": "0", "partitions": [0, 1]}]
    current = {"subtopologyId": "0", "partitions": [0, 1], "assignmentEpochs": [3, 3]}
    assert found[22][1]["activeTasks"] == [current]
    assert found[23][0]["subtopologies"][0]["stateChangelogTopics"][0]["name"] == CHANGELOG
    assert [found[kind][-1] for kind in (19, 21, 22)] == [None] * 3
