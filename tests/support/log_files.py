"""Small logs for tests: batches with known values, and the batches in a folder or a read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from kbroker._core.clock import BaseClock, VirtualClock
from kbroker._core.codec.crc32c import crc32c
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.batch_format import BATCH_HEADER_BYTES
from kbroker.protocol.records import CompressionType, Record, build_batch
from tests.support import wire
from tests.support.closing import close_at_end

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def batch(*values: bytes, timestamp_ms: int = NOW_MS, **options: Any) -> bytes:
    return build_batch([Record(key=None, value=v, timestamp_ms=timestamp_ms) for v in values], **options)


def gzip_batch(*values: bytes, **options: Any) -> bytes:
    return batch(*values, compression=CompressionType.GZIP, **options)


def with_field(data: bytes, at: int, size: int, value: int, *, fix_crc: bool = True) -> bytes:
    """Return a batch with one header field changed and, by default, a matching checksum."""
    out = bytearray(data)
    out[at : at + size] = value.to_bytes(size, "big", signed=value < 0)
    if fix_crc:
        out[17:21] = crc32c(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def crc_ok(data: bytes) -> bool:
    return crc32c(data[21:]) == int.from_bytes(data[17:21], "big")


def read_all(log: PartitionLog, start: int | None = None) -> list[bytes]:
    """Return every batch from the log start offset or ``start`` to the end of the log, an error or a damaged batch."""
    offset, found = log.log_start_offset if start is None else start, list[bytes]()
    while True:
        got = log.read(offset, 1 << 20)
        batches = wire.split(got.records)
        if got.error or not batches:
            return found
        found += batches
        after = wire.offset_after(batches[-1]) if len(batches[-1]) >= BATCH_HEADER_BYTES else offset
        if after <= offset:  # a damaged batch
            return found
        offset = after


def base_of(data: bytes) -> int:
    return int.from_bytes(data[:8], "big")


def open_log(
    folder: Path | None, clock: VirtualClock | None = None, *, config: dict[str, Any] | None = None, **options: Any
) -> PartitionLog:
    log = PartitionLog(folder, "t", 0, TOPIC_ID, config or {}, clock or VirtualClock(NOW_MS), **options)
    return close_at_end(log, clean=False)


def write_transactional(log: PartitionLog, sequence: int = 0, *, producer_id: int = 7, epoch: int = 0) -> int:
    """Append a record of a transaction after its verification, and return its offset."""
    error, guard = log.start_verification(producer_id, epoch, sequence)
    assert error == 0
    producer = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence, "transactional": True}
    info = log.append(batch(b"v", **producer), verification_guard=guard)
    assert info.error == 0
    return info.base_offset


def memory_log(
    topic: str = "t",
    partition: int = 0,
    clock: BaseClock | None = None,
    topic_id: bytes | UUID = TOPIC_ID,
    config: Mapping[str, Any] | None = None,
) -> PartitionLog:
    log = PartitionLog(None, topic, partition, topic_id, config or {}, clock or VirtualClock(NOW_MS), in_memory=True)
    return close_at_end(log, clean=False)
