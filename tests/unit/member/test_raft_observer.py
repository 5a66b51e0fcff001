"""Observer of the quorum: leaders, divergence, snapshots, failures, and the log after a crash."""

import errno
import os
from pathlib import Path

import pytest

from kbroker.client.connection import Address
from kbroker.common.errors import Errors
from kbroker.log.log_dir import LogDir
from kbroker.member.raft_observer import FETCH, FETCH_SNAPSHOT, RaftFatalError, RaftObserver, Send, Wait
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.quorum_state import QuorumState, read_quorum_state
from kbroker.metadata.records.batches import build_control
from kbroker.metadata.records.control_records import LeaderChange
from kbroker.protocol.codec import Body
from tests.support import metadata_images as rows
from tests.support.fake_quorum import FakeQuorum
from tests.support.raft_follower import RaftFollower

LEVEL = rows.feature("metadata.version", 30)


@pytest.fixture
def quorum() -> FakeQuorum:
    found = FakeQuorum()
    found.append(LEVEL)
    found.append(rows.topic("a", 1), rows.partition(1))
    found.commit()
    return found


def errors_of(follower: RaftFollower, steps: int) -> set[str]:
    """Drive a follower by `steps` single steps, some of them pauses, and return its errors."""
    errors = set()
    follower.quorum.requests.clear()
    for _ in range(steps):
        follower.drive(1)
        errors.add(follower.observer.last_error)
    assert len(follower.quorum.requests) < steps
    return errors


