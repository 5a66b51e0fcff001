"""One round of the cleaner, exactly: each row of the compaction table."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._cleaner import Cleaner
from kbroker.log._offset_map import KeyOffsets
from kbroker.log._partition_log import PartitionLog
from kbroker.log._segment import OpenFileCache
from kbroker.log._throttle import ByteThrottle
from kbroker.log.facts import CleanResult, CorruptLogError
from kbroker.protocol.records import iter_batches
from tests.support.compaction import DAY_MS, batches, compact, keyed, marker, records
from tests.support.log_files import NOW_MS, crc_ok, open_log, read_all, split

CONFIG = {"cleanup.policy": "compact"}


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "t-0", config=CONFIG)


def only_batch(log: PartitionLog, at: int = 0):
    return next(iter_batches(read_all(log)[at]))


def suffixes(log: PartitionLog) -> set[str]:
    assert log.directory is not None
    return {p.suffix for p in Path(log.directory).iterdir()}


# -- the map of keys ---------------------------------------------------------------------------------------------------


def test_key_hash_is_siphash() -> None:
    """The hash is SipHash-2-4 of 128 bits: its authors' vectors (key 0 to 15, message 0 to n - 1)."""
    keys = KeyOffsets(1024, secret=bytes(range(16)))
    assert keys.hash(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert keys.hash(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


def test_key_map_fills_to_its_load_factor() -> None:
    """A map of 1000 slots takes 900 keys and no more, but still moves those it knows."""
    keys = KeyOffsets(24 * 1000, 0.9, keys=10**9)
    assert keys.capacity == 1000
    assert [keys.put(b"%d" % i, i) for i in range(1000)] == [True] * 900 + [False] * 100
    assert len(keys) == 900
    assert keys.put(b"7", 5000)
    assert keys.get(b"7") == 5000
    assert keys.get(b"899") == 899
    assert keys.get(b"900") == -1


def test_key_map_is_as_small_as_the_work() -> None:
    """A round of few records does not take the whole buffer."""
    assert KeyOffsets(1 << 27, 0.9, keys=1000).capacity < 1300


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_last_value_of_each_key_stays(log: PartitionLog, codec: int) -> None:
    """Earlier values go, offsets stay; batches are packed again with their codec; the active segment is left alone."""
    log.append(keyed((b"a", b"1"), (b"b", b"2"), codec=codec, time_ms=NOW_MS))
    log.append(keyed((b"a", b"3"), (b"c", b"4"), (b"a", b"5"), codec=codec, time_ms=NOW_MS + 5))
    log.roll()
    log.append(keyed((b"c", b"6")))
    result = compact(log)
    assert records(log) == [(1, b"b", b"2"), (3, b"c", b"4"), (4, b"a", b"5"), (5, b"c", b"6")]
    assert batches(log) == [(0, 1, 1), (2, 4, 2), (5, 5, 1)]
    assert (result.end_offset, result.records_read, result.records_kept) == (5, 5, 3)
    batch = only_batch(log, 1)
    assert batch.compression == codec
    assert batch.is_crc_valid
    assert not batch.has_delete_horizon
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (NOW_MS + 5, NOW_MS + 5)


def test_untouched_batch_is_copied(log: PartitionLog) -> None:
    """A batch that loses nothing keeps its very bytes."""
    log.append(keyed((b"a", b"1"), (b"b", b"2"), codec=4))
    before = read_all(log)
    log.roll()
    compact(log)
    assert read_all(log) == before


def test_times_and_headers_of_survivors(log: PartitionLog) -> None:
    """Records of a batch that is built anew keep their time stamps and headers; base and largest are of those left."""
    from kbroker.protocol.records import RecordBatchBuilder

    builder = RecordBatchBuilder()
    builder.append(b"a", b"1", NOW_MS + 9)
    builder.append(b"b", b"2", NOW_MS - 300, [("h", b"x"), ("n", None)])
    builder.append(b"c", b"3", NOW_MS + 2)
    log.append(builder.build())
    log.append(keyed((b"a", b"4")))
    log.roll()
    compact(log)
    batch = only_batch(log)
    assert batch.records()[0] == (1, NOW_MS - 300, b"b", b"2", [("h", b"x"), ("n", None)])
    assert [row[:2] for row in batch.records()] == [(1, NOW_MS - 300), (2, NOW_MS + 2)]
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (NOW_MS - 300, NOW_MS + 2)


def test_log_append_time_stays(tmp_path: Path) -> None:
    """Under log append time a batch that loses records still reads as it was stamped."""
    log = open_log(tmp_path / "t-0", config={**CONFIG, "message.timestamp.type": "LogAppendTime"})
    log.append(keyed((b"a", b"1"), (b"b", b"2"), time_ms=5))
    log.append(keyed((b"a", b"3")))
    log.roll()
    compact(log)
    assert [row[:2] for row in only_batch(log).records()] == [(1, NOW_MS)]
    assert only_batch(log).is_log_append_time


def test_keyless_records_go(tmp_path: Path) -> None:
    """Records without a key, from the time when the topic was not compacted, are dropped."""
    log = open_log(tmp_path / "t-0")
    log.append(keyed((None, b"1"), (b"a", b"2")))
    log.update_config(CONFIG)
    log.roll()
    compact(log)
    assert records(log) == [(1, b"a", b"2")]


def test_tombstone_waits_for_its_horizon(log: PartitionLog) -> None:
    """The first round that meets a tombstone writes now + delete.retention.ms; one from then on drops it."""
    log.append(keyed((b"a", b"1"), (b"b", b"2")))
    log.append(keyed((b"a", None), (b"c", b"3"), time_ms=NOW_MS - 7))
    log.append(keyed((b"z", b"9")))
    log.roll()
    compact(log)
    assert records(log) == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3"), (4, b"z", b"9")]
    batch = only_batch(log, 1)
    assert batch.has_delete_horizon
    assert batch.base_timestamp_ms == NOW_MS + DAY_MS
    assert [row[1] for row in batch.records()] == [NOW_MS - 7] * 2
    assert batch.max_timestamp_ms == NOW_MS - 7
    compact(log, 5, now_ms=NOW_MS + DAY_MS - 1)
    assert (2, b"a", None) in records(log)
    compact(log, 5, now_ms=NOW_MS + DAY_MS)
    assert records(log) == [(1, b"b", b"2"), (3, b"c", b"3"), (4, b"z", b"9")]
    assert only_batch(log, 1).has_delete_horizon  # the bit stays, the value's time is right
    assert [row[1] for row in only_batch(log, 1).records()] == [NOW_MS - 7]


def test_dirty_part_only_decides(log: PartitionLog) -> None:
    """Keys are read from the first dirty offset on; what was cleaned before is compared with them."""
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"b", b"2")))
    log.append(keyed((b"a", b"3")))
    log.roll()
    compact(log, 3)
    assert len(records(log)) == 3
    compact(log, 1)
    assert records(log) == [(1, b"b", b"2"), (2, b"a", b"3")]


