"""APIs of logs over real partitions, in cases without a recorded response of Kafka."""

from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.apis import api21_delete_records as delete_records_api
from kbroker.apis import api43_elect_leaders as elect_leaders_api
from kbroker.apis import api46_list_partition_reassignments as list_reassignments_api
from kbroker.apis.api02_list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP
from kbroker.apis.api23_offset_for_leader_epoch import epochs_from
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors
from kbroker.log.checkpoints import offset_checkpoint
from kbroker.log.log_dirs import LogDirView, Replica
from kbroker.log.manager import LogManager
from kbroker.requests.context import RequestContext
from tests.support.closing import close_at_end
from tests.support.compaction import keyed, marker
from tests.support.errors import raising
from tests.support.log_files import NOW_MS
from tests.support.server import Bench, make_bench

QUORUM = "__cluster_metadata"


@pytest.fixture
def bench() -> Bench:
    """Return handlers with a topic "t" of two partitions, the first with five records, and a compacted topic "c"."""
    made = make_bench(kbroker_in_memory=True)
    made.use_logs(close_at_end(LogManager([], VirtualClock(NOW_MS), BrokerConfig())))
    view = made.create("t", 2)
    made.create("c", cleanup_policy="compact")
    for _ in range(5):
        assert view.partitions[0].append(keyed((b"k", b"v"))).error == 0
    return made


def cut(bench: Bench, name: str, *rows: tuple[int, int]) -> list[tuple[int, int, int]]:
    partitions = [{"PartitionIndex": index, "Offset": offset} for index, offset in rows]
    body = {"Topics": [{"Name": name, "Partitions": partitions}], "TimeoutMs": 1000}
    (topic,) = bench.ask("DeleteRecords", 2, body)["Topics"]
    assert topic["Name"] == name
    return [(row["PartitionIndex"], row["LowWatermark"], row["ErrorCode"]) for row in topic["Partitions"]]


