"""The group APIs through the codec: codes per item, version gates, filters, ids; quirks 1, 8, 10, 11 and 21."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import TransactionalProducer
from kbroker.coordinator.runtime import PartitionState, _Partition
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from tests.support.consumer_groups import AT_ONCE, ConsumerGroupBench
from tests.support.groups import RANGE, Groups
from tests.support.server import make_bench

UNKNOWN_ID = uuid.UUID(int=0x1234)


@dataclass
class Kept:
    bodies: list[Body] = field(default_factory=list)

    def complete(self, body: Body) -> None:
        self.bodies.append(body)


class Bench:
    """Handlers over a coordinator on a virtual clock, and one topic with two partitions."""

    def __init__(self) -> None:
        self.bench = make_bench(offset_metadata_max_bytes=10)
        self.groups = Groups(clock=VirtualClock())
        self.bench.ctx.clock = self.groups.clock
        self.bench.ctx.group_coordinator = self.groups.coordinator
        self.bench.ctx.coordinators.add(0)
        self.topic = self.bench.create("t", 2)

    def ask(self, name: str, version: int, body: Body) -> Body:
        key = codec.api_by_name(name).key
        entry = KafkaApis().find(key, version)
        assert entry is not None
        decoded = codec.decode_request(key, version, codec.encode_request(key, version, body))
        kept = Kept()
        facts = RequestContext(key, version, client_id="me", client_host="10.0.0.1", completion=kept)
        try:
            response = entry.handle(self.bench.ctx, decoded, facts)  # type: ignore[misc]
        except KafkaError as error:
            response = entry.failure(decoded, error.error, facts)  # type: ignore[misc]
        self.groups.coordinator.advance()
        if response is None:
            (response,) = kept.bodies
        return codec.decode_response(key, version, codec.encode_response(key, version, response))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def join(version: int, member: str = "", instance: str | None = None, group: str = "g") -> Body:
    body = {
        "GroupId": group,
        "SessionTimeoutMs": 10_000,
        "MemberId": member,
        "ProtocolType": "consumer",
        "Protocols": [{"Name": name, "Metadata": data} for name, data in RANGE],
    }
    if version >= 1:
        body["RebalanceTimeoutMs"] = 20_000
    if version >= 5:
        body["GroupInstanceId"] = instance
    return body


def commit(
    version: int, topic_id: uuid.UUID, *rows: tuple[int, int, str | None], name: str = "t", **how: object
) -> Body:
    partitions = [{"PartitionIndex": i, "CommittedOffset": o, "CommittedMetadata": m} for i, o, m in rows]
    topic = {"TopicId": topic_id} if version >= 10 else {"Name": name}
    return {"GroupId": "g", "MemberId": "", "Topics": [{**topic, "Partitions": partitions}], **how}


def test_coordinators_are_found_as_far_as_there_are_any(bench: Bench) -> None:
    """Groups: this broker, for each key; transactions while they are not coordinated; other kinds: INVALID_REQUEST."""
    found = bench.ask("FindCoordinator", 0, {"Key": "g"})
    assert (found["ErrorCode"], found["NodeId"], found["Host"], found["Port"]) == (0, 1, "here", 9092)
    rows = bench.ask("FindCoordinator", 6, {"KeyType": 0, "CoordinatorKeys": ["a", ""]})["Coordinators"]
    assert [(row["Key"], row["ErrorCode"], row["NodeId"]) for row in rows] == [("a", 0, 1), ("", 0, 1)]
    assert bench.ask("FindCoordinator", 1, {"Key": "x", "KeyType": 1})["ErrorCode"] == 15
    for kind in (2, 3, -1):
        (row,) = bench.ask("FindCoordinator", 4, {"KeyType": kind, "CoordinatorKeys": ["x"]})["Coordinators"]
        assert (row["ErrorCode"], row["NodeId"], row["Port"]) == (42, -1, -1)


@pytest.mark.parametrize("version", range(10))
def test_joining_in_every_version(bench: Bench, version: int) -> None:
    """From v4 with the handed-out id; the protocol is never null below v7, and null in errors from it (quirk 10)."""
    response = bench.ask("JoinGroup", version, join(version))
    if version >= 4:
        assert (response["ErrorCode"], response["ProtocolName"]) == (79, None if version >= 7 else "")
        response = bench.ask("JoinGroup", version, join(version, response["MemberId"]))
    assert (response["ErrorCode"], response["GenerationId"], response["ProtocolName"]) == (0, 1, "range")
    assert [row["MemberId"] for row in response["Members"]] == [response["Leader"]] == [response["MemberId"]]
    (member,) = bench.groups.coordinator.describe("g").members
    assert (member.client_id, member.client_host) == ("me", "/10.0.0.1")


def test_a_returning_static_leader(bench: Bench) -> None:
    """v9 has to skip the assignment and sees the members; v8 hears of the old leader id (quirk 10)."""
    first = bench.ask("JoinGroup", 9, join(9, instance="i"))
    sync = {"GroupId": "g", "GenerationId": 1, "MemberId": first["MemberId"], "GroupInstanceId": "i"}
    rows = [{"MemberId": first["MemberId"], "Assignment": b"x"}]
    assert bench.ask("SyncGroup", 4, {**sync, "Assignments": rows})["Assignment"] == b"x"
    old = bench.ask("JoinGroup", 8, join(8, instance="i"))
    assert (old["Leader"], old["Members"]) == (first["MemberId"], [])
    new = bench.ask("JoinGroup", 9, join(9, instance="i"))
    assert (new["SkipAssignment"], new["Leader"], len(new["Members"])) == (True, new["MemberId"], 1)


def test_sync_v5_must_name_the_protocol(bench: Bench) -> None:
    """Null type or name is INCONSISTENT_GROUP_PROTOCOL."""
    member = bench.groups.lone()
    body = {"GroupId": "g", "GenerationId": 1, "MemberId": member.member_id, "Assignments": []}
    assert bench.ask("SyncGroup", 5, body)["ErrorCode"] == 23
    named = {**body, "ProtocolType": "consumer", "ProtocolName": "range"}
    assert bench.ask("SyncGroup", 5, named)["Assignment"] == b"all"


def test_leaving_alone_and_together(bench: Bench) -> None:
    """Before v3 the code is on top; from v3 each member has its own."""
    member = bench.groups.lone()
    assert bench.ask("LeaveGroup", 2, {"GroupId": "g", "MemberId": "stranger"})["ErrorCode"] == 25
    rows = [{"MemberId": "stranger"}, {"MemberId": member.member_id}]
    response = bench.ask("LeaveGroup", 5, {"GroupId": "g", "Members": rows})
    assert (response["ErrorCode"], [row["ErrorCode"] for row in response["Members"]]) == (0, [25, 0])


def test_describing_and_listing(bench: Bench) -> None:
    """69 from v6 only (quirk 21); operations only if asked for (quirk 9); filters in any case."""
    bench.groups.lone()
    stable, missing = bench.ask("DescribeGroups", 5, {"Groups": ["g", "h"]})["Groups"]
    assert (stable["GroupState"], stable["ProtocolData"], len(stable["Members"])) == ("Stable", "range", 1)
    assert (missing["ErrorCode"], missing["GroupState"], missing["AuthorizedOperations"]) == (0, "Dead", -(2**31))
    body = {"Groups": ["h"], "IncludeAuthorizedOperations": True}
    (missing,) = bench.ask("DescribeGroups", 6, body)["Groups"]
    assert (missing["ErrorCode"], missing["ErrorMessage"]) == (69, "Group h not found.")
    (stable,) = bench.ask("DescribeGroups", 6, {**body, "Groups": ["g"]})["Groups"]
    assert stable["AuthorizedOperations"] == 3400

    def listed(**filters: list[str]) -> list[str]:
        return [row["GroupId"] for row in bench.ask("ListGroups", 5, filters)["Groups"]]

    assert listed() == listed(StatesFilter=["sTABLE"]) == listed(TypesFilter=["Classic"]) == ["g"]
    assert listed(StatesFilter=["Empty"]) == listed(TypesFilter=["consumer"]) == []


@pytest.mark.parametrize("version", range(2, 11))
def test_committing_in_every_version(bench: Bench, version: int) -> None:
    """Each partition has its own code: too long a note, no such partition, no such topic or id."""
    topic_id = bench.topic.topic_id
    body = commit(version, topic_id, (0, 7, "note"), (1, 8, "n" * 11), (2, 9, ""), (-1, 9, ""))
    missing = {"TopicId": UNKNOWN_ID} if version >= 10 else {"Name": "missing"}
    body["Topics"].append({**missing, "Partitions": body["Topics"][0]["Partitions"][:1]})
    response = bench.ask("OffsetCommit", version, body)
    codes = [[row["ErrorCode"] for row in topic["Partitions"]] for topic in response["Topics"]]
    assert codes == [[0, 12, 3, 3], [100 if version >= 10 else 3]]
    assert [(place, one.offset) for place, one in bench.groups.coordinator.committed("g").items()] == [(("t", 0), 7)]


def test_committing_for_an_unknown_group(bench: Bench) -> None:
    """A generation without a group: 22, from v9 69."""
    for version, code in ((8, 22), (9, 69)):
        body = commit(version, bench.topic.topic_id, (0, 7, ""), GenerationIdOrMemberEpoch=3, MemberId="m")
        (topic,) = bench.ask("OffsetCommit", version, body)["Topics"]
        assert topic["Partitions"] == [{"PartitionIndex": 0, "ErrorCode": code}]


@pytest.mark.parametrize("version", range(1, 11))
def test_fetching_offsets_in_every_version(bench: Bench, version: int) -> None:
    """Offset -1 and no error where there is none; null is all; from v8 per group, from v10 by id (quirk 11)."""
    bench.ask("OffsetCommit", 8, commit(8, UNKNOWN_ID, (0, 7, None)))

    def fetch(topics: list[Body] | None) -> list[Body]:
        if version < 8:
            return list(bench.ask("OffsetFetch", version, {"GroupId": "g", "Topics": topics})["Topics"])
        rows = [{"GroupId": "g", "Topics": topics}]
        (group,) = bench.ask("OffsetFetch", version, {"Groups": rows})["Groups"]
        assert group["ErrorCode"] == 0
        return list(group["Topics"])

    name = {"TopicId": bench.topic.topic_id} if version >= 10 else {"Name": "t"}
    (topic,) = fetch([{**name, "PartitionIndexes": [0, 1]}])
    found = [(row["CommittedOffset"], row["Metadata"], row["ErrorCode"]) for row in topic["Partitions"]]
    assert found == [(7, "", 0), (-1, "", 0)]
    if version >= 10:
        assert topic["TopicId"] == bench.topic.topic_id
        (unknown,) = fetch([{"TopicId": UNKNOWN_ID, "PartitionIndexes": [0]}])
        assert unknown["Partitions"][0]["ErrorCode"] == 100
    if version >= 2:
        (topic,) = fetch(None)
        assert [row["PartitionIndex"] for row in topic["Partitions"]] == [0]


def test_deleting_groups_and_offsets(bench: Bench) -> None:
    """A group named twice is once in the response; offsets of unknown partitions are 3."""
    bench.ask("OffsetCommit", 8, commit(8, UNKNOWN_ID, (0, 7, None)))
    rows = [{"Name": "t", "Partitions": [{"PartitionIndex": 0}, {"PartitionIndex": 9}]}]
    (topic,) = bench.ask("OffsetDelete", 0, {"GroupId": "g", "Topics": rows})["Topics"]
    assert [row["ErrorCode"] for row in topic["Partitions"]] == [0, 3]
    assert bench.ask("OffsetDelete", 0, {"GroupId": "h", "Topics": rows})["ErrorCode"] == 69
    bench.ask("OffsetCommit", 8, commit(8, UNKNOWN_ID, (0, 7, None)))
    results = bench.ask("DeleteGroups", 2, {"GroupsNames": ["g", "g", "h"]})["Results"]
    assert [(row["GroupId"], row["ErrorCode"]) for row in results] == [("g", 0), ("h", 69)]


def test_describing_partitions_in_pages(bench: Bench) -> None:
    """Lists are empty, never null (quirk 8); a page ends with a cursor, and an impossible one is refused."""
    bench.bench.create("u", 3)
    body = {"Topics": [{"Name": "u"}, {"Name": "t"}], "ResponsePartitionLimit": 3}
    response = bench.ask("DescribeTopicPartitions", 0, body)
    assert [(row["Name"], len(row["Partitions"])) for row in response["Topics"]] == [("t", 2), ("u", 1)]
    assert response["NextCursor"] == {"TopicName": "u", "PartitionIndex": 1}
    first = response["Topics"][0]["Partitions"][0]
    assert (first["EligibleLeaderReplicas"], first["LastKnownElr"], first["OfflineReplicas"]) == ([], [], [])
    rest = bench.ask("DescribeTopicPartitions", 0, {**body, "Cursor": response["NextCursor"]})
    assert [[row["PartitionIndex"] for row in one["Partitions"]] for one in rest["Topics"]] == [[1, 2]]
    for cursor in ({"TopicName": "u", "PartitionIndex": -1}, {"TopicName": "v", "PartitionIndex": 0}):
        refused = bench.ask("DescribeTopicPartitions", 0, {**body, "Cursor": cursor})
        assert {row["ErrorCode"] for row in refused["Topics"]} == {42}
    (unknown,) = bench.ask("DescribeTopicPartitions", 0, {"Topics": [{"Name": "missing"}]})["Topics"]
    assert (unknown["ErrorCode"], unknown["TopicAuthorizedOperations"]) == (3, 3576)


def test_without_a_coordinator_every_group_api_says_so() -> None:
    """While the broker has none: COORDINATOR_NOT_AVAILABLE wherever a code can be."""
    ctx = make_bench().ctx
    for name, body in (
        ("Heartbeat", {"GroupId": "g", "GenerationId": 1, "MemberId": "m"}),
        ("ListGroups", {}),
        ("LeaveGroup", {"GroupId": "g", "Members": [{"MemberId": "m"}]}),
    ):
        key = codec.api_by_name(name).key
        entry = KafkaApis().find(key, 4)
        decoded = codec.decode_request(key, 4, codec.encode_request(key, 4, body))
        with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
            entry.handle(ctx, decoded, RequestContext(key, 4))  # type: ignore[misc]


def test_a_group_whose_partition_cannot_be_read() -> None:
    """As Apache Kafka 4.3.1 does for an offline partition of __consumer_offsets; groups of others are served."""
    bench = Bench()
    bench.groups.topic.ensure()
    bench.groups.topic.logs[0] = None
    bench.groups = bench.groups.restart()
    bench.bench.ctx.group_coordinator = bench.groups.coordinator
    lost, sound = "c", "d"  # partitions 0 and 1

    def committed(version: int) -> Body:
        return bench.ask("OffsetFetch", version, {"GroupId": lost, "Topics": [{"Name": "t", "PartitionIndexes": [0]}]})

    (row,) = committed(1)["Topics"][0]["Partitions"]
    assert (row["ErrorCode"], row["CommittedOffset"]) == (16, -1)
    assert (committed(5)["ErrorCode"], committed(5)["Topics"]) == (16, [])
    asked = [{"GroupId": name, "Topics": [{"Name": "t", "PartitionIndexes": [0]}]} for name in (lost, sound)]
    groups = bench.ask("OffsetFetch", 8, {"Groups": [*asked, {"GroupId": lost, "Topics": None}]})["Groups"]
    assert [(one["GroupId"], one["ErrorCode"], len(one["Topics"])) for one in groups] == [
        (lost, 16, 0),
        (sound, 0, 1),
        (lost, 16, 0),
    ]
    for version in (2, 9):
        body = commit(version, bench.topic.topic_id, (0, 5, "n"))
        response = bench.ask("OffsetCommit", version, {**body, "GroupId": lost})
        assert response["Topics"][0]["Partitions"][0]["ErrorCode"] == 16
    for version, error_message in ((5, None), (6, None)):
        first, second = bench.ask("DescribeGroups", version, {"Groups": [lost, sound]})["Groups"]
        assert (first["ErrorCode"], first["GroupState"], first.get("ErrorMessage")) == (16, "", error_message)
        assert (second["ErrorCode"], second["GroupState"]) == (0 if version < 6 else 69, "Dead")
    joined = bench.ask("JoinGroup", 5, join(5, group=lost))
    assert (joined["ErrorCode"], joined["MemberId"], joined["GenerationId"]) == (16, "", -1)
    member = {"GroupId": lost, "GenerationId": 1, "MemberId": "m"}
    assert bench.ask("SyncGroup", 3, {**member, "Assignments": []})["ErrorCode"] == 16
    assert bench.ask("Heartbeat", 3, member)["ErrorCode"] == 16
    assert bench.ask("LeaveGroup", 2, {"GroupId": lost, "MemberId": "m"})["ErrorCode"] == 16
    left = bench.ask("LeaveGroup", 4, {"GroupId": lost, "Members": [{"MemberId": "m"}]})
    assert (left["ErrorCode"], left["Members"]) == (16, [])
    body = {"GroupId": lost, "Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 0}]}]}
    deleted = bench.ask("OffsetDelete", 0, body)
    assert (deleted["ErrorCode"], deleted["Topics"]) == (16, [])
    rows = bench.ask("DeleteGroups", 2, {"GroupsNames": [lost, sound]})["Results"]
    assert [row["ErrorCode"] for row in rows] == [16, 69]
    found = bench.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [lost, sound]})["Coordinators"]
    assert [(one["Key"], one["ErrorCode"], one["ErrorMessage"], one["NodeId"]) for one in found] == [
        (lost, 15, "", -1),
        (sound, 0, "", 1),
    ]
    for version in (0, 3):
        old = bench.ask("FindCoordinator", version, {"Key": lost, **({"KeyType": 0} if version else {})})
        assert (old["ErrorCode"], old["NodeId"], old["Host"], old["Port"]) == (15, -1, "", -1)
    listed = bench.ask("ListGroups", 4, {})
    assert (listed["ErrorCode"], listed["Groups"]) == (0, [])


def test_a_group_that_is_loading_has_its_coordinator() -> None:
    """FindCoordinator names the broker. The group's requests get COORDINATOR_LOAD_IN_PROGRESS, not its heartbeats."""
    bench = Bench()
    bench.groups.topic.ensure()
    runtime = bench.groups.coordinator.runtime
    runtime.load_all()
    runtime._put(runtime.index_of("g"), _Partition(0, PartitionState.LOADING, reason="it is being loaded"))
    (found,) = bench.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["g"]})["Coordinators"]
    assert (found["ErrorCode"], found["NodeId"]) == (0, 1)
    assert bench.ask("FindCoordinator", 3, {"KeyType": 0, "Key": "g"})["ErrorCode"] == 0
    member = {"GroupId": "g", "GenerationId": 1, "MemberId": "m"}
    assert bench.ask("Heartbeat", 3, member)["ErrorCode"] == 0
    assert bench.ask("SyncGroup", 3, {**member, "Assignments": []})["ErrorCode"] == 14
    assert bench.ask("JoinGroup", 5, join(5, group="g"))["ErrorCode"] == 14


