"""Metadata log of a follower after crashes, damage and truncation, in several segments."""

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.log import checkpoints
from kbroker.member import follower_log
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.metadata_log import MAX_BATCH_BYTES
from tests.support import metadata_images as rows
from tests.support.errors import raising
from tests.support.fake_quorum import FakeQuorum
from tests.support.raft_follower import RaftFollower

LEVEL = rows.feature("metadata.version", 30)


@pytest.fixture
def quorum() -> FakeQuorum:
    found = FakeQuorum()
    found.append(LEVEL)
    grow(found, "a", 1)
    return found


def grow(quorum: FakeQuorum, name: str, number: int) -> None:
    quorum.append(rows.topic(name, number), rows.partition(number))
    quorum.commit()


def folder_of(follower: RaftFollower) -> Path:
    return follower.log.folder


def in_segments(tmp_path: Path, quorum: FakeQuorum) -> list[Path]:
    """Fetch a log of several segments as a follower, and return their files."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.log._segment_bytes = 200
        for number in range(2, 8):
            grow(quorum, f"t{number}", number)
            follower.catch_up()
        paths = sorted(folder_of(follower).glob("*.log"))
    assert len(paths) >= 4
    return paths


def test_a_reader_keeps_its_segments_during_a_restart(tmp_path: Path, quorum: FakeQuorum) -> None:
    """The segments that another thread, such as that of the metrics, has read do not change."""
    in_segments(tmp_path, quorum)
    with RaftFollower(tmp_path, quorum) as follower:
        log = follower.log
        changes: list[Callable[[], None]] = [
            lambda: log._remove_below(log._segments[0].end_offset, 0),
            lambda: log.truncate(log._segments[-1].base_offset),
            lambda: log._restart(0),
        ]
        for change in changes:
            read = log._segments
            before = list(read)
            change()
            assert list(read) == before
            assert log._segments != read
        assert (log.start_offset, log.end_offset) == (0, 0)


@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_segments_behind_damage_are_fetched_again(
    tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    """Segments that do not follow the sound ones are removed with their indexes, and fetched again."""
    first, second, third, *_ = in_segments(tmp_path, quorum)
    third.with_suffix(".index").write_bytes(b"")  # Apache Kafka leaves such a file
    if harm == "cut":
        second.write_bytes(second.read_bytes()[:-1])
    else:
        second.unlink()
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.end_offset < int(third.stem)
        assert not third.exists()
        assert not third.with_suffix(".index").exists()
        expected = follower.log.end_offset
        assert f"{third}: expected a segment at offset {expected}; it is fetched again" in caplog.messages
        assert first.exists()
        assert follower.catch_up() == quorum.image()


def test_a_tail_that_is_no_batch(tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that a crash left after the last whole batch are cut off."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        path, size_bytes = follower.log._segments[-1].path, follower.log.size_bytes
    path.write_bytes(path.read_bytes() + bytes(5))
    with RaftFollower(tmp_path, quorum) as follower:
        assert path.stat().st_size == follower.log.size_bytes == size_bytes
        assert any(line.startswith(f"{path}: ") and "is fetched again" in line for line in caplog.messages)
        grow(quorum, "b", 2)
        assert follower.catch_up() == quorum.image()


def test_a_damaged_length_in_a_large_segment(
    tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the segment is not read into memory as one batch, and is fetched again."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        path, size_bytes = follower.log._segments[-1].path, follower.log.size_bytes
    data = path.read_bytes()
    path.write_bytes(data + data[:8] + (200 * 1024 * 1024).to_bytes(4, "big") + data[12:])
    os.truncate(path, 300 * 1024 * 1024)
    reads: list[int] = []
    pread = os.pread

    def counted(file: int, length: int, at: int) -> bytes:
        reads.append(length)
        return pread(file, length, at)

    monkeypatch.setattr(os, "pread", counted)
    with RaftFollower(tmp_path, quorum) as follower:
        assert (max(reads), path.stat().st_size) == (MAX_BATCH_BYTES, size_bytes)
        damage = f"expected a batch of up to 8388608 bytes at byte {size_bytes}, found more"
        assert f"{path}: {damage}; what follows is fetched again" in caplog.messages
        assert follower.catch_up() == image


def test_a_batch_that_is_larger_than_those_of_a_leader(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is written that the next start would not read."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        end_offset = follower.log.end_offset
        grow(quorum, "b", 2)
        data = quorum.batches[-1].data
        monkeypatch.setattr(follower_log, "MAX_BATCH_BYTES", len(data) - 1)
        with pytest.raises(ProtocolError, match=f"is larger than {len(data) - 1} bytes"):
            follower.log.append(data, 1)
        assert follower.log.end_offset == end_offset


def test_a_crash_between_a_snapshot_and_the_removal_of_the_log(tmp_path: Path, quorum: FakeQuorum) -> None:
    """A log that ends below its newest snapshot begins at the end of it; older and partial snapshots are removed."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        follower.log.write_snapshot(records_of(image, 30), image.offset, image.epoch, 1)
        grow(quorum, "b", 2)
        image = follower.catch_up()
        follower.log.write_snapshot(records_of(image, 30), image.offset, image.epoch, 1)
        older, newer = sorted(one.path for one in follower.log.snapshots())
        path = follower.log._segments[-1].path
    (partial := newer.with_name(newer.name + ".part")).write_bytes(b"x")
    path.write_bytes(b"")
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.start_offset == follower.log.end_offset == image.offset + 1
        assert [path.exists() for path in (older, newer, partial)] == [False, True, False]
        grow(quorum, "c", 3)
        assert follower.catch_up() == quorum.image()
        assert sorted(quorum.image().topics) == ["a", "b", "c"]


