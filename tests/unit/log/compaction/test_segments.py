"""Exact results of one cleaning round: segments and files before, after and between any two steps."""

import os
import threading
from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.log.log_types import CorruptLogError
from kbroker.log.segment._segment import OpenFileCache
from tests.support.compaction import CONFIG, DAY_MS, compact, keyed, records, suffixes
from tests.support.log_files import NOW_MS, crc_ok, open_log
from tests.support.wire import split


def test_segments_are_merged_up_to_their_size(tmp_path: Path) -> None:
    """Neighbouring segments are merged while their sizes fit into segment.bytes."""
    log = open_log(tmp_path / "t-0", config={**CONFIG, "segment.bytes": 1000})
    for i in range(8):
        log.append(keyed((b"%d" % i, b"x" * 330)))  # just over 400 bytes: two per segment, then a roll
    log.roll()
    sizes = [s.size_bytes for s in log.segments()]
    assert len(sizes) == 5
    assert max(sizes) <= 1000
    for i in range(6):
        log.append(keyed((b"%d" % i, b"y")))
    log.roll()
    result = compact(log)
    bases = [s.base_offset for s in log.segments()]
    assert (result.segments_before, result.segments_after) == (5, 5)
    assert bases == [0, 2, 4, 6, 8, 14]
    result = compact(log, 14)
    assert (result.segments_before, result.segments_after) == (5, 2)  # 0 + 0 + 0 + 800, and 400
    assert [s.base_offset for s in log.segments()] == [0, 8, 14]
    assert [row[0] for row in records(log)] == list(range(6, 14))
    assert suffixes(log) <= {".log", ".index", ".timeindex", ".snapshot", ".metadata", ""}


def test_modification_time_is_kept(tmp_path: Path) -> None:
    """A cleaned file has the latest modification time of its sources, which retention by age uses."""
    log = open_log(tmp_path / "t-0", config=CONFIG)
    for i in range(2):
        log.append(keyed((b"a", b"%d" % i), time_ms=-1))
        log.roll()
    os.utime(tmp_path / "t-0" / f"{0:020d}.log", (1_600_000_000, 1_600_000_000))
    os.utime(tmp_path / "t-0" / f"{1:020d}.log", (1_650_000_000, 1_650_000_000))
    compact(log)
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_mtime == 1_650_000_000
    assert not (tmp_path / "t-0" / f"{1:020d}.log").exists()


def test_indexes_of_a_compacted_segment(tmp_path: Path) -> None:
    """Offsets and timestamps are found by the new indexes, before and after a clean restart."""
    config = {**CONFIG, "index.interval.bytes": 100}
    folder = tmp_path / "t-0"
    log = open_log(folder, config=config)
    for i in range(200):
        log.append(keyed((b"%d" % (i % 150), b"x" * 20), time_ms=NOW_MS + i))
    log.roll()
    compact(log)
    for _ in range(2):
        facts = log.segments()[0]
        assert facts.offset_entries > 50
        assert facts.time_entries > 50
        assert facts.max_timestamp_ms == NOW_MS + 199
        for i in range(200):
            assert log.offset_for_timestamp(NOW_MS + i).offset == max(i, 50)
            assert log.read(i, 1).records[:8] == max(i, 50).to_bytes(8, "big")
        log.close()
        log = open_log(folder, config=config, clean=True, recovery_point=200)


def test_an_emptied_segment_and_its_neighbours(log: PartitionLog) -> None:
    """A segment without records remains as an empty one, which reads skip and a start accepts."""
    log.append(keyed((b"a", b"1")))
    log.roll()
    log.append(keyed((b"b", b"2")))
    log.roll()
    log.update_config({**CONFIG, "segment.bytes": 80})  # prevents merges
    log.append(keyed((b"a", b"3")))
    log.roll()
    compact(log)
    assert [(s.base_offset, s.size_bytes > 0) for s in log.segments()] == [(0, False), (1, True), (2, True), (3, False)]
    assert log.read(0).records[:8] == (1).to_bytes(8, "big")
    log.close(clean=False)
    assert log.directory is not None
    again = open_log(Path(log.directory), config=CONFIG)
    assert again.damage is None
    assert [row[0] for row in records(again)] == [1, 2]