def test_first_contact(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The first response has the leader, and the epoch is stored before the next request."""
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()
        assert follower.states == [QuorumState(1, 1)]
        assert read_quorum_state(follower.log.folder) == QuorumState(1, 1)
        (first, key, body), (second, _, again) = quorum.requests[:2]
        assert (first, key, body["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"]) == (("c1", 9093), FETCH, 0)
        assert (second, again["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"]) == (("c1", 9093), 1)


def test_uncommitted_records_are_not_applied(tmp_path: Path, quorum: FakeQuorum) -> None:
    """Records above the high watermark are fetched and not applied; a new leader may truncate them."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.append(rows.topic("lost", 2), rows.partition(2))
        follower.catch_up()
        assert follower.log.end_offset == quorum.end_offset
        assert "lost" not in follower.metadata.image.topics
        quorum.elect(2)
        quorum.append(rows.topic("b", 3), rows.partition(3))
        quorum.commit()
        assert follower.catch_up() == quorum.image()
        assert sorted(follower.metadata.image.topics) == ["a", "b"]
        assert follower.states[-1] == QuorumState(2, 2)


def test_truncation_below_the_high_watermark_ends_the_node(tmp_path: Path, quorum: FakeQuorum) -> None:
    """Truncation of committed records, which the image contains, raises RaftFatalError."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.batches = quorum.batches[:1]
        quorum.high_watermark = 1
        quorum.elect(2)
        with pytest.raises(RaftFatalError, match="below the high watermark 4: the controllers have lost metadata"):
            follower.drive()


def test_truncation_of_a_committed_epoch(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A leader without the epoch of committed records ends the node, which keeps them, at any end offset."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.elect(2)
        quorum.commit()
        follower.catch_up()
        quorum.changes[FETCH] = {"DivergingEpoch": {"Epoch": 1, "EndOffset": 100}}
        with pytest.raises(RaftFatalError, match="truncation to offset 4, below the high watermark 5"):
            follower.drive()
        assert follower.log.end_offset == 5


def test_a_leader_that_does_not_respond(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The other bootstrap server responds with the new leader."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.unreachable.add(("c1", 9093))
        quorum.elect(2)
        quorum.commit()
        assert follower.catch_up() == quorum.image()
        assert follower.observer.leader == (2, ("c2", 9093))


def attempts_ms(observer: RaftObserver, now_ms: int, count: int) -> dict[Address, list[int]]:
    """Make attempts fail at once; return their times, since the first one, by address."""
    times: dict[Address, list[int]] = {}
    begin_ms = now_ms
    while count > 0:
        step = observer.next(now_ms)
        if isinstance(step, Wait):
            now_ms += step.ms
            continue
        times.setdefault(step.address, []).append(now_ms - begin_ms)
        observer.on_disconnect(step, "connection refused", now_ms)
        count -= 1
    return times


def test_controllers_that_are_gone(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The pause before a connection to a node doubles from 50 to 500 ms, and is short again after a response."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        observer = follower.observer
        expected = [0, 50, 150, 350, 750, 1250, 1750]
        assert attempts_ms(observer, 100_000, 14) == dict.fromkeys(quorum.addresses.values(), expected)
        assert isinstance(observer.next(102_249), Wait)
        quorum.drive(observer, 3, 102_250)
        assert (observer.last_error, observer.fetched_ms) == ("", 102_250)
        assert attempts_ms(observer, 200_000, 6)[quorum.addresses[1]][:3] == expected[:3]


def test_a_pause_without_a_leader(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The pause lasts until the next bootstrap server may be contacted, whatever the former leader's backoff is."""
    with RaftFollower(tmp_path, quorum) as follower:
        observer = follower.observer
        first = observer.next(0)
        assert isinstance(first, Send)
        observer.on_failure(first._replace(address=("former", 9093)), "down", 0)
        for _ in quorum.addresses:
            step = observer.next(10)
            assert isinstance(step, Send)
            observer.on_failure(step, "down", 10)
        assert observer.next(25) == Wait(5)


def test_an_election_without_a_result(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A quorum without a leader is queried again after the backoff."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.leader_id, quorum.epoch = -1, 2
        follower.drive(3)
        assert follower.observer.leader is None
        follower.drive(1)
        assert isinstance(follower.observer.next(0), Wait)
        quorum.leader_id, quorum.epoch = 1, 2
        quorum.elect(2)
        quorum.commit()
        assert follower.catch_up() == quorum.image()


def test_an_epoch_that_rises_with_each_response(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second new epoch without a successful Fetch is followed only after the backoff."""
    with RaftFollower(tmp_path, quorum) as follower, monkeypatch.context() as patch:
        follower.catch_up()
        respond = quorum.respond

        def rise(sent: Send) -> Body:
            quorum.epoch += 1
            return respond(sent)

        patch.setattr(quorum, "respond", rise)
        assert any("no leader that responds in epoch" in error for error in errors_of(follower, 30))
        patch.undo()
        quorum.elect(2)
        quorum.commit()
        assert follower.catch_up() == quorum.image()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Errors.INCONSISTENT_CLUSTER_ID, "it belongs to another cluster than 4L6g3nShT-eMCtK--X86sw"),
        (Errors.CLUSTER_AUTHORIZATION_FAILED, "needs the operation ClusterAction on the cluster"),
        (Errors.UNKNOWN_SERVER_ERROR, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_refusals_are_explained(tmp_path: Path, quorum: FakeQuorum, error: Errors, text: str) -> None:
    """A refused Fetch is repeated after the backoff, and the reason is kept for the log and for /health."""
    with RaftFollower(tmp_path, quorum) as follower:
        quorum.error = error
        follower.drive(3)
        assert text in follower.observer.last_error
        quorum.error = Errors.NONE
        assert follower.catch_up() == quorum.image()
        assert follower.observer.last_error == ""


@pytest.mark.parametrize(
    ("error", "epoch", "text"),
    [
        (Errors.UNKNOWN_TOPIC_ID, -1, "responds UNKNOWN_TOPIC_ID: is it the listener of a controller?"),
        (Errors.NOT_LEADER_OR_FOLLOWER, 0, "the quorum has no leader that responds in epoch 0"),
    ],
)
def test_a_node_without_an_epoch(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, error: Errors, epoch: int, text: str
) -> None:
    """The error names a broker's address in controller.quorum.bootstrap.servers as possibly no controller's.

    A controller before the first election has epoch 0.
    """
    respond = quorum.respond

    def refuse(sent: Send) -> Body:
        response = respond(sent)
        (row,) = response["Responses"][0]["Partitions"]
        row.update(ErrorCode=int(error), CurrentLeader={"LeaderId": -1, "LeaderEpoch": epoch})
        return response

    with RaftFollower(tmp_path, quorum) as follower, monkeypatch.context() as patch:
        patch.setattr(quorum, "respond", refuse)
        follower.drive(3)
        assert text in follower.observer.last_error
        patch.undo()
        assert follower.catch_up() == quorum.image()


def test_two_leaders_of_one_epoch(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A second leader in an epoch, as of another cluster, raises RaftFatalError."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.leader_id = 2
        with pytest.raises(RaftFatalError, match="both lead the quorum in epoch 1"):
            follower.drive()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"Records": b"\0" * 20}, "found a damaged batch"),
        ({"Records": build_control([LeaderChange(1, (1,), (1,))], 9, 1, 1)}, "a batch of offset 9 and epoch 1"),
        ({"Records": b"\1" * 80}, "found records without a whole batch"),
        ({"SnapshotId": {"EndOffset": 0, "Epoch": 0}}, "found the snapshot before them"),
        ({"DivergingEpoch": {"Epoch": 1, "EndOffset": -(2**63)}}, "expected an end offset, found -9223372036854775808"),
        ({"DivergingEpoch": {"Epoch": 9, "EndOffset": 100}}, "expected a diverging epoch below offset 0"),
        ({"CurrentLeader": {"LeaderId": 7, "LeaderEpoch": 1}}, "no address of controller 7"),
    ],
)
def test_a_response_that_cannot_be(
    tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture, change: Body, text: str
) -> None:
    """The Fetch is repeated after a pause, and failed attempts are not logged."""
    quorum.leader_id, quorum.addresses = 1, {1: ("c1", 9093)}
    quorum.changes[FETCH] = change
    with RaftFollower(tmp_path, quorum) as follower:
        assert any(text in error for error in errors_of(follower, 12))
        assert "damaged" not in caplog.text
        quorum.changes.clear()


def test_an_address_that_cannot_be(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The error has the length of an invalid host instead of its text."""
    with RaftFollower(tmp_path, quorum) as follower:
        quorum.addresses[1] = ("a" * 20_000, -1)
        errors = errors_of(follower, 4)
        assert any("found a host of 20000 characters and port -1" in error for error in errors)


# ---------------------------------------------------------------- snapshots


def test_a_log_that_begins_above_zero(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A new node fetches the snapshot in parts, and then the later records."""
    quorum.take_snapshot()
    quorum.append(rows.topic("b", 2), rows.partition(2))
    quorum.commit()
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()
        parts = [
            body["Topics"][0]["Partitions"][0]["Position"] for _, key, body in quorum.requests if key == FETCH_SNAPSHOT
        ]
        assert parts == list(range(0, parts[-1] + 100, 100))
        assert len(parts) > 2
        assert follower.log.start_offset == 4
        assert [path.name for path in follower.log.folder.glob("*.checkpoint*")] == [
            "00000000000000000004-0000000001.checkpoint"
        ]
    with RaftFollower(tmp_path, quorum) as follower:  # loads the stored snapshot
        assert follower.metadata.image.offset == 3
        assert follower.catch_up() == quorum.image()


def test_a_snapshot_that_is_gone(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The next Fetch returns the new snapshot's id if the leader has removed the snapshot."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.drive(3)
        assert list(follower.log.folder.glob("*.part"))
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        assert follower.catch_up() == quorum.image()
        assert not list(follower.log.folder.glob("*.part"))


def test_a_leader_with_two_addresses(tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that the leader names at its other address replaces the unfinished one."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower, monkeypatch.context() as patch:
        follower.drive(3)
        (unfinished,) = follower.log.folder.glob("*.part")
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        patch.setattr(quorum, "_check", lambda epoch, address: Errors.NONE)
        quorum.unreachable.add(("c1", 9093))
        follower.drive(2)
        assert not unfinished.exists()
        assert len(list(follower.log.folder.glob("*.part"))) == 1
        quorum.unreachable.clear()
        assert follower.catch_up() == quorum.image()


def test_a_leader_that_fails_on_a_snapshot(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A node begins with Fetch again after an error without topics, which Kafka 4.3 may send."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.drive(4)
        quorum.error = Errors.UNKNOWN_SERVER_ERROR
        follower.drive(1)
        quorum.error = Errors.NONE
        assert follower.catch_up() == quorum.image()


@pytest.mark.parametrize("damage", [b"", b"garbage" * 20])
def test_a_damaged_snapshot_of_the_leader(tmp_path: Path, quorum: FakeQuorum, damage: bytes) -> None:
    """A damaged snapshot does not replace the log, and is fetched again after a pause."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        assert quorum.snapshot is not None
        sound = quorum.snapshot
        quorum.snapshot = (*sound[:2], damage)
        errors = errors_of(follower, 8)
        assert any("controller c1:9093: " in error and ".checkpoint.part: " in error for error in errors)
        assert (follower.log.end_offset, follower.metadata.image) == (4, image)
        assert not list(follower.log.folder.glob("*.checkpoint*"))
        quorum.snapshot = sound
        assert follower.catch_up() == quorum.image()
        assert not follower.faults


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"UnalignedRecords": b""}, "found 0 bytes of"),
        ({"Position": 7}, "another part of a snapshot"),
        ({"ErrorCode": int(Errors.SNAPSHOT_NOT_FOUND)}, "no snapshot at offset 4 any more"),
    ],
)
def test_a_part_of_a_snapshot_that_cannot_be(tmp_path: Path, quorum: FakeQuorum, change: Body, text: str) -> None:
    """The snapshot is fetched again from its beginning after a pause."""
    quorum.take_snapshot()
    quorum.changes[FETCH_SNAPSHOT] = change
    with RaftFollower(tmp_path, quorum) as follower:
        assert any(text in error for error in errors_of(follower, 12))
        assert not list(follower.log.folder.glob("*.checkpoint"))
        quorum.changes.clear()
        assert follower.catch_up() == quorum.image()


