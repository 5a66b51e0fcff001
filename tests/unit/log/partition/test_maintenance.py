"""Flush, failed disks, retention, and ends of a log."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from tests.support.compaction import CONFIG, compact, keyed
from tests.support.log_files import NOW_MS, TOPIC_ID, base_of, batch, open_log, read_all
from tests.support.wire import split


def test_flush_interval_holds_the_high_watermark(tmp_path: Path) -> None:
    """With flush.messages the high watermark does not pass unflushed records, and the response waits."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 2})
    assert log.append(batch(b"a")).flush_offset == 0
    assert log.high_watermark == 1
    waiting = log.append(batch(b"b"))
    assert (waiting.flush_offset, waiting.high_watermark_moved, log.high_watermark) == (2, False, 1)
    assert [base_of(b) for b in split(log.read(0).records)] == [0]
    assert log.probe(1) == (0, 0, False)
    assert log.flush() == 2
    assert log.high_watermark == 2
    assert len(split(log.read(0).records)) == 2
    assert log.append(batch(b"c")).flush_offset == 0


def test_repeat_of_an_unflushed_batch_waits_too(tmp_path: Path) -> None:
    """A duplicate of an unflushed batch waits for the flush too."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 1})
    data = batch(b"x", producer_id=9, producer_epoch=1, base_sequence=0)
    assert log.append(data).flush_offset == 1
    assert log.append(data).flush_offset == 1
    log.flush()
    assert log.append(data).flush_offset == 0


def test_disk_full(log: PartitionLog) -> None:
    """A failed write gets error 56 and leaves no bytes; reads succeed, and later appends too."""
    log.append(batch(b"a"))
    size = log.size_bytes
    log._inject_fault(write_errno=28)
    assert log.append(batch(b"b" * 100)).error == 56
    assert os.path.getsize(Path(str(log.directory)) / f"{0:020d}.log") == size
    assert len(read_all(log)) == 1
    log._inject_fault()
    assert log.append(batch(b"c")).base_offset == 1


def test_failed_sync_ends_appends(tmp_path: Path) -> None:
    """After a failed sync, appends are refused until the log is reopened, and reads succeed."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 1})
    log.append(batch(b"a"))
    log.flush()
    log.append(batch(b"b"))
    log._inject_fault(sync_errno=5)
    with pytest.raises(OSError, match="5"):
        log.flush()
    log._inject_fault()
    with pytest.raises(OSError, match="5"):
        log.flush()
    assert log.append(batch(b"c")).error == 56
    assert log.high_watermark == 1
    assert log.is_failed
    assert len(read_all(log)) == 1
    log.close(clean=False)
    assert open_log(tmp_path / "t-0").append(batch(b"d")).error == 0


def test_retention_by_size(tmp_path: Path) -> None:
    """The oldest segments are deleted while the log stays at or above retention.bytes, and files after the delay."""
    size = len(batch(b"x"))
    log = open_log(tmp_path / "t-0", config={"segment.bytes": size, "retention.bytes": 3 * size, "retention.ms": -1})
    for _ in range(8):
        log.append(batch(b"x"))
    assert log.apply_retention(NOW_MS) == 5
    assert log.log_start_offset == 5
    assert log.read(4).error == 1
    assert len(read_all(log)) == 3
    assert len(list((tmp_path / "t-0").glob("*.log.deleted"))) == 5
    assert log.purge_deleted(NOW_MS + 59_999) == 0
    assert log.purge_deleted(NOW_MS + 60_000) == 5
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_retention_of_many_segments(tmp_path: Path) -> None:
    """Retention deletes 16 segments at a time, and records are appended in between; it ends at a file that fails."""
    size = len(batch(b"x" * 100))
    log = open_log(tmp_path / "t-0", config={"segment.bytes": size, "retention.bytes": size, "retention.ms": -1})
    for _ in range(41):
        log.append(batch(b"x" * 100))
    obstacle = tmp_path / "t-0" / f"{20:020}.log.deleted"
    obstacle.mkdir()
    with pytest.raises(IsADirectoryError):
        log.apply_retention(NOW_MS)
    assert log.log_start_offset == 32
    obstacle.rmdir()
    assert log.apply_retention(NOW_MS) == 8
    assert log.log_start_offset == 40
    log.close()


def test_retention_by_time(tmp_path: Path) -> None:
    """A segment is deleted when its maximum timestamp is more than retention.ms old; the active one is rolled first."""
    log = open_log(tmp_path / "t-0", config={"segment.ms": 1, "retention.ms": 1000})
    for stamp in (NOW_MS, NOW_MS + 10):
        log.append(batch(b"x", timestamp_ms=stamp))
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1001) == 1
    assert log.apply_retention(NOW_MS + 5000) == 1
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert log.apply_retention(NOW_MS + 9000) == 0  # the empty active segment stays
    assert log.append(batch(b"x")).base_offset == 2


