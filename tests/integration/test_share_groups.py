"""Share groups: kill -9, Kafka's kafka-share-groups, and Kafka's decoders of both internal topics."""

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.groups import GroupDescription, Groups
from kbroker.client.share_offsets import ShareOffset, alter_share_offsets, share_offsets
from kbroker.common.topic_names import TopicPartition
from kbroker.log.tools.coordinator_records import RecordDecoder
from kbroker.log.tools.dump import dump_file
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, fill_partitions
from tests.support.kafka.tools import TOOLS, Tools, run_tool
from tests.support.kill import create_topic

SHARE_GROUPS = TOOLS + "consumer.group.ShareGroupCommand"
SETTINGS = {"group__share__assignment__interval__ms": "0", "offsets__topic__num__partitions": "2"}


class Member:
    """Member of group g that subscribes to topic t."""

    def __init__(self, bootstrap: str) -> None:
        self.member_id = str(uuid.uuid4())
        self.client = Client(bootstrap)
        self.epoch = 0
        self.partitions: list[int] = []

    def beat(self) -> int:
        """Send a heartbeat; return its error code."""
        body = {"GroupId": "g", "MemberId": self.member_id, "MemberEpoch": self.epoch, "RackId": None}
        names = ["t"] if self.epoch == 0 else None
        response = self.client.call("ShareGroupHeartbeat", 1, {**body, "SubscribedTopicNames": names})
        if response["ErrorCode"] == 0:
            self.epoch = response["MemberEpoch"]
            if response["Assignment"] is not None:
                rows = response["Assignment"]["TopicPartitions"]
                self.partitions = sorted(index for row in rows for index in row["Partitions"])
        return int(response["ErrorCode"])

    def has_partitions(self) -> bool:
        assert self.beat() == 0
        return bool(self.partitions)

    def leave(self) -> None:
        self.epoch = -1
        assert self.beat() == 0
        self.client.close()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    found = start_broker(**SETTINGS)
    create_topic(found.bootstrap, "t", 3)
    return found


def described(bootstrap: str) -> tuple[GroupDescription, dict[TopicPartition, ShareOffset]]:
    with Cluster(bootstrap) as cluster:
        groups = Groups(cluster)
        return groups.describe("g"), share_offsets(groups, "g")


@pytest.mark.timeout(180)
def test_kill_9(broker: BrokerProcess) -> None:
    """After kill -9, members, epochs, assignments and start offsets are as before, and members continue."""
    with Cluster(broker.bootstrap) as cluster:
        alter_share_offsets(Groups(cluster), "g", {("t", 0): 0, ("t", 1): 7})
    for _ in range(3):
        members = [Member(broker.bootstrap) for _ in range(4)]
        for member in members:
            wait_for("partitions", member.has_partitions, 30)
        for member in members:
            assert member.beat() == 0
        before = described(broker.bootstrap)
        assert {tp: one.offset for tp, one in before[1].items()} == {("t", 0): 0, ("t", 1): 7, ("t", 2): None}
        assert {tp for one in before[0].members for tp in one.assignment} == {("t", 0), ("t", 1), ("t", 2)}
        broker.kill()
        broker.start()
        assert described(broker.bootstrap) == before
        for member in members:
            member.client.close()
            member.client = Client(broker.bootstrap)
            assert member.beat() == 0
            member.leave()
    found, offsets = described(broker.bootstrap)
    assert (found.state, found.members, offsets) == ("Empty", (), before[1])


@pytest.mark.timeout(180)
def test_kafkas_own_tool(broker: BrokerProcess) -> None:
    """kafka-share-groups resets, lists and describes offsets, and deletes offsets and the group."""
    tools = Tools(broker.bootstrap)
    fill_partitions(broker.bootstrap, "t", 9, partitions=3)
    tools(SHARE_GROUPS, "--group", "g", "--topic", "t", "--reset-offsets", "--to-earliest", "--execute")
    assert re.search(r"^g\s+Empty", tools(SHARE_GROUPS, "--list", "--state"), re.MULTILINE)
    rows = re.findall(r"^g\s+t\s+(\d)\s+(\d+)\s+(\d+)", offsets_of(tools), re.MULTILINE)
    assert sorted(rows) == [("0", "0", "3"), ("1", "0", "3"), ("2", "0", "3")]
    member = Member(broker.bootstrap)
    wait_for("partitions", member.has_partitions, 30)
    shown = tools(SHARE_GROUPS, "--group", "g", "--describe", "--members")
    assert member.member_id in shown
    assert "t:0,1,2" in shown
    refused = tools(SHARE_GROUPS, "--group", "g", "--delete", status=None)
    assert "Share group 'g' is not EMPTY." in refused
    member.leave()
    assert "Successful" in tools(SHARE_GROUPS, "--group", "g", "--delete-offsets", "--topic", "t")
    tools(SHARE_GROUPS, "--group", "g", "--delete")
    assert tools(SHARE_GROUPS, "--list").strip() == ""


def offsets_of(tools: Tools) -> str:
    return tools(SHARE_GROUPS, "--group", "g", "--describe", "--offsets")


@pytest.mark.timeout(180)
def test_kafka_reads_the_records_of_both_topics(broker: BrokerProcess) -> None:
    """Kafka's decoder reads the same key and value of each record as kbroker's."""
    with Cluster(broker.bootstrap) as cluster:
        alter_share_offsets(Groups(cluster), "g", {("t", 0): 0})
    member = Member(broker.bootstrap)
    wait_for("partitions", member.has_partitions, 30)
    body: dict[str, Any] = {"GroupId": "g"}
    client = member.client
    topic_id = client.call("Metadata", 12, {"Topics": [{"Name": "t"}]})["Topics"][0]["TopicId"]
    batch = {"FirstOffset": 0, "LastOffset": 4, "DeliveryState": 2, "DeliveryCount": 1}
    fields = {"StateEpoch": 1, "LeaderEpoch": 0, "StartOffset": 5, "DeliveryCompleteCount": 0, "StateBatches": [batch]}
    rows = [{"TopicId": topic_id, "Partitions": [{"Partition": 0, **fields}]}]
    (result,) = client.call("WriteShareGroupState", 1, {**body, "Topics": rows})["Results"]
    assert result["Partitions"][0]["ErrorCode"] == 0
    member.leave()
    with Cluster(broker.bootstrap) as cluster:
        Groups(cluster).delete("g")
    assert broker.stop() == 0
    for topic, option, kinds in (
        ("__consumer_offsets", "offsets", {"10", "11", "12", "13", "14", "15"}),
        ("__share_group_state", "share-group-state", {"0", "1"}),
    ):
        files = [one for one in sorted(broker.folder.glob(f"{topic}-*/*.log")) if one.stat().st_size]
        done = run_tool(TOOLS + "DumpLogSegments", f"--{option}-decoder", "--files", ",".join(map(str, files)))
        kafkas = re.findall(r"^\| offset: \d+ .* key: (\{.*\}) payload: (.*)$", done.stdout, re.MULTILINE)
        ours = [
            (row["key"], row["payload"])
            for file in files
            for row in dump_file(file, records=True, decode=RecordDecoder(option))
            if row["kind"] == "record"
        ]
        assert [(json.loads(key), _value(value)) for key, value in kafkas] == ours
        assert {key["type"] for key, _ in ours} == kinds


def _value(text: str) -> object:
    return text if text == "<DELETE>" else json.loads(text)
