"""Exact results of one cleaning round: remaining records and tombstones."""

from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.log.log_types import CorruptLogError
from tests.support.compaction import CONFIG, DAY_MS, batches, compact, keyed, only_batch, records
from tests.support.log_files import NOW_MS, open_log, read_all


@pytest.mark.parametrize("codec", range(5))
def test_last_value_of_each_key_stays(log: PartitionLog, codec: int) -> None:
    """The last value of a key keeps its offset and the batch's codec, and the active segment is not cleaned."""
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
    """A batch that keeps all records keeps its bytes."""
    log.append(keyed((b"a", b"1"), (b"b", b"2"), codec=4))
    before = read_all(log)
    log.roll()
    compact(log)
    assert read_all(log) == before


def test_times_and_headers_of_survivors(log: PartitionLog) -> None:
    """Remaining records keep timestamps and headers; the batch's base and maximum timestamp are recomputed."""
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
    """A rebuilt batch keeps its log append time."""
    log = open_log(tmp_path / "t-0", config={**CONFIG, "message.timestamp.type": "LogAppendTime"})
    log.append(keyed((b"a", b"1"), (b"b", b"2"), time_ms=5))
    log.append(keyed((b"a", b"3")))
    log.roll()
    compact(log)
    assert [row[:2] for row in only_batch(log).records()] == [(1, NOW_MS)]
    assert only_batch(log).is_log_append_time


def test_keyless_records_go(tmp_path: Path) -> None:
    """Records without a key, from before the topic was compacted, are removed."""
    log = open_log(tmp_path / "t-0")
    log.append(keyed((None, b"1"), (b"a", b"2")))
    log.update_config(CONFIG)
    log.roll()
    compact(log)
    assert records(log) == [(1, b"a", b"2")]


def test_tombstone_waits_for_its_horizon(log: PartitionLog) -> None:
    """The first round sets a tombstone's horizon to now + delete.retention.ms; a round at the horizon removes it."""
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
    assert only_batch(log, 1).has_delete_horizon  # the bit stays, and the value's timestamp is correct
    assert [row[1] for row in only_batch(log, 1).records()] == [NOW_MS - 7]


def test_horizon_before_1970(log: PartitionLog) -> None:
    """With a clock before 1970 a tombstone's horizon is also now + delete.retention.ms."""
    log.append(keyed((b"a", b"1"), (b"a", None)))
    log.roll()
    compact(log, now_ms=-5)
    assert only_batch(log).base_timestamp_ms == DAY_MS - 5


def test_dirty_part_only_decides(log: PartitionLog) -> None:
    """Keys are read from the first dirty offset on, and records below it are compared with these keys."""
    log.append(keyed((b"a", b"1")))
    log.append(keyed((b"b", b"2")))
    log.append(keyed((b"a", b"3")))
    log.roll()
    compact(log, 3)
    assert len(records(log)) == 3
    compact(log, 1)
    assert records(log) == [(1, b"b", b"2"), (2, b"a", b"3")]


def test_full_map_ends_the_round_early(log: PartitionLog) -> None:
    """A full map ends the round after the last whole batch, and the next round continues there."""
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
    """A batch with more keys than the map accepts raises an error with the config's name, without a change."""
    log.append(keyed(*((b"%d" % i, b"") for i in range(60))))
    log.roll()
    with pytest.raises(CorruptLogError, match=r"dedupe\.buffer\.size"):
        compact(log, memory_bytes=1024)
    assert len(records(log)) == 60
