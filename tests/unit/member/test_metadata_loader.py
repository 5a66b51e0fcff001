"""Loader of a member's metadata: transactions of records, the hold during a start, and unknown records."""

import errno
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from kbroker.member import metadata_loader
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.records.batches import build_control
from kbroker.metadata.records.control_records import SnapshotFooter, SnapshotHeader
from kbroker.protocol.records import RecordBatchBuilder
from tests.support import metadata_images as rows
from tests.support.errors import raising
from tests.support.fake_quorum import FakeQuorum
from tests.support.metadata_images import Row
from tests.support.raft_follower import RaftFollower

BEGIN: Row = ("BeginTransaction", {"Name": "n"})
END: Row = ("EndTransaction", {})
ABORT: Row = ("AbortTransaction", {"Reason": "r"})


@pytest.fixture
def quorum() -> FakeQuorum:
    found = FakeQuorum()
    found.append(rows.feature("metadata.version", 30))
    found.commit()
    return found


class Recorder:
    """Publisher that records its deltas."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.got: list[tuple[list[str], list[str], int]] = []

    def concerns(self, delta: MetadataDelta) -> bool:
        return True

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        created = sorted(topic.name for topic in delta.topics.created.values())
        deleted = sorted(topic.name for topic in delta.topics.deleted.values())
        self.got.append((created, deleted, image.offset))


def test_a_transaction_counts_when_it_ends(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The records of a transaction, in several batches beside others, are applied when the transaction ends."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.append(rows.topic("before", 1), rows.partition(1), BEGIN, rows.topic("a", 2))
        quorum.append(rows.partition(2), rows.topic("b", 3))
        quorum.commit()
        for _ in range(3):
            follower.drive()
        follower.await_image(lambda _: follower.loader._next_offset == quorum.end_offset)
        assert not follower.metadata.image.topics
        quorum.append(rows.partition(3), END, rows.topic("after", 4), rows.partition(4))
        quorum.commit()
        assert follower.catch_up() == quorum.image()
        assert sorted(follower.metadata.image.topics) == ["a", "after", "b", "before"]


@pytest.mark.parametrize("is_read", [False, True])
def test_an_aborted_transaction_leaves_nothing(tmp_path: Path, quorum: FakeQuorum, is_read: bool) -> None:
    """Records outside an aborted transaction are applied once, even if it was read before its end."""
    recorder = Recorder()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        follower.metadata.publishers.append(recorder)
        quorum.append(rows.topic("before", 1), rows.partition(1), BEGIN, rows.topic("a", 2), rows.partition(2))
        if is_read:
            quorum.commit()
            for _ in range(3):
                follower.drive()
            follower.await_image(lambda _: follower.loader._next_offset == quorum.end_offset)
        quorum.append(ABORT, rows.topic("b", 3), rows.partition(3))
        quorum.commit()
        assert follower.catch_up() == quorum.image()
        follower.await_image(lambda _: bool(recorder.got))
        assert [created for created, _, _ in recorder.got] == [["b", "before"]]


def test_parts_that_are_made_during_the_hold_miss_nothing(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The image is held while records are loaded, and the first delta has all changes since."""
    follower = RaftFollower(tmp_path, quorum)
    recorder = Recorder()
    follower.loader.start()
    try:
        follower.drive()
        follower.await_image(lambda _: follower.loader.applied_offset == 1)
        follower.loader.publish()
        image = follower.metadata.image
        assert image.offset == 1
        for number in (1, 2):
            quorum.append(rows.topic(f"t{number}", number), rows.partition(number))
            quorum.commit()
            follower.drive()
        follower.await_image(lambda _: follower.loader.applied_offset == 5)
        # a heartbeat reports offset 5, but new publishers begin with this image
        assert follower.metadata.image is image
        follower.metadata.publishers.append(recorder)
        follower.loader.release()
        assert recorder.got == [(["t1", "t2"], [], 5)]
        quorum.append(rows.removal(1))
        quorum.commit()
        follower.catch_up()
        follower.await_image(lambda _: len(recorder.got) == 2)
        assert recorder.got[1] == ([], ["t1"], 6)
    finally:
        follower.__exit__(None, None, None)