def test_deleted_records_stay_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new log start offset is on disk before the response, and a failed write gets error 56, even on a retry."""
    made = make_bench()
    manager = LogManager([tmp_path], VirtualClock(NOW_MS), BrokerConfig())
    made.use_logs(manager)
    view = made.create("t", 2)
    for log in view.partitions:
        assert log.append(keyed((b"k", b"v"))).error == 0
    starts = offset_checkpoint(tmp_path / "log-start-offset-checkpoint")
    assert cut(made, "t", (0, 0), (1, 0)) == [(0, 0, 0), (1, 0, 0)]
    assert not starts.path.exists()
    assert cut(made, "t", (0, 1), (1, 9)) == [(0, 1, 0), (1, -1, 1)]
    assert starts.read() == {("t", 0): 1}
    with monkeypatch.context() as broken:
        broken.setattr("kbroker.log.checkpoints.write_atomically", raising(OSError(28, "No space left on device")))
        for _ in range(2):
            assert cut(made, "t", (1, 1), (0, 0)) == [(1, -1, 56), (0, -1, 56)]
    assert starts.read() == {("t", 0): 1}
    assert cut(made, "t", (1, 1)) == [(1, 1, 0)]
    assert starts.read() == {("t", 0): 1, ("t", 1): 1}
    manager.close()


def test_delete_records_refusals(bench: Bench) -> None:
    """A negative partition is unknown, and so is an internal topic before it exists."""
    assert cut(bench, "t", (1, 0), (2, 0), (-1, 0)) == [(1, 0, 0), (2, -1, 3), (-1, -1, 3)]
    assert cut(bench, "__consumer_offsets", (0, 0)) == [(0, -1, 3)]


def test_delete_records_of_a_partition_that_is_named_twice(bench: Bench) -> None:
    """A partition that is named twice has one row, and the last offset counts."""
    assert cut(bench, "t", (0, 9), (0, 1)) == [(0, 1, 0)]


def test_delete_records_of_unknown_partitions(bench: Bench) -> None:
    """A partition that does not exist is unknown even if no record of its topic can be deleted."""
    assert cut(bench, "c", (0, 0), (9, 0)) == [(0, -1, Errors.POLICY_VIOLATION), (9, -1, 3)]
    bench.create("__transaction_state")
    assert cut(bench, "__transaction_state", (0, 0), (9, 0)) == [(0, -1, 17), (9, -1, 3)]


@pytest.mark.parametrize("policy", ["compact,delete", "delete", ""])
def test_delete_records_of_other_policies(bench: Bench, policy: str) -> None:
    """Records of a topic that is not only compacted can be deleted, even without any policy."""
    bench.create("other", cleanup_policy=policy)
    assert cut(bench, "other", (0, -1)) == [(0, 0, 0)]


def test_delete_records_of_a_closed_log(bench: Bench) -> None:
    """A partition that is being deleted is unknown."""
    bench.ctx.topics.partition("t", 0).close(clean=False)
    assert cut(bench, "t", (0, 1)) == [(0, -1, 3)]


def test_epochs_of_deleted_records() -> None:
    """Epochs end at or after the log start offset, where the first remaining epoch begins."""
    epochs = [(0, 0), (2, 40), (4, 80)]
    assert [epochs_from(epochs, start) for start in (0, 10, 40, 60, 80, 90)] == [
        epochs, [(0, 10), (2, 40), (4, 80)], [(2, 40), (4, 80)], [(2, 60), (4, 80)], [(4, 80)], [(4, 90)],
    ]  # fmt: skip
    assert epochs_from([], 5) == []
    assert epochs_from([(2, 10)], 5) == [(2, 10)]


def listed(bench: Bench, timestamp: int, *, epoch: int = -1, isolation: int = 0, replica: int = -1) -> tuple[int, ...]:
    """Return error, offset and leader epoch of partition 0."""
    rows = [{"PartitionIndex": 0, "Timestamp": timestamp, "CurrentLeaderEpoch": epoch}]
    body = {"ReplicaId": replica, "IsolationLevel": isolation, "Topics": [{"Name": "t", "Partitions": rows}]}
    (row,) = bench.ask("ListOffsets", 8, body)["Topics"][0]["Partitions"]
    return row["ErrorCode"], row["Offset"], row["LeaderEpoch"]


def test_listed_offsets_have_the_epochs_of_their_records(bench: Bench) -> None:
    """The start has the epoch of the first record, a time that of the record found, the end that of the leader."""
    log = bench.ctx.topics.partition("t", 0)
    log.set_leader_epoch(2)
    assert log.append(keyed((b"k", b"v"), time_ms=NOW_MS + 9)).error == 0
    log.set_leader_epoch(4)
    times = (EARLIEST, EARLIEST_LOCAL, NOW_MS, NOW_MS + 9, MAX_TIMESTAMP, LATEST)
    assert [listed(bench, time)[1:] for time in times] == [(0, 0), (0, 0), (0, 0), (5, 2), (5, 2), (6, 4)]
    log.delete_records(5)
    assert listed(bench, EARLIEST) == (0, 5, 2)
    log.delete_records(6)
    assert listed(bench, EARLIEST) == (0, 6, 4)


def test_listed_offsets_of_unusual_requests(bench: Bench) -> None:
    """An unknown isolation level is an error, epoch -2 is an old one, and only consumers have an isolation level."""
    log = bench.ctx.topics.partition("t", 0)
    open_batch = keyed((b"k", b"v"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert log.append(open_batch).error == 0
    assert listed(bench, LATEST, isolation=2) == (Errors.UNKNOWN_SERVER_ERROR, -1, -1)
    assert listed(bench, LATEST, epoch=-2) == (Errors.FENCED_LEADER_EPOCH, -1, -1)
    assert [listed(bench, LATEST, isolation=1, replica=one) for one in (-1, -2, 1)] == [(0, 5, 0), (0, 6, 0), (0, 6, 0)]


def test_only_consumers_read_to_the_high_watermark(bench: Bench) -> None:
    """The latest offset is the log end for clients that are not consumers, as in Kafka."""
    log = bench.ctx.topics.partition("t", 0)
    log.is_under_min_isr = True
    assert log.append(keyed((b"k", b"v")), acks=1).error == 0
    assert [listed(bench, LATEST, replica=one) for one in (-1, -2, 1)] == [(0, 5, 0), (0, 6, 0), (0, 6, 0)]


def test_largest_time_counts_deleted_records(bench: Bench) -> None:
    """Deleted records count while their segment has others, as in Kafka; if no record has a time, the largest is -1."""
    log = bench.ctx.topics.partition("t", 0)
    log.delete_records(3)
    assert listed(bench, MAX_TIMESTAMP) == (0, 0, 0)
    untimed = bench.ctx.topics.partition("t", 1)
    assert untimed.offset_for_timestamp(MAX_TIMESTAMP) == (-1, -1, -1)
    assert untimed.append(keyed((b"k", b"v"), time_ms=-1)).error == 0
    assert untimed.offset_for_timestamp(MAX_TIMESTAMP) == (0, -1, 0)


def test_volume_of_a_log_dir(tmp_path: Any) -> None:
    """From v4 the response has the volume's size and its free bytes."""
    bench = make_bench()
    bench.logs.log_dirs = [LogDirView(str(tmp_path), "", {})]
    (result,) = bench.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
    assert (result["LogDir"], result["ErrorCode"]) == (str(tmp_path), 0)
    assert result["TotalBytes"] > result["UsableBytes"] > 0