def test_rules_of_retention_follow_each_other(tmp_path: Path) -> None:
    """The rule of age begins at the first segment that the log start offset and the size keep, as in Kafka: a young
    segment below the log start offset does not protect the old one after it.
    """
    size = len(batch(b"x"))
    config = {"segment.bytes": size, "retention.ms": 1000, "retention.bytes": 3 * size}
    log = open_log(tmp_path / "t-0", config=config)
    for stamp in (9000, 9000, 0, 9000, 0):
        log.append(batch(b"x", timestamp_ms=NOW_MS + stamp))
    log.delete_records(1)
    assert log.apply_retention(NOW_MS + 2000) == 3
    assert log.log_start_offset == 3


def test_a_segment_that_cannot_be_renamed_is_reported(tmp_path: Path) -> None:
    """The deletion is complete for readers; the error is raised, as the file would be loaded at the next start."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": len(batch(b"x")), "retention.ms": 1000})
    for _ in range(3):
        log.append(batch(b"x"))
    (tmp_path / "t-0" / f"{0:020}.log.deleted").mkdir()
    with pytest.raises(IsADirectoryError):
        log.apply_retention(NOW_MS + 2000)
    assert log.log_start_offset == 3
    assert (tmp_path / "t-0" / f"{1:020}.log.deleted").is_file()
    assert log.purge_deleted(NOW_MS + 200_000) == 3
    assert not (tmp_path / "t-0" / f"{0:020}.log").exists()


def test_delete_records(tmp_path: Path) -> None:
    """The log start offset only rises, up to the high watermark, and retention deletes whole segments below it."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 75})
    for _ in range(4):
        log.append(batch(b"x"))
    assert log.delete_records(2) == 2
    assert log.delete_records(1) == 2
    with pytest.raises(ValueError, match="high watermark"):
        log.delete_records(5)
    assert log.read(1).error == 1
    assert base_of(log.read(2).records) == 2
    assert log.apply_retention(NOW_MS) == 2
    assert log.delete_records(-1) == 4


def test_reads_survive_deletion(tmp_path: Path) -> None:
    """update_config applies at once; delete removes the folder and closes the log."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"x"))
    log.update_config({"max.message.bytes": 10})
    assert log.append(batch(b"x")).error == 10
    with pytest.raises(ValueError, match=r"segment\.bytes"):
        log.update_config({"segment.bytes": 0})
    log.delete()
    assert log.is_closed
    assert log.append(batch(b"x")).error == 10
    assert not list(tmp_path.iterdir())
    log.update_config({})
    assert log.append(batch(b"x")).error == 3
    with pytest.raises(ValueError, match="closed"):
        log.roll()


def test_in_memory() -> None:
    """An in-memory log appends, rolls, reads and deletes without a folder."""
    log = open_log(None, config={"segment.bytes": 300, "retention.bytes": 300}, in_memory=True)
    for _ in range(20):
        log.append(batch(b"x" * 50))
    assert len(read_all(log)) == 20
    assert len(log.segments()) > 5
    log.flush()
    log.apply_retention(NOW_MS)
    assert len(log.segments()) <= 3
    assert log.append(batch(b"x")).base_offset == 20
    log.delete()


@pytest.mark.parametrize("end", [PartitionLog.close, PartitionLog.delete])
def test_a_closed_log_in_memory_holds_no_descriptor(end: Callable[[PartitionLog], None]) -> None:
    """Descriptors of its segments, deleted ones included, are closed although an object refers to them."""
    os.close(free := os.dup(0))
    log = open_log(None, config={"segment.bytes": 300, "retention.bytes": 300}, in_memory=True)
    for _ in range(20):
        log.append(batch(b"x" * 50))
    log.apply_retention(NOW_MS)
    os.close(taken := os.dup(0))
    assert taken > free
    end(log)
    assert log.read(log.log_start_offset).error == 3
    os.close(taken := os.dup(0))
    assert taken == free


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partition": -1}, ValueError),
        ({"topic_id": b"x"}, ValueError),
        ({"topic_id": "!!"}, ValueError),
        ({"clock": 3}, TypeError),
        ({"config": 5}, TypeError),
        ({"directory": None}, TypeError),
        ({"recovery_point": -1}, ValueError),
        ({"config": {"message.timestamp.type": "Never"}}, ValueError),
    ],
)
def test_arguments(tmp_path: Path, change: dict[str, object], error: type[Exception]) -> None:
    """Wrong arguments raise an error without creating anything."""
    given = {
        "directory": tmp_path / "a",
        "topic": "t",
        "partition": 0,
        "topic_id": TOPIC_ID,
        "config": {},
        "clock": VirtualClock(NOW_MS),
    }
    with pytest.raises(error):
        PartitionLog(**(given | change))  # type: ignore[arg-type]


def test_folder_of_another_topic(tmp_path: Path) -> None:
    """The error has the name of the file with another topic id."""
    open_log(tmp_path / "t-0").close()
    with pytest.raises(ValueError, match=r"partition\.metadata"):
        PartitionLog(tmp_path / "t-0", "t", 0, bytes(15) + b"\1", {}, VirtualClock(NOW_MS))


def test_preallocate_reserves_a_segment_and_gives_back_the_rest(tmp_path: Path) -> None:
    """The active segment has preallocated blocks; file sizes are unchanged, and sealed segments free unused blocks."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        if not hasattr(os, "posix_fallocate"):
            pytest.skip("no fallocate here")
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    if probe.stat().st_blocks * 512 < 1 << 20:
        pytest.skip("this file system reserves nothing")
    folder = tmp_path / "t-0"
    log = open_log(folder, config={"preallocate": "true", "segment.bytes": 1 << 20})
    first = folder / f"{0:020d}.log"
    assert first.stat().st_size == 0
    assert first.stat().st_blocks * 512 >= 1 << 20
    log.append(batch(b"x"))
    log.roll()
    second = folder / f"{1:020d}.log"
    assert second.stat().st_blocks * 512 >= 1 << 20
    assert first.stat().st_size == len(batch(b"x"))
    assert first.stat().st_blocks * 512 < 1 << 20
    log.append(batch(b"y"))
    log.close()
    assert second.stat().st_blocks * 512 < 1 << 20
    assert len(read_all(open_log(folder, config={"preallocate": True}))) == 2


