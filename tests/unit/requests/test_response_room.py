"""Requests with duplicate names: each repetition has a row until the response reaches its size limit."""

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors
from kbroker.coordinator.consumer_groups import ConsumerGroups
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.share_groups import ShareGroups
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.log.manager import LogManager
from kbroker.metadata.topic_rules import NewTopic
from kbroker.protocol import codec
from kbroker.requests import response_room
from kbroker.requests.context import Body
from kbroker.requests.response_room import MAX_BYTES, NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from tests.support.closing import close_at_end
from tests.support.compaction import keyed
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.fake_image import FakeImage
from tests.support.groups import Groups
from tests.support.log_files import NOW_MS
from tests.support.server import Bench, make_bench
from tests.support.share_groups import ShareGroupBench
from tests.support.transactions import Transactions

ROOM = 50_000  # bytes, in most tests
REPEATED = 1000
MEGABYTE = 1_000_000


@pytest.fixture(name="small")
def _small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(response_room, "MAX_BYTES", ROOM)
    return ROOM


def with_groups(coordinator: GroupCoordinator) -> Bench:
    bench = make_bench()
    bench.serve_groups(coordinator)
    return bench


def split(rows: list[Body], refused: Errors) -> tuple[int, int]:
    """Return the numbers of described and of refused rows after a check that the described rows are equal."""
    codes = [row["ErrorCode"] for row in rows]
    described = codes.count(0)
    assert codes == [0] * described + [refused] * (len(codes) - described)
    assert all(row == rows[0] for row in rows[:described])
    return described, len(codes) - described


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Return a list to which later calls of a method append their name argument."""
    asked: list[str] = []
    original = getattr(owner, name)

    def noted(self: object, key: str) -> object:
        asked.append(key)
        return original(self, key)

    monkeypatch.setattr(owner, name, noted)
    return asked


@pytest.mark.parametrize("version", range(7))
def test_a_classic_group_with_large_assignments(version: int) -> None:
    """A name that is repeated a hundred times would need 100 MB; the excess rows get a retriable error."""
    groups = Groups()
    joined = groups.join().one
    groups.sync(joined.member_id, joined.generation_id, {joined.member_id: bytes(MEGABYTE)})
    rows = with_groups(groups.coordinator).ask("DescribeGroups", version, {"Groups": ["g"] * 100})["Groups"]
    assert split(rows, NO_ROOM) == (MAX_BYTES // MEGABYTE + 1, 99 - MAX_BYTES // MEGABYTE)
    (member,) = rows[0]["Members"]
    assert len(member["MemberAssignment"]) == MEGABYTE
    assert rows[-1]["GroupId"] == "g"
    assert rows[-1].get("ErrorMessage") == (NO_ROOM_TEXT if version >= 6 else None)


def test_groups_are_described_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are in the order of the request, and the coordinator describes each group once."""
    groups = Groups()
    for name in ("g", "h"):
        groups.lone(group=name)
    bench = with_groups(groups.coordinator)
    asked = counted(monkeypatch, GroupCoordinator, "describe")
    named = ["g", "h", "g", "none", "g", "none"]
    rows = bench.ask("DescribeGroups", 6, {"Groups": named})["Groups"]
    assert [row["GroupId"] for row in rows] == named
    assert [(row["ErrorCode"], len(row["Members"])) for row in rows] == [
        (0, 1),
        (0, 1),
        (0, 1),
        (69, 0),
        (0, 1),
        (69, 0),
    ]
    assert asked == ["g", "h", "none"]