def test_an_offline_log_dir(tmp_path: Any) -> None:
    """A folder that can no longer be written has error 56, and neither partitions nor sizes."""
    bench = make_bench()
    replicas = {("t", 0): [Replica(7, 0, is_future=False)]}
    bench.logs.log_dirs = [LogDirView(str(tmp_path), "flush: Input/output error", replicas)]
    response = bench.ask("DescribeLogDirs", 4, {"Topics": None})
    (result,) = response["Results"]
    assert response["ErrorCode"] == 0
    expected = {"ErrorCode": 56, "LogDir": str(tmp_path), "Topics": [], "TotalBytes": -1, "UsableBytes": -1}
    assert result == {**expected, "IsCordoned": False}


def producers(bench: Bench, *indexes: int, name: str = "t") -> list[Any]:
    (topic,) = bench.ask("DescribeProducers", 0, {"Topics": [{"Name": name, "PartitionIndexes": indexes}]})["Topics"]
    return [(p["PartitionIndex"], p["ErrorCode"], p["ErrorMessage"], p["ActiveProducers"]) for p in topic["Partitions"]]


def test_describe_producers(bench: Bench) -> None:
    """The response lists idempotent producers and open transactions, with -1 for absent values."""
    log = bench.ctx.topics.partition("t", 0)
    assert producers(bench, 0, 5) == [(0, 0, None, []), (5, 3, None, [])]
    log.append(keyed((b"k", b"a"), (b"k", b"b"), producer_id=7, producer_epoch=0, base_sequence=0))
    options = {"producer_id": 8, "producer_epoch": 1, "transactional": True}
    log.append(keyed((b"k", b"a"), base_sequence=0, **options), is_client=False)
    (row,) = producers(bench, 0)
    first = {"ProducerId": 7, "ProducerEpoch": 0, "LastSequence": 1, "LastTimestamp": NOW_MS, "CoordinatorEpoch": -1}
    second = {"ProducerId": 8, "ProducerEpoch": 1, "LastSequence": 0, "LastTimestamp": NOW_MS, "CoordinatorEpoch": -1}
    assert row[3] == [{**first, "CurrentTxnStartOffset": -1}, {**second, "CurrentTxnStartOffset": 7}]
    log.append(marker(8, commit=True, epoch=1), is_client=False)
    assert producers(bench, 0)[0][3][1] == {**second, "CoordinatorEpoch": 0, "CurrentTxnStartOffset": -1}


@pytest.mark.parametrize("version", range(3))
def test_elect_all_leaders(bench: Bench, version: int) -> None:
    """An election of all partitions lists the topics without partitions."""
    response = bench.ask("ElectLeaders", version, {"TopicPartitions": None, "TimeoutMs": 1})
    assert response["ReplicaElectionResults"] == [{"Topic": name, "PartitionResult": []} for name in ("c", "t")]


