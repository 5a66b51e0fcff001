"""Group APIs through the codec, in cases without a recorded response of Kafka."""

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import EndMarker, TransactionalProducer
from kbroker.coordinator.runtime import PartitionState, _Partition
from kbroker.requests.context import Body
from tests.support.consumer_groups import AT_ONCE, ConsumerGroupBench
from tests.support.fixtures import fixture_of
from tests.support.groups import RANGE, Groups
from tests.support.server import make_bench
from tests.support.share_groups import TOPIC_ID, Share, ShareGroupBench

UNKNOWN_ID = uuid.UUID(int=0x1234)


class Bench:
    """Handlers over a coordinator on a virtual clock, with a topic of two partitions."""

    def __init__(self) -> None:
        self.bench = make_bench(offset_metadata_max_bytes=10)
        self.groups = Groups(clock=VirtualClock())
        self.bench.ctx.clock = self.groups.clock
        self.bench.serve_groups(self.groups.coordinator)
        self.topic = self.bench.create("t", 2)

    def ask(self, name: str, version: int, body: Body) -> Body:
        self.bench.settle = self.groups.coordinator.advance
        return self.bench.ask(name, version, body)


bench = fixture_of(Bench)


def join(group: str) -> Body:
    protocols = [{"Name": name, "Metadata": data} for name, data in RANGE]
    times = {"SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 20_000}
    return {"GroupId": group, "MemberId": "", "ProtocolType": "consumer", "Protocols": protocols, **times}


def commit(group: str, offset: int, note: str) -> Body:
    row = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": note}
    return {"GroupId": group, "MemberId": "", "Topics": [{"Name": "t", "Partitions": [row]}]}


def test_without_a_coordinator_every_group_api_says_so() -> None:
    """Without a coordinator of groups or of transactions the response is COORDINATOR_NOT_AVAILABLE."""
    bench = make_bench()
    for name, body in (
        ("Heartbeat", {"GroupId": "g", "GenerationId": 1, "MemberId": "m"}),
        ("ListGroups", {}),
        ("LeaveGroup", {"GroupId": "g", "Members": [{"MemberId": "m"}]}),
    ):
        assert bench.ask(name, 4, body)["ErrorCode"] == Errors.COORDINATOR_NOT_AVAILABLE
    found = bench.ask("FindCoordinator", 1, {"Key": "x", "KeyType": 1})
    assert found["ErrorCode"] == Errors.COORDINATOR_NOT_AVAILABLE


def test_a_group_whose_partition_cannot_be_read() -> None:
    """Responses equal those of Kafka 4.3.1 with an offline partition of __consumer_offsets, and other groups work."""
    bench = Bench()
    bench.groups.topic.ensure()
    bench.groups.topic.logs[0] = None
    bench.groups = bench.groups.restart()
    bench.bench.serve_groups(bench.groups.coordinator)
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
        response = bench.ask("OffsetCommit", version, commit(lost, 5, "n"))
        assert response["Topics"][0]["Partitions"][0]["ErrorCode"] == 16
    for version, error_message in ((5, None), (6, None)):
        first, second = bench.ask("DescribeGroups", version, {"Groups": [lost, sound]})["Groups"]
        assert (first["ErrorCode"], first["GroupState"], first.get("ErrorMessage")) == (16, "", error_message)
        assert (second["ErrorCode"], second["GroupState"]) == (0 if version < 6 else 69, "Dead")
    joined = bench.ask("JoinGroup", 5, join(lost))
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
    """FindCoordinator names the broker, and requests except heartbeats get COORDINATOR_LOAD_IN_PROGRESS."""
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
    assert bench.ask("JoinGroup", 5, join("g"))["ErrorCode"] == 14


@pytest.mark.parametrize(
    ("version", "instance_id", "error"),
    [(3, None, Errors.NONE), (4, None, Errors.MEMBER_ID_REQUIRED), (5, "i", Errors.NONE)],
)
def test_a_new_member_without_an_instance_id_gets_its_member_id_first(
    bench: Bench, version: int, instance_id: str | None, error: Errors
) -> None:
    """From version 4 on, a client joins with the response's id; a static member joins at once (KIP-394)."""
    static = {} if instance_id is None else {"GroupInstanceId": instance_id}
    joined = bench.ask("JoinGroup", version, {**join("g"), **static})
    assert (joined["ErrorCode"], bool(joined["MemberId"])) == (error, True)


def test_how_long_a_note_may_be() -> None:
    """offset.metadata.max.bytes counts Java's characters, as in Kafka; a string holds 32,767 bytes at most."""
    bench = Bench()
    notes = ["n" * 10, "\u00e9" * 10, "\U0001f600" * 5, "n" * 11, "\U0001f600" * 6, "n" * 32_767]

    def code(note: str) -> int:
        (topic,) = bench.ask("OffsetCommit", 8, commit("g", 7, note))["Topics"]
        return int(topic["Partitions"][0]["ErrorCode"])

    assert [code(note) for note in notes] == [0, 0, 0, 12, 12, 12]
    bench.bench = make_bench(offset_metadata_max_bytes=200_000)
    bench.bench.serve_groups(bench.groups.coordinator)
    bench.bench.create("t", 2)
    assert code(notes[-1]) == 0
    assert bench.groups.restart().coordinator.offsets.fetch("g").committed["t", 0].metadata == "n" * 32_767


def test_a_group_refuses_a_commit_before_its_notes_are_measured(bench: Bench) -> None:
    """As in Kafka, a note that is too long has the error of the group, even if no other offset is in the request."""
    bench.ask("JoinGroup", 2, join("g"))
    for body in (commit("g", 7, "n" * 5000), commit("unknown", 7, "n" * 5000)):
        (row,) = bench.ask("OffsetCommit", 8, {**body, "MemberId": "m", "GenerationIdOrMemberEpoch": 5})["Topics"][0][
            "Partitions"
        ]
        assert row["ErrorCode"] == (25 if body["GroupId"] == "g" else 22)


def test_topics_that_a_commit_repeats_have_one_row(bench: Bench) -> None:
    """With a refused partition or an unknown topic rows are merged, refused ones first; the rows are Kafka's."""

    def topics(api: str, version: int, *rows: tuple[str, list[int]]) -> list[tuple[str, list[tuple[int, int]]]]:
        offset = {} if api == "OffsetDelete" else {"CommittedOffset": 7, "CommittedMetadata": ""}
        asked = [{"Name": name, "Partitions": [{"PartitionIndex": one, **offset} for one in of]} for name, of in rows]
        found = bench.ask(
            api,
            version,
            {"GroupId": "g", "MemberId": "", "Topics": asked} if offset else {"GroupId": "g", "Topics": asked},
        )
        return [
            (one["Name"], [(row["PartitionIndex"], row["ErrorCode"]) for row in one["Partitions"]])
            for one in found["Topics"]
        ]

    for api, version in (("OffsetCommit", 8), ("OffsetDelete", 0)):
        assert topics(api, version, ("t", [0]), ("t", [1])) == [("t", [(0, 0)]), ("t", [(1, 0)])]
        assert topics(api, version, ("t", [0, 9]), ("t", [1])) == [("t", [(9, 3), (0, 0), (1, 0)])]
        assert topics(api, version, ("t", [0]), ("x", [0]), ("t", [1])) == [("x", [(0, 3)]), ("t", [(0, 0), (1, 0)])]
        assert topics(api, version, ("x", []), ("t", [])) == [("x", [])]


@pytest.mark.parametrize(
    ("retention_ms", "expires_after_ms"), [(2**63 - 1, None), (5000, 5000), (0, 0), (-5, 0), (-(2**63), 0)]
)
def test_any_retention_time_of_an_old_client_is_stored(
    bench: Bench, retention_ms: int, expires_after_ms: int | None
) -> None:
    """The longest retention keeps the offset, and a retention that ends in the past lets it expire at once."""
    (row,) = bench.ask("OffsetCommit", 3, {**commit("g", 7, "n"), "RetentionTimeMs": retention_ms})["Topics"][0][
        "Partitions"
    ]
    assert row["ErrorCode"] == 0
    if expires_after_ms:
        bench.groups.clock.advance_ms(expires_after_ms - 1)
        assert bench.groups.coordinator.offsets.expire() == 0
        bench.groups.clock.advance_ms(1)
    if expires_after_ms is None:
        bench.groups.clock.advance_ms(10 * 365 * 24 * 3_600_000)
    assert bench.groups.coordinator.offsets.expire() == (0 if expires_after_ms is None else 1)


def test_offsets_are_those_of_a_topics_id(bench: Bench) -> None:
    """OffsetFetch 10 leaves out an offset of a deleted topic with the same name; by name it is found, as in Kafka."""
    stale = CommittedOffset(7, -1, "old", 5, topic_id=uuid.uuid4())
    bench.groups.coordinator.offsets.commit("g", "", None, -1, {("t", 1): stale})
    bench.ask("OffsetCommit", 8, commit("g", 3, "new"))

    def fetched(version: int, topic: Body) -> list[int]:
        asked = {"Groups": [{"GroupId": "g", "Topics": [{**topic, "PartitionIndexes": [0, 1]}]}]}
        ((found,),) = (group["Topics"] for group in bench.ask("OffsetFetch", version, asked)["Groups"])
        return [row["CommittedOffset"] for row in found["Partitions"]]

    assert fetched(10, {"TopicId": bench.topic.topic_id}) == [3, -1]
    assert fetched(9, {"Name": "t"}) == [3, 7]
    committed = bench.groups.restart().coordinator.offsets.fetch("g").committed
    assert [one.topic_id for _, one in sorted(committed.items())] == [bench.topic.topic_id, stale.topic_id]


@pytest.mark.parametrize(
    ("state", "is_listed"),
    [(" Empty", True), ("\tEMPTY\r\n", True), ("e mpty", False), ("\u2003empty", False), ("em_pty", False)],
)
def test_space_around_a_state_does_not_count(bench: Bench, state: str, is_listed: bool) -> None:
    """ListGroups removes the same characters as Java's trim."""
    bench.ask("OffsetCommit", 8, commit("g", 7, "n"))
    listed = bench.ask("ListGroups", 4, {"StatesFilter": [state]})["Groups"]
    assert [one["GroupId"] for one in listed] == (["g"] if is_listed else [])


def test_a_topic_without_offsets_has_a_row_for_each_mention(bench: Bench) -> None:
    """DeleteShareGroupOffsets has a row for each mention of a topic without offsets, before those of deleted ones."""
    shared = ShareGroupBench()
    bench.bench.serve_groups(shared.coordinator)
    shared.settled("a")
    shared.beat("a", -1)
    rows = [{"TopicName": name} for name in ("t", "absent", "t", "absent")]
    found = bench.bench.ask("DeleteShareGroupOffsets", 0, {"GroupId": "g", "Topics": rows})["Responses"]
    unknown = ("absent", int(Errors.UNKNOWN_TOPIC_OR_PARTITION))
    assert [(row["TopicName"], row["ErrorCode"]) for row in found] == [unknown, unknown, ("t", 0)]


def test_a_share_groups_topic_without_partitions_has_a_row(bench: Bench) -> None:
    """AlterShareGroupOffsets has a row without partitions for a topic that exists, none for an unknown one."""
    shared = ShareGroupBench()
    bench.bench.serve_groups(shared.coordinator)
    rows = [{"TopicName": "t", "Partitions": []}, {"TopicName": "x", "Partitions": []}]
    found = bench.bench.ask("AlterShareGroupOffsets", 0, {"GroupId": "g", "Topics": rows})
    assert [(row["TopicName"], row["TopicId"], row["Partitions"]) for row in found["Responses"]] == [
        ("t", bench.topic.topic_id, [])
    ]


def test_a_topic_without_partitions_in_a_change_of_share_partitions(bench: Bench) -> None:
    """InitializeShareGroupState omits it; the response to the other requests is then empty, as in Kafka."""
    share = Share()
    bench.bench.ctx.share_service.started = cast(Any, SimpleNamespace(coordinator=share.coordinator))

    def ask(api: str, **fields: int) -> list[Body]:
        given = {"TopicId": TOPIC_ID, "Partitions": [{"Partition": 0, **fields}]}
        body = {"GroupId": "g", "Topics": [{"TopicId": UNKNOWN_ID, "Partitions": []}, given]}
        return list(bench.bench.ask(api, 0, body)["Results"])

    (row,) = ask("InitializeShareGroupState", StateEpoch=1, StartOffset=5)
    assert (row["TopicId"], [one["ErrorCode"] for one in row["Partitions"]]) == (TOPIC_ID, [0])
    assert share.stored().start_offset == 5
    assert ask("ReadShareGroupState", LeaderEpoch=0) == []
    assert ask("DeleteShareGroupState") == []
    assert share.stored().start_offset == 5


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9, 10])
def test_offsets_that_a_transaction_may_change(bench: Bench, version: int) -> None:
    """From v7 a client that requires stable offsets gets code 88 per partition; other clients get the old offset."""
    producer = TransactionalProducer(7, 0)
    groups = bench.groups.coordinator
    groups.offsets.commit("g", "", None, -1, {("t", 0): CommittedOffset(3, 2, "old", 5)})
    groups.offsets.commit_transactional("g", "", None, -1, producer, {("t", 0): CommittedOffset(9, 4, "new", 5)})
    groups.offsets.commit_transactional("g", "", None, -1, producer, {("t", 1): CommittedOffset(1, 4, "new", 5)})
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
    groups.offsets.complete_transaction(groups.runtime.index_of("g"), EndMarker(7, 0, 0, True, 0))
    assert fetch(True, asked) == {0: (0, 9, "new"), 1: (0, 1, "new")}


