"""The transaction index of a log as it is opened and read: no aborted record may ever look like a committed one."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.log.log_types import AbortedTransaction
from tests.support.log_files import NOW_MS, batch, open_log

PID = 7
OUT_OF_RANGE = 1
INDEX = f"{0:020d}.txnindex"


def write(log: PartitionLog, sequence: int = 0, *, producer_id: int = PID, timestamp_ms: int = NOW_MS) -> int:
    """One record of a transaction; its offset."""
    guard = log.start_verification(producer_id, 0, sequence)[1]
    data = batch(
        b"v",
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    info = log.append(data, verification_guard=guard)
    assert info.error == 0
    return info.base_offset


def aborted_log(folder: Path, aborts: int = 1) -> PartitionLog:
    """Three records of each transaction that is aborted, at 0 to 3, 4 to 7 and so on."""
    log = open_log(folder)
    for number in range(aborts):
        for sequence in range(3):
            write(log, sequence + 3 * number)
        log.append_end_marker(PID, 0, 0, False)
    return log


def test_log_that_starts_inside_a_segment(tmp_path: Path) -> None:
    """An unclean start reads the segment from its begin, not from where DeleteRecords has moved the log's start."""
    log = aborted_log(tmp_path / "t-0")
    write(log, 3, producer_id=8)
    log.delete_records(1)
    before = active_producers(log)
    log.close(clean=False)
    (tmp_path / "t-0" / INDEX).unlink()  # the crash came between the marker and its entry
    log = open_log(tmp_path / "t-0", clean=False, log_start_offset=1)
    assert log.read(1, isolation=1).aborted == [AbortedTransaction(PID, 0, 3, 4)]
    assert active_producers(log) == before
    assert log.last_stable_offset == 4


def test_index_that_cannot_be_written(tmp_path: Path) -> None:
    """The partition is not opened without it."""
    aborted_log(tmp_path / "t-0").close(clean=False)
    (tmp_path / "t-0" / INDEX).unlink()
    (tmp_path / "t-0" / INDEX).mkdir()
    with pytest.raises(OSError, match="directory"):
        open_log(tmp_path / "t-0", clean=False)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data, id="sound"),
        pytest.param(lambda data: data[:40], id="cut"),
        pytest.param(lambda data: data + bytes(34) + data[:20], id="longer"),
        pytest.param(lambda data: data[:34] + bytes([0, 0, 0, 9]) + data[38:], id="other entry"),
        pytest.param(lambda data: bytes([9]) + data[1:], id="other version"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_index_after_an_unclean_stop(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """It is what the batches say; a file that says so already is not written, for the disk may be full."""
    log = aborted_log(tmp_path / "t-0", 3)
    expected = log.read(0, isolation=1).aborted
    assert len(expected) == 3
    log.close(clean=False)
    file = tmp_path / "t-0" / INDEX
    right = file.read_bytes()
    file.write_bytes(damage(right))
    before = file.stat()
    log = open_log(tmp_path / "t-0", clean=False)
    assert log.read(0, isolation=1).aborted == expected
    assert file.read_bytes() == right
    if damage(right) == right:
        assert file.stat().st_ino == before.st_ino
    write(log, 9)
    log.append_end_marker(PID, 0, 0, False)
    log.close()
    assert open_log(tmp_path / "t-0").read(0, isolation=1).aborted == [*expected, AbortedTransaction(PID, 12, 13, 14)]


def test_entries_of_a_marker_that_was_cut(tmp_path: Path) -> None:
    """The index may be ahead of the log: the crash left the marker's entry, and not all of the marker."""
    log = aborted_log(tmp_path / "t-0", 2)
    log.close(clean=False)
    segment = tmp_path / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-5])
    log = open_log(tmp_path / "t-0", clean=False)
    assert (log.log_end_offset, log.last_stable_offset) == (7, 4)
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 0, 3, 4)]
    assert (tmp_path / "t-0" / INDEX).stat().st_size == 34


def test_reading_while_retention_removes_the_segment(tmp_path: Path) -> None:
    """The first read_committed fetch of a segment loads its index, whose file may go at that moment: then the offset is
    out of range, and no aborted record is given out without its entry."""
    config = {"retention.ms": 1000, "index.interval.bytes": 1 << 30}  # so that a read takes long to find its end
    log = aborted_log(tmp_path / "made")
    plain = batch(b"plain")
    for _ in range(100_000):
        log.append(plain)
    write(log, producer_id=8)
    log.roll()
    log.close()
    for index in (tmp_path / "made").glob("*index"):
        if index.name != INDEX:
            index.write_bytes(b"")
    for number in range(10):
        folder = tmp_path / f"{number}" / "t-0"
        shutil.copytree(tmp_path / "made", folder, copy_function=os.link)
        log = open_log(folder, VirtualClock(NOW_MS), config=config, clean=True)
        begin = threading.Event()

        def remove(log: PartitionLog = log, begin: threading.Event = begin) -> None:
            begin.wait()
            log.apply_retention(NOW_MS + 5000)

        retention = threading.Thread(target=remove)
        retention.start()
        begin.set()
        got = log.read(0, isolation=1)
        retention.join()
        log.close()
        assert (got.error, bool(got.records), len(got.aborted)) in ((0, True, 1), (OUT_OF_RANGE, False, 0))