def test_full_map_ends_the_round_early(log: PartitionLog) -> None:
    """When the map is full the round ends at the last whole batch; the next one goes on from there."""
    for i in range(100):
        log.append(keyed((b"%d" % (i % 50), b"%d" % i)))
    log.roll()
    first = Cleaner(1024).clean(log, 0, 100, now_ms=NOW_MS)
    assert first is not None
    assert first.end_offset == 37
    assert len(records(log)) == 100
    offset = first.end_offset
    while offset < 100:
        done = Cleaner(1024).clean(log, offset, 100, now_ms=NOW_MS)
        assert done is not None
        assert done.end_offset > offset
        offset = done.end_offset
    assert [row[0] for row in records(log)] == list(range(50, 100))


def test_batch_larger_than_the_map(log: PartitionLog) -> None:
    """A batch with more keys than the map takes is an error that names the setting, and changes nothing."""
    log.append(keyed(*((b"%d" % i, b"") for i in range(60))))
    log.roll()
    with pytest.raises(CorruptLogError, match=r"dedupe\.buffer\.size"):
        compact(log, memory_bytes=1024)
    assert len(records(log)) == 60


# -- batches, producers, transactions ----------------------------------------------------------------------------------


def test_last_batch_of_the_round_stays_empty(log: PartitionLog) -> None:
    """The round's last batch is kept without records, so that the end of the log is remembered; the next round, which
    ends later, drops it."""
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"b", b"2"), leader_epoch=0))
    log.append(keyed((b"b", b"3")))
    log.roll()
    log.append(keyed((b"c", b"4")))
    log.roll()
    compact(log, 0, memory_bytes=1 << 16)
    assert batches(log) == [(0, 0, 1), (2, 2, 1), (3, 3, 1)]
    log.append(keyed((b"c", b"5")))
    log.append(keyed((b"b", None)))
    log.roll()
    compact(log, 4)
    compact(log, 6, now_ms=NOW_MS + DAY_MS)
    assert batches(log) == [(0, 0, 1), (4, 4, 1), (5, 5, 0)]
    empty = only_batch(log, 2)
    assert empty.size_bytes == 61
    assert empty.is_crc_valid
    assert empty.max_timestamp_ms == NOW_MS
    assert log.read(5).error == 0
    assert log.log_end_offset == 6