def test_a_snapshot_reaches_the_parts_as_a_delta(tmp_path: Path, quorum: FakeQuorum) -> None:
    """Topics that a snapshot removes and adds are published as a delta."""
    recorder = Recorder()
    with RaftFollower(tmp_path, quorum) as follower:
        quorum.append(rows.topic("a", 1), rows.partition(1))
        quorum.commit()
        follower.catch_up()
        follower.metadata.publishers.append(recorder)
        quorum.append(rows.removal(1), rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        follower.catch_up()
        follower.await_image(lambda _: (["b"], ["a"], 6) in recorder.got)


def test_a_later_level_stops_the_image(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The image stays at the last supported change, and the fault has the supported and the found level."""
    with RaftFollower(tmp_path, quorum) as follower:
        quorum.append(rows.topic("a", 1), rows.partition(1))
        quorum.commit()
        image = follower.catch_up()
        quorum.append(rows.feature("metadata.version", 31))
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        for _ in range(3):
            follower.drive()
        follower.await_image(lambda _: bool(follower.faults))
        (fault,) = follower.faults
        assert "metadata.version: expected a level from 7 (3.3-IV3) to 30 (4.3-IV0), found 31 (4.4-IV0)" in fault
        assert "use a later broker, or lower the level of the cluster" in fault
        assert follower.metadata.image == image
        assert follower.loader.counts.errors == 1


def test_a_record_that_contradicts_the_image_stops_it(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A change of an unknown partition stops the image with a fault."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        quorum.append(("PartitionChange", {"TopicId": rows.uid(7), "PartitionId": 0}))
        quorum.commit()
        for _ in range(3):
            follower.drive()
        follower.await_image(lambda _: bool(follower.faults))
        assert "expected the id of an existing topic" in follower.faults[0]


def test_an_unknown_record_of_a_snapshot_stops_the_image(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A fetched snapshot with an unknown record stops the image with a fault, without further fetches."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        quorum.append(rows.topic("a", 1), rows.partition(1))
        quorum.commit()
        quorum.take_snapshot()
        assert quorum.snapshot is not None
        unknown = RecordBatchBuilder(base_offset=1, leader_epoch=1)
        unknown.append(None, b"\x01\x63\x00\x00")  # type 99
        data = (
            build_control([SnapshotHeader(1)], 0, 1, 1) + unknown.build() + build_control([SnapshotFooter()], 2, 1, 1)
        )
        quorum.snapshot = (*quorum.snapshot[:2], data)
        for _ in range(3):
            follower.drive()
        follower.await_image(lambda _: bool(follower.faults))
        assert "99" in follower.faults[0]
        assert "use a later broker, or lower the level of the cluster" in follower.faults[0]
        assert follower.metadata.image is image
        assert follower.loader.counts.errors == 1


def test_a_replaced_delta_is_freed_at_once() -> None:
    """Deltas are freed without the cyclic garbage collector, which a start disables."""
    delta = MetadataDelta(EMPTY_IMAGE)
    found = weakref.ref(delta)
    gc.disable()
    try:
        del delta
        assert found() is None
    finally:
        gc.enable()


class Shortage:
    """Failure of the n-th opening of a metadata log file from now on, for lack of descriptors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, suffix: str = ".log") -> None:
        self.left, self.suffix, self.thread = number, suffix, "kafka-metadata-loader"
        self.open = Path.open
        monkeypatch.setattr(metadata_loader, "SHORTAGE_BACKOFF_S", 0.001)
        monkeypatch.setattr(Path, "open", lambda path, *modes, **options: self.opened(path, *modes, **options))

    def opened(self, path: Path, *modes: Any, **options: Any) -> Any:
        if path.suffix == self.suffix and threading.current_thread().name == self.thread:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EMFILE, "Too many open files")
        return self.open(path, *modes, **options)