def test_how_long_a_note_may_be() -> None:
    """offset.metadata.max.bytes counts Java's characters, as Kafka does; a string holds 32,767 bytes at most."""
    bench = Bench()
    notes = ["n" * 10, "\u00e9" * 10, "\U0001f600" * 5, "n" * 11, "\U0001f600" * 6, "n" * 32_767]

    def code(note: str) -> int:
        (topic,) = bench.ask("OffsetCommit", 8, commit(8, UNKNOWN_ID, (0, 7, note)))["Topics"]
        return int(topic["Partitions"][0]["ErrorCode"])

    assert [code(note) for note in notes] == [0, 0, 0, 12, 12, 12]
    bench.bench = make_bench(offset_metadata_max_bytes=200_000)
    bench.bench.ctx.group_coordinator = bench.groups.coordinator
    bench.bench.create("t", 2)
    assert code(notes[-1]) == 0
    assert bench.groups.restart().coordinator.committed("g")["t", 0].metadata == "n" * 32_767


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9, 10])
def test_offsets_that_a_transaction_may_change(bench: Bench, version: int) -> None:
    """From v7 a client that requires stable offsets gets code 88 per partition, any other the old offset."""
    producer = TransactionalProducer(7, 0)
    groups = bench.groups.coordinator
    groups.commit("g", "", None, -1, {("t", 0): CommittedOffset(3, 2, "old", 5)})
    groups.commit_transactional("g", "", None, -1, producer, {("t", 0): CommittedOffset(9, 4, "new", 5)})
    groups.commit_transactional("g", "", None, -1, producer, {("t", 1): CommittedOffset(1, 4, "new", 5)})
    named = {"TopicId": bench.topic.topic_id} if version >= 10 else {"Name": "t"}

    def fetch(stable: bool, topics: object) -> dict[int, tuple[int, int, str]]:
        body: Body = {"GroupId": "g", "Topics": topics}
        if version >= 8:
            body = {"Groups": [body]}
        if version >= 7:
            body["RequireStable"] = stable
        response = bench.ask("OffsetFetch", version, body)
        (group,) = response["Groups"] if version >= 8 else (response,)
        assert group["ErrorCode"] == 0
        rows = [row for topic in group["Topics"] for row in topic["Partitions"]]
        return {row["PartitionIndex"]: (row["ErrorCode"], row["CommittedOffset"], row["Metadata"]) for row in rows}

    asked = [{**named, "PartitionIndexes": [0, 1]}]
    assert fetch(False, asked) == {0: (0, 3, "old"), 1: (0, -1, "")}
    assert fetch(False, None) == {0: (0, 3, "old")}
    if version >= 7:
        assert fetch(True, asked) == {0: (88, -1, ""), 1: (88, -1, "")}
        assert fetch(True, None) == {0: (88, -1, "")}
    groups.complete_transaction(groups.runtime.index_of("g"), 7, 0, 0, True, 0)
    assert fetch(True, asked) == {0: (0, 9, "new"), 1: (0, 1, "new")}


