"""Record batches (format 2) for Python: build, iterate, split into columns.

The byte grammar itself is in ``_records.pyx``, which the log uses natively. Damaged data is a ProtocolError with code
CORRUPT_MESSAGE.
"""

from typing import TYPE_CHECKING, NamedTuple

from kbroker.protocol._batch_builder import RecordBatchBuilder
from kbroker.protocol._columns import HEADERS, KEY, MILLISECONDS, OFFSET, TIMESTAMP, VALUE, ArrowColumns, BinaryColumn
from kbroker.protocol._records import DEFAULT_CAP_BYTES, RecordBatch, batch_at, corrupt
from kbroker.protocol.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Buffer

__all__ = [
    "BinaryColumn",
    "Columns",
    "CompressionType",
    "Record",
    "RecordBatch",
    "RecordBatchBuilder",
    "batch_at",
    "build_batch",
    "columns",
    "iter_batches",
    "iter_records",
]

_MAX_OFFSET = (1 << 63) - 1


class Record(NamedTuple):
    """One record. ``value`` None is a tombstone; ``headers`` are pairs of a name and bytes or None."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    headers: "Sequence[tuple[str, bytes | None]]" = ()
    offset: int = -1


class Columns(NamedTuple):
    """Records as columns; the arrays are read-only memoryviews, which numpy and Arrow wrap without a copy.

    ``offsets`` and ``timestamps_ms`` hold one int64 per record. The headers of record i are the rows
    ``header_offsets[i]`` to ``header_offsets[i + 1]`` (int32) of ``header_keys`` and ``header_values``.
    ``next_offset`` is the offset to read next, after control batches and compacted records too; -1 without a
    complete batch.
    """

    offsets: memoryview
    timestamps_ms: memoryview
    keys: BinaryColumn
    values: BinaryColumn
    header_offsets: memoryview
    header_keys: BinaryColumn
    header_values: BinaryColumn
    next_offset: int


def build_batch(
    records: "Iterable[Record | tuple[bytes | None, bytes | None]]",
    *,
    compression: CompressionType = CompressionType.NONE,
    base_offset: int = 0,
    base_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    log_append_time: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Build one batch.

    Args:
        records: Record or (key, value); a Record's offset, if not -1, determines its delta from `base_offset`.
        compression: codec of the records.
        base_offset: offset of the first record; a producer sends 0 and the broker assigns.
        base_timestamp_ms: base of the records' timestamps; default: the first record's timestamp.
        producer_id, producer_epoch, base_sequence: of an idempotent producer, else -1.
        transactional: part of a transaction.
        log_append_time: the batch's maximum timestamp is the timestamp of every record.
        leader_epoch: partition leader epoch; the broker overwrites it.

    Raises: ValueError, TypeError, OverflowError: a record that no batch can hold.
    """
    builder = RecordBatchBuilder(
        compression,
        base_offset=base_offset,
        base_timestamp_ms=base_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        log_append_time=log_append_time,
        leader_epoch=leader_epoch,
    )
    for record in records:
        key, value, timestamp_ms, headers, offset = record if isinstance(record, Record) else Record(*record)
        builder.append(key, value, timestamp_ms, headers, None if offset < 0 else offset - base_offset)
    return builder.build()


def iter_batches(data: "Buffer", *, allow_truncated: bool = False) -> "Iterator[RecordBatch]":
    """Yield the batches of `data` as views of it, without verifying checksums.

    Args:
        data: concatenated batches.
        allow_truncated: ignore an incomplete last batch, which a fetch response may have.

    Raises: ProtocolError: an impossible length, or an incomplete last batch.
    """
    position, size_bytes = 0, memoryview(data).nbytes
    while position < size_bytes:
        batch = batch_at(data, position)
        if batch is None:
            if allow_truncated:
                return
            raise corrupt(f"the batch at byte {position} is cut after {size_bytes - position} bytes")
        yield batch
        position += batch.size_bytes


def iter_records(data: "Buffer", *, allow_truncated: bool = False) -> "Iterator[Record]":
    """Yield the records of `data` without control batches; verify checksums and decompress.

    Raises: ProtocolError: damaged data, see iter_batches.
    """
    for batch in iter_batches(data, allow_truncated=allow_truncated):
        rows = batch.records()  # also of control batches: the control bit is reliable only if the checksum is right
        if not batch.is_control:
            for offset, timestamp_ms, key, value, headers in rows:
                yield Record(key, value, timestamp_ms, headers, offset)


def columns(
    data: "Buffer",
    *,
    min_offset: int = 0,
    allow_truncated: bool = False,
    include_control: bool = False,
    cap_bytes: int = DEFAULT_CAP_BYTES,
) -> Columns:
    """Return the records of `data` as columns; verify checksums and decompress, without the GIL.

    Args:
        data: concatenated batches.
        min_offset: skip records below it; a fetch response may begin before the requested offset.
        allow_truncated: ignore an incomplete last batch.
        include_control: include the records of control batches.
        cap_bytes: maximum uncompressed size of all compressed batches together.

    Raises: ProtocolError: damaged data, or more than `cap_bytes`.
    """
    reader = ArrowColumns(OFFSET | TIMESTAMP | MILLISECONDS | KEY | VALUE | HEADERS)
    end = reader.append(
        data,
        0,
        min_offset,
        _MAX_OFFSET,
        cap_bytes=cap_bytes,
        total_cap_bytes=cap_bytes,
        include_control=include_control,
    )
    if not allow_truncated and end < memoryview(data).nbytes:
        raise corrupt("the last batch is cut")
    rows, offsets, timestamps, _, keys, values, headers = reader.take()
    _, _, header_ends, header_count, header_keys, header_values = headers
    return Columns(
        offsets,
        timestamps,
        BinaryColumn(rows, keys),
        BinaryColumn(rows, values),
        header_ends,
        BinaryColumn(header_count, header_keys),
        BinaryColumn(header_count, header_values),
        reader.next_offset,
    )