def test_a_topic_named_twice_in_a_heartbeat_counts_as_a_whole(bench: Bench) -> None:
    """Partitions of both rows count as owned, so that no other member receives a partition too early."""
    groups = ConsumerGroupBench()
    bench.bench.serve_groups(groups.coordinator)
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


@pytest.mark.parametrize(("member_id", "error"), [(" \t", 42), ("\0\x1f", 42), ("\u00a0", 0), ("\u2003", 0)])
def test_a_blank_member_id_is_one_of_javas_blanks(bench: Bench, member_id: str, error: int) -> None:
    """Control characters are blank, and the blanks of Unicode are not."""
    bench.bench.serve_groups(ConsumerGroupBench().coordinator)
    body = {"GroupId": "g", "MemberId": member_id, "MemberEpoch": 0, "RebalanceTimeoutMs": 5000}
    body |= {"TopicPartitions": [], "SubscribedTopicNames": ["t"]}
    assert bench.ask("ConsumerGroupHeartbeat", 1, body)["ErrorCode"] == error


def test_a_protocol_that_is_not_offered(bench: Bench) -> None:
    """With group.coordinator.rebalance.protocols=classic both APIs return UNSUPPORTED_VERSION, as in Kafka."""
    groups = ConsumerGroupBench(settings=replace(AT_ONCE, is_enabled=False))
    bench.bench.serve_groups(groups.coordinator)
    body: Body = {"GroupId": "g", "MemberId": "a", "MemberEpoch": 0, "RebalanceTimeoutMs": 5000, "TopicPartitions": []}
    body["SubscribedTopicNames"] = ["t"]
    assert bench.ask("ConsumerGroupHeartbeat", 1, body)["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    (group,) = bench.ask("ConsumerGroupDescribe", 1, {"GroupIds": ["g"]})["Groups"]
    assert group["ErrorCode"] == Errors.UNSUPPORTED_VERSION
    assert not groups.coordinator.list_groups()
