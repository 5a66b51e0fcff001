"""Exact results of one cleaning round: batches of producers, transactions and their markers."""

from pathlib import Path

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from tests.support.compaction import CONFIG, DAY_MS, batches, compact, keyed, only_batch, records, transaction
from tests.support.log_files import NOW_MS, open_log


def test_last_batch_of_the_round_stays_empty(log: PartitionLog) -> None:
    """The round's last batch is kept without records, which preserves the log end; the next round removes it."""
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
    """An active producer's last batch is kept without records, so that a duplicate is detected after a restart."""
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


def test_aborted_data_goes_at_once(log: PartitionLog) -> None:
    """Aborted records and their index entry are removed at once, and their marker one round later gets a horizon."""
    log.append(keyed((b"a", b"1")))
    transaction(log, 5, (b"a", b"never"), commit=False)  # offsets 1, 2
    transaction(log, 5, (b"b", b"2"), commit=True)  # offsets 3, 4: the last of the producer
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
    """A commit marker gets its horizon one round after the removal of its last data, and is removed at the horizon."""
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


def test_transaction_after_the_end_of_an_early_round(log: PartitionLog) -> None:
    """Aborted records after the end of a round, in the segment where it ends, never replace a committed one."""
    log.append(keyed((b"x", b"1")))
    for i in range(40):  # the map ends the round at offset 37
        log.append(keyed((b"%d" % i, b"")))
    transaction(log, 5, (b"x", b"never"), commit=False)
    log.roll()
    end = compact(log, memory_bytes=1024).end_offset
    assert end < 41
    assert [row for row in records(log) if row[1] == b"x"] == [(0, b"x", b"1")]
    compact(log, end)
    assert [row for row in records(log) if row[1] == b"x"] == [(0, b"x", b"1")]
