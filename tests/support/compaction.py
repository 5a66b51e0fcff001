"""Compacted logs for tests: keyed batches, and the records that remain after compaction."""

from pathlib import Path

from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.log.log_types import CleanResult
from kbroker.protocol.records import RecordBatch, RecordBatchBuilder, iter_batches
from tests.support.control_batches import build_control_batch
from tests.support.log_files import NOW_MS, read_all

Kept = tuple[int, bytes | None, bytes | None]
DAY_MS = 86_400_000
CONFIG = {"cleanup.policy": "compact"}


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: int = 0, time_ms: int = NOW_MS, **options: object) -> bytes:
    builder = RecordBatchBuilder(codec, **options)  # type: ignore[arg-type]
    for key, value in pairs:
        builder.append(key, value, time_ms)
    return builder.build()


def marker(producer_id: int, *, commit: bool, epoch: int = 0, time_ms: int = NOW_MS) -> bytes:
    return build_control_batch(
        commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=time_ms
    )


def records(log: PartitionLog, start: int | None = None) -> list[Kept]:
    """Return (offset, key, value) of every record, including control records."""
    return [row[:1] + row[2:4] for data in read_all(log, start) for b in iter_batches(data) for row in b.records()]


def batches(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Return (base offset, last offset, number of records) of every batch."""
    return [(b.base_offset, b.last_offset, b.record_count) for data in read_all(log) for b in iter_batches(data)]


def compact(
    log: PartitionLog, first_dirty: int = 0, *, now_ms: int = NOW_MS, memory_bytes: int = 1 << 20
) -> CleanResult:
    """Clean the log once, up to the active segment."""
    result = Cleaner(memory_bytes).clean(log, first_dirty, log.segments()[-1].base_offset, now_ms=now_ms)
    assert result is not None
    return result


def only_batch(log: PartitionLog, at: int = 0) -> RecordBatch:
    return next(iter_batches(read_all(log)[at]))


def suffixes(log: PartitionLog) -> set[str]:
    assert log.directory is not None
    return {p.suffix for p in Path(log.directory).iterdir()}


def transaction(log: PartitionLog, producer_id: int, *pairs: tuple[bytes, bytes | None], commit: bool) -> None:
    options = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
    assert log.append(keyed(*pairs, **options), is_client=False).error == 0
    assert log.append(marker(producer_id, commit=commit), is_client=False).error == 0