@pytest.mark.parametrize("number", range(1, 6))
def test_a_shortage_of_descriptors(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The records are read again, with those of a transaction that was replayed in part, and each counts once."""
    recorder = Recorder()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.log._segment_bytes = 100
        follower.catch_up()
        follower.metadata.publishers.append(recorder)
        shortage = Shortage(monkeypatch, number)
        for end in range(4):
            quorum.append(BEGIN, rows.topic(f"a{end}", 10 * end + 1))
            follower.drive()  # each into its own segment
            quorum.append(rows.partition(10 * end + 1), rows.topic(f"b{end}", 10 * end + 2))
            follower.drive()
            quorum.append(rows.partition(10 * end + 2), END, rows.topic(f"c{end}", 10 * end + 3))
            quorum.append(rows.partition(10 * end + 3))
            quorum.commit()
            assert follower.catch_up() == quorum.image()
        assert shortage.left <= 0
        assert follower.faults == []
        assert sorted(name for created, _, _ in recorder.got for name in created) == sorted(quorum.image().topics)
        assert len(quorum.image().topics) == 12
        assert sum("is read again after offset" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("suffix", [".checkpoint", ".log"])
def test_a_shortage_of_descriptors_at_a_snapshot(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The snapshot is loaded again with the records after it, as the log no longer has those before it."""
    recorder = Recorder()
    with RaftFollower(tmp_path, quorum) as follower:
        quorum.append(rows.topic("a", 1), rows.partition(1))
        quorum.commit()
        follower.catch_up()
        follower.metadata.publishers.append(recorder)
        shortage = Shortage(monkeypatch, 1, suffix)
        quorum.append(rows.removal(1), rows.topic("b", 2), rows.partition(2))
        quorum.commit()
        quorum.take_snapshot()
        follower.drive()
        quorum.append(rows.topic("c", 3), rows.partition(3))
        quorum.commit()
        assert follower.catch_up() == quorum.image()
        assert shortage.left <= 0
        assert follower.faults == []
        assert sorted(follower.metadata.image.topics) == ["b", "c"]
        assert sorted(name for created, _, _ in recorder.got for name in created) == ["b", "c"]
        assert [name for _, deleted, _ in recorder.got for name in deleted] == ["a"]


def store_snapshot(folder: Path, quorum: FakeQuorum, *records: Row) -> Path:
    """Catch up with the node of a folder, and add a snapshot of these records to its log; return the snapshot."""
    with RaftFollower(folder, quorum) as follower:
        image = follower.catch_up()
        follower.log.write_snapshot(rows.read(records), image.offset, image.epoch, 1)
        (snapshot,) = follower.log.snapshots()
    return snapshot.path


def test_a_shortage_of_descriptors_at_a_start(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound snapshot is not removed."""
    path = store_snapshot(tmp_path, quorum)
    follower = RaftFollower(tmp_path, quorum)
    with monkeypatch.context() as patch:
        patch.setattr(metadata_loader, "read_snapshot", raising(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match="Too many open files"):
            follower.loader.start()
    follower.log.close()
    assert path.exists()


@pytest.mark.parametrize("change", [(), (ABORT,), (END,)])
def test_a_snapshot_with_records_of_a_transaction(
    tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture, change: tuple[Row, ...]
) -> None:
    """No image has such records, so the snapshot is not used, like any damaged one; the log has all records."""
    path = store_snapshot(tmp_path, quorum, rows.feature("metadata.version", 30), BEGIN, rows.topic("a", 1), *change)
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()
    damage = f"{path}: expected records of an image, found BeginTransactionRecord (batch at offset 1)"
    assert f"{path} cannot be used, and is removed: {damage}" in caplog.messages


def test_a_snapshot_without_the_first_partition_of_a_topic(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The records of the log are read from its beginning in place of the unusable snapshot."""
    quorum.append(rows.topic("a", 1), rows.partition(1))
    quorum.commit()
    store_snapshot(tmp_path, quorum, rows.topic("a", 1), rows.partition(1, PartitionId=1))
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()