def test_a_log_whose_snapshot_was_removed(tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture) -> None:
    """The earlier records are fetched again, as those of the log alone are not the metadata."""
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        (snapshot,), start = follower.log.snapshots(), follower.log.start_offset
    snapshot.path.unlink()
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.start_offset == 0
        assert (
            f"{folder_of(follower)}: no snapshot of the records below {start}; it is fetched again" in caplog.messages
        )
        assert follower.catch_up() == quorum.image()


def test_a_truncation_over_several_segments(tmp_path: Path, quorum: FakeQuorum) -> None:
    """Segments of records that another leader does not have are removed."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.log._segment_bytes = 100
        follower.catch_up()
        before = follower.log.end_offset
        for number in range(2, 6):
            quorum.append(rows.topic(f"lost{number}", number), rows.partition(number))
            follower.drive()
        assert len(list(folder_of(follower).glob("*.log"))) >= 4
        assert follower.log.end_offset > before
        quorum.elect(2)
        grow(quorum, "b", 9)
        assert follower.catch_up() == quorum.image()
        assert sorted(follower.metadata.image.topics) == ["a", "b"]
        assert all(int(path.stem) <= follower.log.end_offset for path in folder_of(follower).glob("*.log"))
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()


def test_batches_are_read_in_parts(tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is read once, in order, whatever the size of a read and the offsets."""
    monkeypatch.setattr(follower_log, "INDEX_BYTES", 1)
    with RaftFollower(tmp_path, quorum) as follower:
        for number in range(2, 8):
            grow(quorum, f"t{number}", number)
        follower.catch_up()
        log = follower.log
        whole = list(log.batches(0, log.end_offset))
        monkeypatch.setattr(follower_log, "READ_BYTES", 1)
        assert list(log.batches(0, log.end_offset)) == whole
        for at in range(1, len(whole)):
            assert list(log.batches(whole[at].base_offset, log.end_offset)) == whole[at:]
            assert list(log.batches(0, whole[at].base_offset)) == whole[:at]
            assert list(log.batches(whole[at].base_offset, whole[at].base_offset)) == []


def test_a_close_whose_sync_fails(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The close is completed with a warning, and the next start continues."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "sync_descriptor", raising(OSError(errno.EIO, "Input/output error")))
            follower.log.close()
        assert f"{folder_of(follower)} cannot be synced: [Errno 5] Input/output error" in caplog.messages
        assert follower.log._descriptor == -1
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.catch_up() == quorum.image()


@pytest.mark.parametrize("begins_epoch", [False, True])
def test_no_descriptor_for_another_last_segment(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, begins_epoch: bool
) -> None:
    """After a new segment, or a truncation of several, no write goes to the file that has the closed one's number."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.log._segment_bytes = 100
        follower.catch_up()
        quorum.append(rows.topic("b", 2), rows.partition(2))
        quorum.append(rows.topic("c", 3), rows.partition(3))
        if begins_epoch:
            follower.drive()
            quorum.elect(2)
        quorum.commit()
        real = os.open

        def open_or_fail(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if str(path).endswith(".log") and not flags & os.O_CREAT:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(path, flags, mode, dir_fd=dir_fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_or_fail)
            with contextlib.suppress(OSError):
                follower.drive()
            others = [(tmp_path / f"other-{number}").open("w+b") for number in range(8)]
            for _ in range(3):
                with contextlib.suppress(OSError):
                    follower.drive()
        assert follower.catch_up() == quorum.image()
        assert [os.fstat(other.fileno()).st_size for other in others] == [0] * len(others)
        for other in others:
            other.close()
    with RaftFollower(tmp_path, quorum) as follower:
        assert follower.log.end_offset == quorum.end_offset


def test_a_damaged_state_of_the_quorum(tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture) -> None:
    """The state is ignored with a warning: the epoch of the log is used until a controller responds."""
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        path = folder_of(follower) / "quorum-state"
    path.write_text("{")
    with RaftFollower(tmp_path, quorum) as follower:
        assert (follower.observer.leader_id, follower.observer.epoch) == (-1, 1)
        assert any(line.endswith(": ignored, the controllers have the epoch") for line in caplog.messages)
        assert follower.catch_up() == quorum.image()


def test_a_damaged_topic_id(tmp_path: Path, quorum: FakeQuorum, caplog: pytest.LogCaptureFixture) -> None:
    """The file is written again, as each metadata log has the same topic id."""
    with RaftFollower(tmp_path, quorum) as follower:
        image = follower.catch_up()
        path = follower.log.folder / checkpoints.PARTITION_METADATA
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"version", b"vursion"))
    with RaftFollower(tmp_path, quorum) as follower:
        assert path.read_bytes() == whole
        assert f"{path}: expected the lines 'version: 0' and 'topic_id: ID'; it is written again" in caplog.messages
        assert follower.catch_up() == image


def test_the_progress_of_a_large_snapshot(
    tmp_path: Path, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(follower_log, "PROGRESS_BYTES", 50)
    quorum.take_snapshot()
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        (snapshot,) = follower.log.snapshots()
        size_bytes = snapshot.path.stat().st_size
    assert f"fetched {size_bytes} of {size_bytes} bytes of the snapshot" in caplog.messages