def test_last_batch_of_a_producer_stays_empty(tmp_path: Path) -> None:
    """An active producer's last batch keeps its sequence numbers, so that a repeat is still known after a restart;
    an expired producer's goes."""
    folder, clock = tmp_path / "t-0", VirtualClock(NOW_MS)
    log = open_log(folder, clock, config=CONFIG)
    producer = {"producer_id": 7, "producer_epoch": 1}
    log.append(keyed((b"a", b"1"), base_sequence=0, **producer))
    log.append(keyed((b"a", b"2"), (b"b", b"3"), base_sequence=1, **producer))
    log.append(keyed((b"a", b"4"), (b"b", b"5")))
    log.roll()
    compact(log)
    assert batches(log) == [(1, 2, 0), (3, 4, 2)]
    batch = only_batch(log)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta) == (7, 1, 1, 1)
    log.close(clean=False)
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    log = open_log(folder, clock, config=CONFIG)
    repeat = log.append(keyed((b"a", b"2"), (b"b", b"3"), base_sequence=1, **producer))
    assert repeat.is_duplicate
    assert repeat.base_offset == 1
    log.expire_producers(NOW_MS + DAY_MS)
    compact(log, 5)
    assert batches(log) == [(3, 4, 2)]


def transaction(log: PartitionLog, producer_id: int, *pairs: tuple[bytes, bytes | None], commit: bool) -> None:
    options = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
    assert log.append(keyed(*pairs, **options), is_client=False).error == 0
    assert log.append(marker(producer_id, commit=commit), is_client=False).error == 0


def test_aborted_data_goes_at_once(log: PartitionLog) -> None:
    """Aborted records do not count as values and are dropped; their marker stays a round longer, then until its
    horizon; the transaction's entry in the index goes with the data."""
    log.append(keyed((b"a", b"1")))
    transaction(log, 5, (b"a", b"never"), commit=False)  # offsets 1, 2
    transaction(log, 5, (b"b", b"2"), commit=True)  # offsets 3, 4: the producer's last
    log.append(keyed((b"c", b"3")))
    log.roll()
    compact(log)
    assert [row[:2] for row in records(log)] == [(0, b"a"), (2, b"\0\0\0\0"), (3, b"b"), (4, b"\0\0\0\1"), (5, b"c")]
    assert not only_batch(log, 1).has_delete_horizon
    assert len(log.read(0, isolation=1).aborted) == 1
    compact(log, 6)
    assert only_batch(log, 1).has_delete_horizon
    assert only_batch(log, 1).base_timestamp_ms == NOW_MS + DAY_MS
    assert log.read(0, isolation=1).aborted == []
    compact(log, 6, now_ms=NOW_MS + DAY_MS)
    assert [row[0] for row in records(log)] == [0, 3, 4, 5]