def test_a_topic_named_twice_in_a_heartbeat_counts_as_a_whole(bench: Bench) -> None:
    """The last row won: a partition of the first was given to another member while its owner still had it."""
    groups = ConsumerGroupBench()
    bench.bench.ctx.group_coordinator = groups.coordinator
    groups.join("a")
    groups.join("b")
    groups.beat("a", 2)
    topic_id = groups.image.id("t")
    rows = [{"TopicId": topic_id, "Partitions": partitions} for partitions in ([0, 1, 2], [0])]
    body = {"GroupId": "g", "MemberId": "a", "MemberEpoch": 2, "RebalanceTimeoutMs": -1, "TopicPartitions": rows}
    assert bench.ask("ConsumerGroupHeartbeat", 1, body)["MemberEpoch"] == 2
    assert groups.beat("b", 3).has is None
    body["TopicPartitions"] = rows[1:]
    assert bench.ask("ConsumerGroupHeartbeat", 1, body)["MemberEpoch"] == 3


def test_a_protocol_that_is_not_offered(bench: Bench) -> None:
    """group.coordinator.rebalance.protocols=classic: each of the two APIs responds with 35, as Kafka's do."""
    groups = ConsumerGroupBench(settings=AT_ONCE._replace(is_enabled=False))
    bench.bench.ctx.group_coordinator = groups.coordinator
    body: Body = {"GroupId": "g", "MemberId": "a", "MemberEpoch": 0, "RebalanceTimeoutMs": 5000, "TopicPartitions": []}
    body["SubscribedTopicNames"] = ["t"]
    assert bench.ask("ConsumerGroupHeartbeat", 1, body)["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("ConsumerGroupDescribe", 1, {"GroupIds": ["g"]})["Groups"]
    assert group["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    assert not groups.coordinator.list_groups()
