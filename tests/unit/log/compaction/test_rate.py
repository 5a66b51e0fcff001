"""Maximum rate of the cleaner's reads and writes."""

import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import ByteThrottle, Cleaner
from kbroker.log.log_types import CleanResult
from kbroker.log.segment._segment import OpenFileCache
from tests.support.compaction import CONFIG, keyed, records
from tests.support.log_files import NOW_MS, open_log


def test_rate_is_kept_by_the_clock(log: PartitionLog) -> None:
    """At 1000 bytes per second a round that reads twice and writes once takes the corresponding seconds."""
    for i in range(40):
        assert log.append(keyed((b"k%d" % i, b"v" * 100))).error == 0
    log.roll()
    size = log.segments()[0].size_bytes
    clock = VirtualClock(NOW_MS)
    done = threading.Event()
    results: list[CleanResult | None] = []
    cleaner = Cleaner(1 << 20, throttle=ByteThrottle(clock, 1000))

    def run() -> None:
        results.append(cleaner.clean(log, 0, log.segments()[-1].base_offset, now_ms=NOW_MS))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    seconds = 0
    while not done.wait(0.02):
        clock.advance_ms(1000)
        seconds += 1
        assert seconds < 3 * size
    thread.join()
    assert results[0] is not None
    assert results[0].bytes_written == size
    # each second admits 1000 bytes at most after a free 0.3 s, and a batch is charged whole
    assert seconds >= (3 * size - 300) // 1000
    assert len(records(log)) == 40


def test_a_stop_ends_the_wait_for_the_rate(log: PartitionLog) -> None:
    """A stopped round ends its wait at once without a change."""
    for i in range(10):
        assert log.append(keyed((b"k%d" % i, b"v" * 100))).error == 0
    log.roll()
    clock = VirtualClock(NOW_MS)
    cleaner = Cleaner(1 << 20, throttle=ByteThrottle(clock, 1))
    with ThreadPoolExecutor(1) as pool:
        round_ = pool.submit(cleaner.clean, log, 0, log.segments()[-1].base_offset, now_ms=NOW_MS)
        with pytest.raises(TimeoutError):
            round_.result(0.2)
        cleaner.stop()
        assert round_.result(20) is None
    assert len(records(log)) == 10


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.7976931348623157e308])
def test_no_rate_is_no_wait(log: PartitionLog, rate: float) -> None:
    """A rate of 0 or less, and Kafka's default, are unlimited; lifting a limit ends a wait."""
    log.append(keyed((b"k", b"v" * 1000)))
    log.roll()
    throttle = ByteThrottle(VirtualClock(NOW_MS), rate)
    end = log.segments()[-1].base_offset
    assert Cleaner(1 << 20, throttle=throttle).clean(log, 0, end, now_ms=NOW_MS) is not None
    throttle.set_rate(1)
    with ThreadPoolExecutor(1) as pool:
        round_ = pool.submit(Cleaner(1 << 20, throttle=throttle).clean, log, 0, end, now_ms=NOW_MS)
        with pytest.raises(TimeoutError):
            round_.result(0.2)
        throttle.set_rate(rate)
        assert round_.result(20) is not None


def test_segment_that_is_deleted_under_a_round(tmp_path: Path) -> None:
    """A round whose segment is deleted meanwhile changes nothing, and does not report a disk failure."""
    log = open_log(tmp_path / "t-0", config=CONFIG, files=OpenFileCache(1))
    for i in range(3):
        assert log.append(keyed((b"k%d" % i, b"v" * 1000))).error == 0
        log.roll()
    throttle = ByteThrottle(VirtualClock(NOW_MS), 1)
    with ThreadPoolExecutor(1) as pool:
        round_ = pool.submit(Cleaner(1 << 20, throttle=throttle).clean, log, 1, 3, now_ms=NOW_MS)
        with pytest.raises(TimeoutError):
            round_.result(0.2)  # the round reads the dirty part, and has not reached the first segment
        assert log.delete_records(1) == 1
        assert log.apply_retention(NOW_MS) == 1
        assert log.purge_deleted(NOW_MS + 1_000_000) == 1
        throttle.set_rate(0)
        assert round_.result(20) is None
    assert [offset for offset, _, _ in records(log)] == [1, 2]
