"""Concurrent reads, appends, retention and flushes: reads return whole batches in order, below the end."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from kbroker._core.clock import VirtualClock
from kbroker.log._partition import take_failures
from kbroker.log._partition_log import PartitionLog
from kbroker.log.segment._segment import OpenFileCache
from tests.native import racing_reads
from tests.support.log_files import NOW_MS, base_of, batch, crc_ok, open_log
from tests.support.wire import split

APPENDS = 1500


def test_readers_and_writers_together(tmp_path: Path) -> None:
    """Two appenders, three readers, retention and flushes cause no gap, torn batch or error."""
    config = {"segment.bytes": 3000, "index.interval.bytes": 300, "retention.bytes": 60_000, "flush.messages": 3}
    log = open_log(tmp_path / "t-0", config=config, files=OpenFileCache(4))
    failures: list[str] = []
    done = threading.Event()

    def guard(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            failures.append(repr(error))

    def append() -> None:
        for i in range(APPENDS):
            result = log.append(batch(b"x" * (i % 90), b"y"))
            if result.error or result.last_offset != result.base_offset + 1:
                failures.append(str(result))

    def tail() -> None:
        offset = 0
        while not (done.is_set() and offset >= log.high_watermark):
            offset = one_read(log, offset, failures)

    def keep_house() -> None:
        while not done.is_set():
            log.flush()
            log.apply_retention(NOW_MS)
            log.purge_deleted(NOW_MS + 60_000)
            log.probe(log.log_start_offset)

    appenders = [threading.Thread(target=guard, args=(append,)) for _ in range(2)]
    others = [threading.Thread(target=guard, args=(work,)) for work in (tail, tail, keep_house)]
    for thread in [*others, *appenders]:
        thread.start()
    for thread in appenders:
        thread.join(60)
    log.flush()
    done.set()
    for thread in others:
        thread.join(60)
    assert not failures, failures[:5]
    assert log.high_watermark == 4 * APPENDS
    log.close()


def one_read(log: PartitionLog, offset: int, failures: list[str]) -> int:
    got = log.read(offset, 4000)
    if got.error == 1 and offset < log.log_start_offset:
        return log.log_start_offset  # retention was faster
    if got.error:
        failures.append(f"error {got.error} at {offset}")
    for data in split(got.records):
        base = base_of(data)
        if not crc_ok(data) or base > offset or base + 2 > got.high_watermark:
            failures.append(f"batch {base} at {offset}, high watermark {got.high_watermark}")
        offset = base + 2
    return offset


def during_a_flush(log: PartitionLog, action: Callable[[], object]) -> None:
    """Call an action while another thread flushes the log."""
    start = threading.Barrier(2)

    def flush() -> None:
        start.wait()
        with contextlib.suppress(ValueError):  # the log is closed
            log.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    start.wait()
    action()
    flushing.join()


def test_flush_while_retention_renames_a_segment(tmp_path: Path) -> None:
    """A flush that misses the file of a segment, which retention renames, is not a failed sync."""
    files = OpenFileCache(1)  # the other log's file is the open one, so that the flush has to open the segment's
    clock = VirtualClock(NOW_MS)
    log = open_log(tmp_path / "t-0", clock, config={"retention.ms": 1000}, files=files)
    other = open_log(tmp_path / "u-0", clock, files=files)
    for _ in range(100):
        log.append(batch(b"a"))
        log.roll()
        log.append(batch(b"b", timestamp_ms=NOW_MS + 5000))
        other.append(batch(b"x"))
        during_a_flush(log, lambda: log.apply_retention(NOW_MS + 5000))
        assert not log.is_failed
        log.apply_retention(NOW_MS + 10_000)
        log.purge_deleted(NOW_MS + 1_000_000)


def test_flush_of_a_log_that_is_deleted(tmp_path: Path) -> None:
    """A flush that misses the files of a deleted log is not a disk failure, which would take the folder offline."""
    files = OpenFileCache(1)
    clock = VirtualClock(NOW_MS)
    other = open_log(tmp_path / "u-0", clock, files=files)
    for _ in range(150):
        log = open_log(tmp_path / "t-0", clock, files=files)
        for _ in range(4):
            log.append(batch(b"a"))
            log.roll()
        other.append(batch(b"x"))
        during_a_flush(log, log.delete)
        assert take_failures(str(tmp_path)) == []


def test_reads_while_retention_removes_their_segment() -> None:
    """A read below the high watermark returns records or OFFSET_OUT_OF_RANGE, and never succeeds without records."""
    log = open_log(None, in_memory=True, config={"retention.ms": 1000})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(racing_reads.read_until_closed, log)
        for _ in range(10_000):
            log.append(batch(b"v"))
            log.roll()
            log.append(batch(b"v"))
            log.apply_retention(NOW_MS + 5000)
            log.purge_deleted(NOW_MS + 100_000)
        log.close()
        reads, without_effect = reading.result()
    assert (reads > 0, without_effect) == (True, 0)


def test_offset_for_timestamp_while_retention_removes_a_segment(tmp_path: Path) -> None:
    """The search opens no segment below the log start offset, whose files retention may have renamed."""
    files = OpenFileCache(1)
    log = open_log(tmp_path / "t-0", files=files)
    log.append(batch(b"a"))
    log.roll()
    log.append(batch(b"b"))
    open_log(tmp_path / "u-0", files=files).append(batch(b"x"))
    log.delete_records(1)
    (tmp_path / "t-0" / f"{0:020d}.log").rename(tmp_path / "t-0" / f"{0:020d}.log.deleted")
    assert [log.offset_for_timestamp(stamp).offset for stamp in (0, NOW_MS, -3)] == [1, 1, 1]