def test_commit_marker_outlives_its_data(log: PartitionLog) -> None:
    """A commit marker stays in the round that drops the last of its data; the next gives it a horizon; then it goes."""
    transaction(log, 5, (b"a", b"1"), commit=True)
    transaction(log, 5, (b"z", b"2"), commit=True)
    log.append(keyed((b"y", b"3")))
    log.roll()
    compact(log)
    assert not only_batch(log, 1).has_delete_horizon
    log.append(keyed((b"a", b"4")))
    log.roll()
    compact(log, 5)
    assert [row[0] for row in records(log)] == [1, 2, 3, 4, 5]
    assert not only_batch(log).has_delete_horizon
    compact(log, 6)
    assert only_batch(log).has_delete_horizon
    compact(log, 6, now_ms=NOW_MS + DAY_MS)
    assert [row[0] for row in records(log)] == [2, 3, 4, 5]


# -- segments ----------------------------------------------------------------------------------------------------------


def test_segments_are_merged_up_to_their_size(tmp_path: Path) -> None:
    """Neighbours are put together as long as their present sizes fit into segment.bytes."""
    log = open_log(tmp_path / "t-0", config={**CONFIG, "segment.bytes": 1000})
    for i in range(8):
        log.append(keyed((b"%d" % i, b"x" * 330)))  # 400 bytes and a little: two a segment, then a roll
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
    """Retention by age must not see a compacted file as new: it has the time of the newest it was made from."""
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
    """Offsets and times are found through the new indexes, before and after a clean opening."""
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
    """A segment that loses everything leaves an empty one; reads pass over it, and a start takes it for sound."""
    log.append(keyed((b"a", b"1")))
    log.roll()
    log.append(keyed((b"b", b"2")))
    log.roll()
    log.update_config({**CONFIG, "segment.bytes": 80})  # no merging
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
    """A batch whose checksum is wrong ends the round with an error that says where; no file is changed."""
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
    """A stopped cleaner leaves everything as it was."""
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"a", b"2")))
    log.roll()
    cleaner = Cleaner(1 << 16)
    cleaner.stop()
    assert cleaner.clean(log, 0, 2, now_ms=NOW_MS) is None
    assert len(records(log)) == 2
    assert suffixes(log).isdisjoint({".cleaned", ".swap"})


def test_reader_of_before_reads_on(tmp_path: Path) -> None:
    """A partition that is compacted again and again never refuses a read, and old views never read new files: the
    cache of open files is so small that each is opened anew."""
    import threading

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
    """Offsets that are no range are refused at the boundary."""
    with pytest.raises(ValueError, match="range"):
        Cleaner(1 << 16).clean(log, *bad, now_ms=NOW_MS)


def test_a_closed_partition_is_left(log: PartitionLog) -> None:
    """A round over a partition that was closed or deleted ends quietly."""
    log.append(keyed((b"a", b"1")))
    log.roll()
    log.delete()
    assert Cleaner(1 << 16).clean(log, 0, 1, now_ms=NOW_MS) is None


# -- a stop between any two steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(1, 40))
def test_stop_between_steps(tmp_path: Path, step: int) -> None:
    """Whatever step was the last before kill -9, the next start has the values and no left-over file; and if it was an
    error that ended it, readers go on with the files they have open, whatever the names are now."""
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


# -- how fast ----------------------------------------------------------------------------------------------------------


def test_rate_is_kept_by_the_clock(log: PartitionLog) -> None:
    """At 1000 bytes a second a round that reads twice and writes once needs as many seconds."""
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
    # every second lets at most 1000 bytes by, and 0.3 s worth are free; a batch is charged whole
    assert seconds >= (3 * size - 300) // 1000
    assert len(records(log)) == 40


def test_a_stop_ends_the_wait_for_the_rate(log: PartitionLog) -> None:
    """A round that waits for its rate ends at once when it is stopped, and nothing was changed."""
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
    """0 or less, and Kafka's default, are no limit; a limit that is lifted lets who waits go on."""
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