@pytest.mark.parametrize("version", range(2))
def test_a_consumer_group(version: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members, partitions and targets count towards the limit; each group is described once."""
    groups = ConsumerGroupBench(FakeImage(t=200))
    groups.join("a")
    bench = with_groups(groups.coordinator)
    asked = counted(monkeypatch, ConsumerGroups, "describe")
    key = codec.api_by_name("ConsumerGroupDescribe").key
    response = bench.ask("ConsumerGroupDescribe", version, {"GroupIds": ["g"] * REPEATED + ["h"]})
    described, refused = split(response["Groups"], NO_ROOM)
    assert described > 1
    assert refused > REPEATED // 2
    assert response["Groups"][-1]["ErrorMessage"] == NO_ROOM_TEXT
    rows = response["Groups"][:described]
    assert len(codec.encode_response(key, version, {"Groups": rows})) < 2 * small
    assert asked == ["g"]


def test_the_partitions_of_a_share_group(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that an expanded topic list adds count towards the limit."""
    groups = ShareGroupBench()
    bench = with_groups(groups.coordinator)
    bench.ctx.topics.create(NewTopic("t", 200))
    bench.ctx.share_service.started = SimpleNamespace(coordinator=groups.share)  # type: ignore[assignment]
    view = bench.ctx.topics.get("t")
    assert view is not None
    monkeypatch.setattr(ShareGroups, "initialized", lambda self, group_id: {view.topic_id: range(200)})
    body = {"Groups": [{"GroupId": "g", "Topics": None}] * REPEATED}
    rows = bench.ask("DescribeShareGroupOffsets", 1, body)["Groups"]
    described, _ = split(rows, NO_ROOM)
    assert 0 < described < 10
    assert rows[-1]["ErrorMessage"] == NO_ROOM_TEXT
    assert len(rows[0]["Topics"][0]["Partitions"]) == 200


def test_a_transactional_id(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of the transaction count towards the limit."""
    transactions = Transactions()
    producer = transactions.init()
    transactions.add(producer, *(("t", index) for index in range(500)))
    bench = make_bench()
    bench.create("t", 500)
    bench.ctx.transaction_service.started = Service(transactions.coordinator)  # type: ignore[assignment]
    asked = counted(monkeypatch, TransactionCoordinator, "describe")
    rows = bench.ask("DescribeTransactions", 0, {"TransactionalIds": ["x"] * REPEATED})["TransactionStates"]
    described, _ = split(rows, NO_ROOM)
    assert 2 < described < small // 500 / 4
    assert len(rows[0]["Topics"][0]["Partitions"]) == 500
    assert asked == ["x"]


class Service:
    """Fake of ``TransactionService``."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self.coordinator = coordinator


@pytest.fixture(name="logs")
def _logs() -> Bench:
    """Return a bench with a topic "t" of one partition over a real log."""
    made = make_bench(kbroker_in_memory=True)
    made.use_logs(close_at_end(LogManager([], VirtualClock(NOW_MS), BrokerConfig())))
    made.create("t")
    return made


def producers_of(bench: Bench, name: str, indexes: Iterable[int]) -> list[Body]:
    body = {"Topics": [{"Name": name, "PartitionIndexes": list(indexes)}]}
    (topic,) = bench.ask("DescribeProducers", 0, body)["Topics"]
    return list(topic["Partitions"])


def test_the_producers_of_a_partition(logs: Bench, small: int) -> None:
    """The error is UNKNOWN_TOPIC_OR_PARTITION, the only one after which Java's Admin retries."""
    log = logs.ctx.topics.partition("t", 0)
    for producer_id in range(20):
        log.append(keyed((b"k", b"v"), producer_id=producer_id, producer_epoch=0, base_sequence=0))
    rows = producers_of(logs, "t", [0] * REPEATED)
    described, _ = split(rows, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    assert 2 < described < small // 20 / 128
    assert len(rows[0]["ActiveProducers"]) == 20
    assert rows[-1]["ErrorMessage"] == NO_ROOM_TEXT


@pytest.mark.parametrize("version", [8, 9, 10])
def test_all_offsets_of_a_group(version: int, small: int) -> None:
    """The limit applies to repetitions of one group and to different groups."""
    groups = Groups()
    bench = with_groups(groups.coordinator)
    bench.create("t", 50)
    offsets = {("t", index): CommittedOffset(7, 0, "note", 5) for index in range(50)}
    names = [f"g{number}" for number in range(100)]
    for name in names:
        groups.coordinator.offsets.commit(name, "", None, -1, offsets)

    def fetched(named: list[str]) -> list[Body]:
        rows = [{"GroupId": name, "Topics": None} for name in named]
        return list(bench.ask("OffsetFetch", version, {"Groups": rows})["Groups"])

    described, refused = split(fetched(["g0"] * REPEATED), NO_ROOM)
    assert 2 < described < small // 50 / 128
    assert described + refused == REPEATED
    rows = fetched(names)
    assert [row["GroupId"] for row in rows] == names
    assert [row["ErrorCode"] for row in rows] == [0] * described + [NO_ROOM] * (100 - described)


@pytest.mark.parametrize("version", [1, 5, 7, 8, 10])
def test_the_note_of_an_offset(version: int, small: int) -> None:
    """A repeated partition is refused when its long metadata fills the response; other partitions have theirs."""
    groups = Groups()
    bench = with_groups(groups.coordinator)
    topic_id = bench.create("t", 100).topic_id
    offsets = {("t", index): CommittedOffset(7, 0, "n" * 4000, 5) for index in range(100)}
    groups.coordinator.offsets.commit("g", "", None, -1, offsets)
    indexes = [0] * REPEATED + list(range(1, 100))
    topic = {"TopicId": topic_id} if version >= 10 else {"Name": "t"}
    body: Body = {"GroupId": "g", "Topics": [{**topic, "PartitionIndexes": indexes}]}
    response = bench.ask("OffsetFetch", version, {"Groups": [body]} if version >= 8 else body)
    (group,) = response["Groups"] if version >= 8 else (response,)
    rows = group["Topics"][0]["Partitions"]
    assert [row["PartitionIndex"] for row in rows] == indexes
    described, _ = split(rows[:REPEATED], NO_ROOM)
    assert 2 < described < small // 3000
    assert rows[REPEATED - 1]["Metadata"] == ""
    assert {(row["ErrorCode"], row["CommittedOffset"], len(row["Metadata"])) for row in rows[REPEATED:]} == {
        (0, 7, 4000)
    }


def test_a_large_config(small: int) -> None:
    """The limit applies to repetitions of a topic with a long config value."""
    bench = make_bench()
    bench.create("t", follower_replication_throttled_replicas=",".join(f"{number}:1" for number in range(1000)))
    keys = ["follower.replication.throttled.replicas"]
    row = {"ResourceType": 2, "ResourceName": "t", "ConfigurationKeys": keys}
    rows = bench.ask("DescribeConfigs", 4, {"Resources": [row] * REPEATED})["Results"]
    described, _ = split(rows, Errors.INVALID_REQUEST)
    assert 2 < described < small // 4000


@pytest.mark.parametrize("api", ["DescribeProducers", "ElectLeaders", "AlterPartitionReassignments"])
def test_the_long_name_of_a_topic_without_partitions(logs: Bench, small: int, api: str) -> None:
    """Kafka's error texts repeat the topic name for each partition; above the limit rows have only their code."""
    name, numbers = "n" * 5000, range(REPEATED)
    if api == "DescribeProducers":
        rows = producers_of(logs, name, numbers)
    elif api == "ElectLeaders":
        body: Body = {"TopicPartitions": [{"Topic": name, "Partitions": list(numbers)}]}
        rows = logs.ask(api, 2, body)["ReplicaElectionResults"][0]["PartitionResult"]
    else:
        partitions = [{"PartitionIndex": number, "Replicas": None} for number in numbers]
        rows = logs.ask(api, 0, {"Topics": [{"Name": name, "Partitions": partitions}]})["Responses"][0]["Partitions"]
    texts = [row["ErrorMessage"] for row in rows]
    with_text = sum(text is not None for text in texts)
    assert {row["ErrorCode"] for row in rows} == {17 if api == "DescribeProducers" else 3}
    assert 2 < with_text <= small // 5000 + 1
    assert all(name in text for text in texts[:with_text])
    assert len(rows) == REPEATED


def test_the_first_description_is_whole_however_large(small: int) -> None:
    """The first description may exceed the limit, because it cannot be split; later descriptions are refused."""
    room = ResponseRoom()
    large = {"Members": [{"MemberId": "m" * small}] * 3}
    assert room.described("g", lambda: large) is large
    assert room.is_full
    assert room.described("h", dict) is None
    assert room.text("t") is None


def test_characters_of_several_bytes_count_with_those(small: int) -> None:
    """Characters count with their UTF-8 bytes."""
    ascii_room, wide_room = ResponseRoom(), ResponseRoom()
    ascii_room.take("n" * (small // 2))
    wide_room.take("\N{SNOWMAN}" * (small // 2))
    assert (ascii_room.is_full, wide_room.is_full) == (False, True)


def test_a_response_is_full_at_its_limit(small: int) -> None:
    room = ResponseRoom()
    room.take("n" * (small - 1))
    assert not room.is_full
    room.take("n")
    assert room.is_full