def test_retention_where_there_is_no_room_for_a_new_segment(tmp_path: Path) -> None:
    """Sealed segments are deleted although no new active segment can be created on a full disk."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 100, "retention.ms": 1000})
    for i in range(3):
        assert log.append(batch(b"%d" % i * 20)).error == 0
    (tmp_path / "t-0" / f"{3:020}.log").mkdir()  # blocks the name of the next segment
    assert log.apply_retention(NOW_MS + 5000) == 2
    assert [facts.base_offset for facts in log.segments()] == [2]
    with pytest.raises(OSError, match="Is a directory"):
        log.apply_retention(NOW_MS + 5000)
    (tmp_path / "t-0" / f"{3:020}.log").rmdir()
    assert log.apply_retention(NOW_MS + 5000) == 1
    assert log.log_start_offset == 3


def test_roll_that_fails_leaves_no_segment(tmp_path: Path) -> None:
    """After the failure the old segment accepts a smaller batch, and the log is undamaged when it is opened again."""
    folder = tmp_path / "t-0"
    log = open_log(folder, config={"segment.bytes": 300})
    assert log.append(batch(b"x" * 100)).error == 0
    (folder / f"{0:020}.timeindex").mkdir()  # the old segment cannot be sealed
    assert log.append(batch(b"y" * 100)).error == 56
    assert log.append(batch(b"z")).base_offset == 1
    (folder / f"{0:020}.timeindex").rmdir()
    log.close()
    log = open_log(folder)
    assert log.damage is None
    assert len(read_all(log)) == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_the_file_of_a_failed_roll_hides_no_record(tmp_path: Path, clean: bool, is_last: bool) -> None:
    """An empty segment file inside another segment, which could not be removed after a failed roll, is removed."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for _ in range(4):
        assert log.append(batch(b"x")).error == 0
    if not is_last:
        log.roll()
        assert log.append(batch(b"x")).error == 0
    end = log.log_end_offset
    log.close(clean)
    for base in (1, 3):
        (folder / f"{base:020}.log").touch()
    log = open_log(folder, clean=clean)
    assert (log.damage, log.cut, log.append(batch(b"y")).base_offset) == (None, None, end)
    assert len(read_all(log)) == end + 1
    assert [facts.base_offset for facts in log.segments()] == ([0] if is_last else [0, 4])


@pytest.mark.parametrize("clean", [True, False])
def test_the_file_of_a_failed_roll_inside_a_compacted_segment(tmp_path: Path, clean: bool) -> None:
    """The file of a failed roll does not make a gap before a batch look like a wrong offset."""
    folder = tmp_path / "t-0"
    log = open_log(folder, config=CONFIG)
    for _ in range(3):
        assert log.append(keyed((b"k", b"v"))).error == 0
    log.roll()
    assert log.append(keyed((b"k", b"w"))).error == 0
    compact(log)
    log.close(clean)
    (folder / f"{2:020}.log").touch()
    log = open_log(folder, config=CONFIG, clean=clean)
    assert (log.damage, [base_of(one) for one in read_all(log)]) == (None, [2, 3])
    assert [facts.base_offset for facts in log.segments()] == [0, 3]
