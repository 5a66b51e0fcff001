"""End markers and the last stable offset of a partition: writes, reads and restarts."""

from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.log.log_types import AbortedTransaction
from kbroker.protocol.records import iter_batches
from tests.support.compaction import marker
from tests.support.log_files import NOW_MS, batch, crc_ok, open_log, read_all, write_transactional
from tests.support.wire import split

PID = 7
BAD_EPOCH, BAD_TXN_STATE, COORDINATOR_FENCED, UNKNOWN_SERVER_ERROR = 47, 48, 52, -1


def test_marker_is_kafkas(log: PartitionLog) -> None:
    """A marker is a control record with version 0 and type as key, version 0 and coordinator epoch as value."""
    write_transactional(log, epoch=3)
    assert log.append_end_marker(PID, 3, 9, True).base_offset == 1
    data = read_all(log)[1]
    assert len(data) == 78
    assert crc_ok(data)
    (marker,) = iter_batches(data)
    assert (marker.is_control, marker.is_transactional) == (True, True)
    assert (marker.producer_id, marker.producer_epoch, marker.base_sequence) == (PID, 3, -1)
    assert (marker.base_timestamp_ms, marker.max_timestamp_ms, marker.record_count) == (NOW_MS, NOW_MS, 1)
    (record,) = marker.records()
    assert record[2:4] == (b"\0\0\0\1", b"\0\0\0\0\0\x09")
    assert log.append_end_marker(PID, 3, 9, False).error == 0
    (record,) = next(iter(iter_batches(read_all(log)[2]))).records()
    assert record[2] == b"\0\0\0\0"


def test_negative_numbers_have_kafkas_errors(log: PartitionLog) -> None:
    """An epoch below every other one is an older one; an unknown transaction version is an error of the request."""
    assert log.append_end_marker(PID, -2, 0, True).error == BAD_EPOCH
    assert log.append_end_marker(PID, 0, -2, True).error == COORDINATOR_FENCED
    assert log.append_end_marker(PID, 0, 0, True, transaction_version=-1).error == UNKNOWN_SERVER_ERROR
    assert log.append_end_marker(PID, 0, -1, True, transaction_version=-2).base_offset == 0


def test_last_stable_offset(log: PartitionLog) -> None:
    """The last stable offset is the first record of the oldest open transaction, for any later ends."""
    log.append(batch(b"plain"))
    assert log.last_stable_offset == 1
    assert (write_transactional(log), write_transactional(log, producer_id=8)) == (1, 2)
    log.append(batch(b"plain"))
    assert log.last_stable_offset == 1
    assert log.append_end_marker(8, 0, 0, True).base_offset == 4
    assert (log.last_stable_offset, log.high_watermark) == (1, 5)
    assert log.append_end_marker(PID, 0, 0, False).base_offset == 5
    assert log.last_stable_offset == 6
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 1, 5, 6)]


def test_read_committed_ends_at_the_last_stable_offset(log: PartitionLog) -> None:
    log.append(batch(b"a"))
    write_transactional(log)
    log.append(batch(b"b"))
    got = log.read(0, isolation=1)
    assert (len(split(got.records)), got.last_stable_offset, got.high_watermark) == (1, 1, 3)
    assert log.probe(0, isolation=1)[1] == len(got.records)
    assert log.probe(1, isolation=1) == (0, 0, False)
    assert log.read(2, isolation=1).records == b""
    assert log.offset_for_timestamp(NOW_MS, isolation=1).offset == 0
    log.append_end_marker(PID, 0, 0, True)
    assert len(split(log.read(0, isolation=1).records)) == 4


def test_marker_waits_for_the_disk(tmp_path: Path) -> None:
    """With flush.messages the transaction ends for readers when the marker is flushed."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 2})
    write_transactional(log)
    info = log.append_end_marker(PID, 0, 0, True)
    assert (info.error, info.flush_offset) == (0, 2)
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.flush(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


def test_marker_of_nothing(log: PartitionLog) -> None:
    """The marker of a producer without a transaction is written, and does not change the last stable offset."""
    info = log.append_end_marker(PID, 2, 4, False)
    assert (info.error, info.base_offset, log.last_stable_offset) == (0, 0, 1)
    (row,) = active_producers(log)
    assert (row.producer_epoch, row.coordinator_epoch, row.current_txn_first_offset) == (2, 4, -1)
    assert log.read(0, isolation=1).aborted == []


def test_refused_markers(log: PartitionLog) -> None:
    write_transactional(log, epoch=3)
    assert log.append_end_marker(PID, 2, 0, True).error == BAD_EPOCH
    assert log.append_end_marker(PID, 3, 0, True, transaction_version=2).error == BAD_EPOCH
    assert log.append_end_marker(PID, 4, 5, True, transaction_version=2).error == 0
    assert log.append_end_marker(PID, 4, 5, True, transaction_version=2).error == 0  # repeats a marker
    assert log.append_end_marker(PID, 4, 4, True, transaction_version=2).error == COORDINATOR_FENCED
    assert log.log_end_offset == 3


@pytest.mark.parametrize(
    ("wrong", "error"),
    [((-1, 0, 0), ValueError), ((1, 32768, 0), ValueError), ((1, 0, 2**31), ValueError), (("1", 0, 0), TypeError)],
)
def test_numbers_out_of_range(log: PartitionLog, wrong: tuple[Any, Any, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        log.append_end_marker(*wrong, commit=True)
    assert log.log_end_offset == 0


def test_marker_is_no_clients_record(tmp_path: Path) -> None:
    """Limits of clients' batches do not apply to a marker, and LogAppendTime stamps it."""
    log = open_log(tmp_path / "t-0", config={"message.timestamp.type": "LogAppendTime"})
    write_transactional(log)
    log.update_config({"max.message.bytes": 0, "message.timestamp.type": "LogAppendTime", "compression.type": "gzip"})
    assert log.append_end_marker(PID, 0, 0, True).log_append_time_ms == NOW_MS
    data = read_all(log)[1]
    assert crc_ok(data)
    assert next(iter(iter_batches(data))).is_control