def test_damage_is_left_for_people(tmp_path: Path) -> None:
    """A batch with a wrong checksum ends the round with an error and its position, without a change of files."""
    log = open_log(tmp_path / "t-0", config=CONFIG)
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"a", b"2")))
    log.roll()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match="offset 1"):
        compact(log)
    assert path.read_bytes() == data
    assert suffixes(log).isdisjoint({".cleaned", ".swap", ".deleted"})


def test_stop_ends_a_round(log: PartitionLog) -> None:
    """A stopped cleaner changes nothing."""
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"a", b"2")))
    log.roll()
    cleaner = Cleaner(1 << 16)
    cleaner.stop()
    assert cleaner.clean(log, 0, 2, now_ms=NOW_MS) is None
    assert len(records(log)) == 2
    assert suffixes(log).isdisjoint({".cleaned", ".swap"})


def test_reader_of_before_reads_on(tmp_path: Path) -> None:
    """Reads during repeated rounds succeed without reading new files, although the cache has only one open file."""
    log = open_log(tmp_path / "t-0", config=CONFIG, files=OpenFileCache(1))
    for i in range(40):
        log.append(keyed((b"%d" % (i % 5), b"x" * 100)))
        if i % 4 == 3:
            log.roll()
    ended, errors = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            for offset in range(0, 40, 3):
                got = log.read(offset, 1 << 16)
                if got.error or not all(map(crc_ok, split(got.records))):
                    errors.append((offset, got.error, len(got.records)))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(60):
        log.append(keyed((b"%d" % (i % 5), b"y" * 100)))
        log.roll()
        compact(log)
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("bad", [(-1, 0), (5, 4)])
def test_wrong_ranges(log: PartitionLog, bad: tuple[int, int]) -> None:
    """Offsets that are not a range raise ValueError."""
    with pytest.raises(ValueError, match="expected 0 <= first_dirty"):
        Cleaner(1 << 16).clean(log, *bad, now_ms=NOW_MS)


def test_a_closed_partition_is_left(log: PartitionLog) -> None:
    """A round over a closed or deleted partition ends without an error."""
    log.append(keyed((b"a", b"1")))
    log.roll()
    log.delete()
    assert Cleaner(1 << 16).clean(log, 0, 1, now_ms=NOW_MS) is None


# -- a stop between any two steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(1, 40))
def test_stop_between_steps(tmp_path: Path, step: int) -> None:
    """A start after kill -9 at any step has all values and no left-over file; after an error, reads of open files
    continue.
    """
    folder, config = tmp_path / "t-0", {**CONFIG, "segment.bytes": 700}
    log = open_log(folder, config=config, files=OpenFileCache(1))
    for i in range(12):
        log.append(keyed((b"%d" % (i % 4), b"%d" % i), (b"gone", None), time_ms=NOW_MS))
        if i % 2:
            log.roll()
    compact(log)
    cleaner = Cleaner(1 << 16)
    cleaner._crash_before(step)
    done = cleaner.clean(log, 0, log.segments()[-1].base_offset, now_ms=NOW_MS + DAY_MS)
    assert (done is None) == (cleaner._crash_before(0) == 0)
    values = {key: value for _ in range(2) for _, key, value in records(log)}
    assert {**values, b"gone": None} == {**{b"%d" % i: b"%d" % (8 + i) for i in range(4)}, b"gone": None}
    log.close(clean=False)
    log = open_log(folder, config=config)
    assert log.damage is None
    assert log.log_end_offset == 24
    last = {key: value for _, key, value in records(log)}
    assert last.pop(b"gone", None) is None
    assert last == {b"%d" % i: b"%d" % (8 + i) for i in range(4)}
    assert suffixes(log).isdisjoint({".cleaned", ".swap", ".deleted"})