def moved(bench: Bench, version: int, path: str, *names: tuple[str, list[int]]) -> list[tuple[str, int, int]]:
    folder = {"Path": path, "Topics": [{"Name": name, "Partitions": indexes} for name, indexes in names]}
    response = bench.ask("AlterReplicaLogDirs", version, {"Dirs": [folder]})
    return [
        (topic["TopicName"], row["PartitionIndex"], row["ErrorCode"])
        for topic in response["Results"]
        for row in topic["Partitions"]
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs(bench: Bench, version: int) -> None:
    """A move to the folder that already holds the partition succeeds."""
    (folder,) = bench.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
    asked = (("t", [0, 7]), ("missing", [0]))
    assert moved(bench, version, folder["LogDir"], *asked) == [("t", 0, 0), ("t", 7, 3), ("missing", 0, 3)]


def test_refused_moves_are_limited_warnings(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A request that names thousands of partitions writes a line for each reason, not for each partition."""
    (folder,) = bench.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
    caplog.clear()
    assert len(moved(bench, 2, folder["LogDir"], ("t", list(range(2, 1002))))) == 1000
    assert {code for _, _, code in moved(bench, 2, "/elsewhere", ("t", [0, 1]))} == {57}
    assert [line.split(" to ")[0] for line in caplog.messages] == ["t-2 is not moved", "t-0 is not moved"]


@pytest.mark.parametrize("version", range(3))
def test_nodes_of_the_quorum(bench: Bench, version: int) -> None:
    asked = [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
    response = bench.ask("DescribeQuorum", version, {"Topics": asked})
    assert [one["NodeId"] for one in response["Nodes"]] == ([bench.ctx.node_id] if version >= 2 else [])


@pytest.mark.parametrize(
    "asked", [[], [("a", [0])], [(QUORUM, [0, 0])], [(QUORUM, [1])], [(QUORUM, [0]), ("a", [0])], [(QUORUM, [])]]
)
def test_the_quorum_is_described_alone(bench: Bench, asked: list[tuple[str, list[int]]]) -> None:
    """A request that also names anything else returns only errors and no nodes."""
    topics = [{"TopicName": name, "Partitions": [{"PartitionIndex": one} for one in rows]} for name, rows in asked]
    response = bench.ask("DescribeQuorum", 2, {"Topics": topics})
    found = [
        (topic["TopicName"], [one["PartitionIndex"] for one in topic["Partitions"]]) for topic in response["Topics"]
    ]
    assert found == asked
    assert {one["ErrorCode"] for topic in response["Topics"] for one in topic["Partitions"]} <= {3}
    assert (response["ErrorCode"], response["Nodes"]) == (0, [])


def test_an_election_repeats_what_the_request_repeats(bench: Bench) -> None:
    """Topics and partitions have a row for each mention, in the order of the request."""
    asked = [("t", [0, 7, 0]), ("missing", []), ("t", [1])]
    rows = [{"Topic": name, "Partitions": indexes} for name, indexes in asked]
    response = bench.ask("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": rows, "TimeoutMs": 1})
    found = [
        (topic["Topic"], [(one["PartitionId"], one["ErrorCode"]) for one in topic["PartitionResult"]])
        for topic in response["ReplicaElectionResults"]
    ]
    assert found == [("t", [(0, 84), (7, 3), (0, 84)]), ("missing", []), ("t", [(1, 84)])]


def test_reassignments_of_no_topic(bench: Bench) -> None:
    """A response without rows has an empty message and the default of AllowReplicationFactorChange, as in Kafka."""
    response = bench.ask("AlterPartitionReassignments", 1, {"AllowReplicationFactorChange": False, "Topics": []})
    shown = response["AllowReplicationFactorChange"], response["ErrorCode"], response["ErrorMessage"]
    assert (*shown, response["Responses"]) == (True, 0, "", [])


def test_refused_reassignments_are_named() -> None:
    """The error of the whole request of ListPartitionReassignments has a row for each named partition."""
    body = {"Topics": [{"Name": "t", "PartitionIndexes": [1, 1]}, {"Name": "u", "PartitionIndexes": []}]}
    error, request = Errors.CLUSTER_AUTHORIZATION_FAILED, RequestContext(46, 0)
    response = list_reassignments_api.failure(body, error, request)
    row = {"PartitionIndex": 1, "Replicas": [], "AddingReplicas": [], "RemovingReplicas": []}
    assert response["ErrorCode"] == error
    assert response["Topics"] == [{"Name": "t", "Partitions": [row, row]}, {"Name": "u", "Partitions": []}]
    assert list_reassignments_api.failure({"Topics": None}, error, request)["Topics"] == []


def test_failures_name_every_partition() -> None:
    """The error of a failed handler is returned for every requested partition."""
    request = RequestContext(21, 2)
    body = {"Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 3, "Offset": 0}]}]}
    response = delete_records_api.failure(body, Errors.UNKNOWN_SERVER_ERROR, request)
    assert response["Topics"][0]["Partitions"] == [{"PartitionIndex": 3, "LowWatermark": -1, "ErrorCode": -1}]
    body = {"TopicPartitions": [{"Topic": "t", "Partitions": [3]}]}  # type: ignore[list-item]
    response = elect_leaders_api.failure(body, Errors.UNKNOWN_SERVER_ERROR, request)
    assert response["ReplicaElectionResults"][0]["PartitionResult"][0]["ErrorCode"] == -1


def test_two_log_dirs(tmp_path: Path) -> None:
    """Each folder is described, a move is shown as a future replica, and errors of folders are Kafka's."""
    made = make_bench()
    folders = [tmp_path / "a", tmp_path / "b"]
    manager = LogManager(folders, VirtualClock(NOW_MS), BrokerConfig())
    made.use_logs(manager)
    made.create("t", 2)
    first, second = map(str, folders)

    def shown() -> list[list[tuple[int, bool]]]:
        return [
            [(row["PartitionIndex"], row["IsFutureKey"]) for topic in folder["Topics"] for row in topic["Partitions"]]
            for folder in made.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
        ]

    assert shown() == [[(0, False)], [(1, False)]]
    assert moved(made, 2, second, ("t", [0, 1])) == [("t", 0, 0), ("t", 1, 0)]
    assert shown() == [[(0, False)], [(0, True), (1, False)]]
    while manager.mover.scheduler.task_names:
        manager.mover.scheduler.run_due()
    assert shown() == [[], [(0, False), (1, False)]]
    manager._dirs[0].note_failure("flush", OSError(5, "Input/output error"))
    assert moved(made, 2, first, ("t", [0])) == [("t", 0, 56)]
    assert moved(made, 2, str(tmp_path), ("t", [0])) == [("t", 0, 57)]
    results = made.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
    assert [(row["LogDir"], row["ErrorCode"]) for row in results] == [(first, 56), (second, 0)]
    manager.close()