def test_a_snapshot_that_is_larger_than_the_disk(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The snapshot is refused as on a full disk before any write."""
    quorum.take_snapshot()
    quorum.changes[FETCH_SNAPSHOT] = {"Size": 2**62}
    with RaftFollower(tmp_path, quorum) as follower:
        with pytest.raises(OSError, match="a snapshot of 4611686018427387904 bytes") as raised:
            follower.drive(3)
        assert not LogDir.ends_with(raised.value)
        assert not list(follower.log.folder.glob("*.part"))


def test_a_snapshot_whose_size_changes(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The size of the first part applies to the snapshot."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        while not any(path.stat().st_size for path in follower.log.folder.glob("*.part")):
            quorum.part_bytes = 300_000  # more than the buffer of the file
            assert quorum.snapshot is not None
            quorum.snapshot = (*quorum.snapshot[:2], bytes(900_000))
            follower.drive(1)
        quorum.changes[FETCH_SNAPSHOT] = {"Size": 900_001}
        assert any("expected a part of the 900000 bytes" in error for error in errors_of(follower, 3))


def test_a_running_node_that_falls_behind(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A snapshot replaces the image of a running node, and removed topics are published."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.append(rows.removal(1))
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        assert follower.catch_up() == quorum.image()
        assert sorted(follower.metadata.image.topics) == ["b"]


# ---------------------------------------------------------------- the disk


def segment(folder: Path, offset: int = 0) -> Path:
    return folder / "__cluster_metadata-0" / f"{offset:020}.log"


def test_a_restart_goes_on(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The log is read from disk, and only later records are fetched."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
    quorum.append(rows.topic("b", 2), rows.partition(2))
    quorum.commit()
    quorum.requests.clear()
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()
        assert quorum.requests[0][2]["Topics"][0]["Partitions"][0]["FetchOffset"] == 4
        assert quorum.requests[0][2]["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"] == 1


@pytest.mark.parametrize("at", [0, 16, 30, 100, -1])  # 16: the magic, which the CRC does not cover
def test_damage_is_fetched_again(tmp_path: Path, quorum: FakeQuorum, at: int) -> None:
    """The log is truncated at the damaged batch, and the batch is fetched again."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
    path = segment(tmp_path)
    sound = path.read_bytes()
    data = bytearray(sound)
    data[at] ^= 1
    path.write_bytes(data)
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.end_offset < 4
        assert follower.catch_up() == quorum.image()
    assert path.read_bytes() == sound


def test_a_damaged_snapshot_is_fetched_again(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A log above offset 0 is discarded without its snapshot."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
    (path,) = (tmp_path / "__cluster_metadata-0").glob("*.checkpoint")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.start_offset == 0
        assert follower.catch_up() == quorum.image()


def test_own_snapshots(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A node's own snapshot replaces the earlier records of its log at the next start."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        follower.log.write_snapshot(records_of(image, 30), image.offset, image.epoch, 1)
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.metadata.image == image
        assert follower.loader.counts.snapshots == 1
        assert follower.catch_up() == quorum.image()


def test_segments_and_their_removal(tmp_path: Path, quorum: FakeQuorum) -> None:
    """Segments whose records a snapshot covers are removed, and a restart begins above offset 0."""
    settings = {"metadata.log.segment.bytes": 8 << 20, "metadata.max.retention.bytes": 1}
    with RaftFollower(tmp_path, quorum, **settings) as follower:
        follower.log._segment_bytes = 200
        for number in range(2, 12):
            quorum.append(rows.topic(f"t{number}", number), rows.partition(number))
            quorum.commit()
            image = follower.catch_up()
            if number in (5, 9):
                follower.log.write_snapshot(records_of(image, 30), image.offset, image.epoch, 1)
        assert follower.log.start_offset > 4
        assert len(follower.log.snapshots()) == 1
    with RaftFollower(tmp_path, quorum, **settings) as follower:
        assert follower.catch_up() == quorum.image()


def test_a_full_disk(tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write is undone and raises the error of the disk, and the records are fetched again."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        size_bytes, real = follower.log.size_bytes, os.pwrite

        def half(descriptor: int, data: memoryview, position: int) -> int:
            if position > size_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(real(descriptor, data[: len(data) // 2], position))

        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", half)
            with pytest.raises(OSError, match="No space left") as raised:
                follower.drive(1)
        assert not LogDir.ends_with(raised.value)
        assert segment(tmp_path).stat().st_size == follower.log.size_bytes
        assert follower.catch_up() == quorum.image()
