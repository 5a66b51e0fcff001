"""Batches of the metadata log as bytes, byte for byte as Kafka's controller writes them.

A batch contains either metadata records, with null keys, or control records. All records of a batch have its time.
Source: ``BatchBuilder``, ``RecordsIterator``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.metadata.records.control_records import decode_control, encode_control
from kbroker.metadata.records.metadata_record import UnknownRecordError, decode_record, encode_record
from kbroker.protocol._batch_builder import RecordBatchBuilder
from kbroker.protocol._records import corrupt
from kbroker.protocol.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Buffer

    from kbroker.metadata.records.control_records import ControlRecord
    from kbroker.metadata.records.metadata_record import MetadataRecord
    from kbroker.protocol._records import RecordBatch

BATCH_RECORDS = 1000  # of one batch, which a start decodes as a whole; a larger change is a transaction of batches


class MetadataBatch(NamedTuple):
    """A batch of either control records or metadata records; the other sequence is empty."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int
    control: Sequence[ControlRecord]
    records: Sequence[MetadataRecord]


def build_records(records: Iterable[MetadataRecord], base_offset: int, leader_epoch: int, timestamp_ms: int) -> bytes:
    """Build one batch of metadata records.

    Raises: ValueError: no record. UnknownRecordError, ProtocolError: as encode_record.
    """
    values: Iterable[tuple[bytes | None, bytes]] = ((None, encode_record(record)) for record in records)
    return _build(values, base_offset, leader_epoch, timestamp_ms, control=False)


def build_control(records: Iterable[ControlRecord], base_offset: int, leader_epoch: int, timestamp_ms: int) -> bytes:
    """Build one batch of control records.

    Raises: ValueError: no record. ProtocolError: as encode_control.
    """
    return _build(map(encode_control, records), base_offset, leader_epoch, timestamp_ms, control=True)


def _build(
    records: Iterable[tuple[bytes | None, bytes]],
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    *,
    control: bool,
) -> bytes:
    builder = RecordBatchBuilder(
        base_offset=base_offset, base_timestamp_ms=timestamp_ms, leader_epoch=leader_epoch, control=control
    )
    for key, value in records:
        builder.append(key, value, timestamp_ms)
    if not len(builder):
        raise ValueError("a batch of the metadata log needs a record")
    return builder.build()


def read_batches(data: Buffer, *, allow_truncated: bool = False) -> Iterator[MetadataBatch]:
    """Return an iterator over the batches of `data`, the checksum of each verified.

    Args: ``allow_truncated``: ignore an incomplete last batch.
    Raises: ProtocolError: damage, or an incomplete last batch. UnknownRecordError: a record that is not supported. Both
    messages contain the offset of the batch.
    """
    return map(metadata_batch, iter_batches(data, allow_truncated=allow_truncated))


def metadata_batch(batch: RecordBatch) -> MetadataBatch:
    """Return the records of a batch, its checksum verified. Raises: as `read_batches`."""
    control: Sequence[ControlRecord] = ()
    records: Sequence[MetadataRecord] = ()
    rows = batch.records()  # verifies the checksum: the control bit is reliable only afterwards
    try:
        if batch.is_control:
            control = [decode_control(key, value) for _, _, key, value, _ in rows]
        else:
            records = [decode_record(value) for _, _, _, value, _ in rows if value is not None]
    except UnknownRecordError as error:
        raise UnknownRecordError(f"batch at offset {batch.base_offset}: {error}") from None
    except ProtocolError as error:
        raise corrupt(error.message, batch.base_offset) from None
    if len(control) + len(records) != len(rows):
        raise corrupt("a metadata record has no value", batch.base_offset)
    return MetadataBatch(
        batch.base_offset, batch.last_offset, batch.leader_epoch, batch.max_timestamp_ms, control, records
    )