def test_append_of_an_older_transaction(log: PartitionLog) -> None:
    """A guard from before a marker is refused after it."""
    guard = log.start_verification(PID, 0, 0)[1]
    log.append_end_marker(PID, 0, 0, False)
    data = batch(b"late", producer_id=PID, producer_epoch=0, base_sequence=0, transactional=True)
    assert log.append(data, verification_guard=guard).error == BAD_TXN_STATE
    assert log.last_stable_offset == log.log_end_offset == 1


def test_deleted_records_of_an_open_transaction(log: PartitionLog) -> None:
    """DeleteRecords moves the last stable offset up to the log start offset, and waiting readers continue."""
    write_transactional(log)
    log.append(batch(b"b"))
    assert log.last_stable_offset == 0
    assert log.delete_records(1) == 1
    assert log.last_stable_offset == 1
    assert log.delete_records(-1) == 2
    assert log.last_stable_offset == 2
    log.append(batch(b"c"))
    assert log.last_stable_offset == 2
    log.append_end_marker(PID, 0, 0, True)
    assert log.last_stable_offset == 4


def test_retention_past_an_open_transaction(tmp_path: Path) -> None:
    clock = VirtualClock(NOW_MS)
    log = open_log(tmp_path / "t-0", clock, config={"retention.ms": 1000})
    write_transactional(log)
    log.roll()
    log.append(batch(b"b", timestamp_ms=NOW_MS + 5000))
    assert log.apply_retention(NOW_MS + 5000) == 1
    assert (log.log_start_offset, log.last_stable_offset) == (1, 1)
    assert active_producers(log)[0].current_txn_first_offset == 0
    log.append_end_marker(PID, 0, 0, True)
    assert log.last_stable_offset == 3


@pytest.mark.parametrize("clean", [True, False])
def test_open_transaction_comes_back(tmp_path: Path, clean: bool) -> None:
    """After a clean or unclean stop, transactions are open as before, and aborted ones are listed."""
    clock = VirtualClock(NOW_MS)
    log = open_log(tmp_path / "t-0", clock)
    write_transactional(log)
    log.append_end_marker(PID, 0, 3, False)
    log.roll()
    write_transactional(log, producer_id=8)
    write_transactional(log, 1)
    log.append_end_marker(PID, 0, 3, False)
    before = active_producers(log)
    log.close(clean)
    if not clean:
        for index in (tmp_path / "t-0").glob("*.txnindex"):
            index.unlink()
    log = open_log(tmp_path / "t-0", clock, clean=clean)
    assert active_producers(log) == before
    assert log.last_stable_offset == 2
    assert log.start_verification(8, 0, 1) == (0, 0)
    log.append_end_marker(8, 0, 3, True)
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 0, 1, 2)]
    assert log.read(2, isolation=1).aborted == [AbortedTransaction(PID, 3, 4, 2)]


def test_marker_is_appended_alone(tmp_path: Path) -> None:
    """A marker in an append of several batches is refused, because its abort could not be indexed in time."""
    log = open_log(tmp_path / "t-0")
    write_transactional(log)
    together = batch(b"b") + marker(PID, commit=False)
    info = log.append(together, is_client=False)
    assert (info.error, info.message) == (87, "A control batch is appended alone")
    assert (log.log_end_offset, log.last_stable_offset, log.is_failed) == (1, 0, False)
    assert log.append(marker(PID, commit=False), is_client=False).error == 0
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 0, 1, 2)]


def test_abort_that_cannot_be_indexed(tmp_path: Path) -> None:
    """A marker whose abort cannot be indexed is not written, because aborted records would look committed."""
    log = open_log(tmp_path / "t-0")
    write_transactional(log)
    blocked = tmp_path / "t-0" / f"{0:020d}.txnindex"
    blocked.mkdir()
    assert log.append_end_marker(PID, 0, 0, False).error == 56
    assert (log.log_end_offset, log.last_stable_offset, len(read_all(log))) == (1, 0, 1)
    assert log.append(batch(b"b")).base_offset == 1
    blocked.rmdir()
    assert log.append_end_marker(PID, 0, 0, False).base_offset == 2
    assert (log.last_stable_offset, len(read_all(log))) == (3, 3)
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 0, 2, 3)]
    log.close(clean=False)
    assert len(read_all(open_log(tmp_path / "t-0", clean=False))) == 3
