"""Record batches that were read for share partitions: aborted ones, and the part to send.

Source: ``ShareFetchUtils``, ``SharePartition.fetchAbortedTransactionRecordBatches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.log.log_types import AbortedTransaction
from kbroker.protocol._records import RecordBatch
from kbroker.protocol.control_types import ABORT
from kbroker.protocol.records import iter_batches

NO_PRODUCER = -1


class AcquiredRecords(NamedTuple):
    """A range of records that were delivered to a member, as in the response."""

    first_offset: int
    last_offset: int
    delivery_count: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last_offset - self.first_offset + 1


class Fetched(NamedTuple):
    """Records of a partition from a batch boundary on; ``batches`` leaves out an incomplete batch at their end."""

    records: bytes
    batches: Sequence[RecordBatch]
    aborted: Sequence[AbortedTransaction] = ()

    @classmethod
    def of(cls, records: bytes, aborted: Sequence[AbortedTransaction] = ()) -> Fetched:
        """Return records with their batches up to the first damage. Raises: ProtocolError if the first is damaged."""
        batches: list[RecordBatch] = []
        try:
            batches.extend(iter_batches(records, allow_truncated=True))
        except ProtocolError:
            if not batches:
                raise
            records = records[: sum(batch.size_bytes for batch in batches)]
        return cls(records, batches, aborted)

    @property
    def last_offset(self) -> int:
        """Last offset of the batches. There must be a batch."""
        return self.batches[-1].last_offset

    def end_of_batch(self, offset: int) -> int:
        """Return the last offset of the batch that contains an offset; if there is none, the offset itself."""
        found = None
        for batch in self.batches:
            if offset < batch.base_offset:
                break
            found = batch
        return found.last_offset if found is not None and offset <= found.last_offset else offset

    def slice(self, acquired: Sequence[AcquiredRecords]) -> bytes | memoryview:
        """Return the bytes of the batches from the first to the last acquired record; one batch is sent as it was read.

        ``acquired`` must not be empty.
        """
        if len(self.batches) == 1:
            return self.records
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        start = size = position = 0
        for batch in self.batches:
            if batch.base_offset <= first:
                start, size = position, batch.size_bytes
            elif batch.base_offset <= last:
                size += batch.size_bytes
            position += batch.size_bytes
        if start == 0 and size == len(self.records):
            return self.records
        return memoryview(self.records)[start : start + size]

    def aborted_batches(self) -> list[RecordBatch]:
        """Return the batches of aborted transactions."""
        waiting = sorted(self.aborted, key=lambda one: one.first_offset, reverse=True)
        producers: set[int] = set()
        found = []
        for batch in self.batches:
            if batch.producer_id == NO_PRODUCER:
                continue
            while waiting and waiting[-1].first_offset <= batch.last_offset:
                producers.add(waiting.pop().producer_id)
            if batch.is_control and _is_abort(batch):
                producers.discard(batch.producer_id)
            elif batch.is_transactional and batch.producer_id in producers:
                found.append(batch)
        return found


def _is_abort(batch: RecordBatch) -> bool:
    """Return whether a control batch is the marker of an abort: its key is a version and a type, two int16 each."""
    key = batch.records()[0][2] if batch.record_count else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == ABORT


def without(acquired: Iterable[AcquiredRecords], batches: Sequence[RecordBatch]) -> list[AcquiredRecords]:
    """Return the acquired ranges without the offsets of some batches. Both are in order of offset."""
    found = []
    left = iter(batches)
    batch = next(left, None)
    for first, last, delivery_count in acquired:
        start = first
        while batch is not None and batch.base_offset <= last:
            if batch.last_offset >= start:
                if start < batch.base_offset:
                    found.append(AcquiredRecords(start, batch.base_offset - 1, delivery_count))
                start = batch.last_offset + 1
            if batch.last_offset > last:
                break
            batch = next(left, None)
        if start <= last:
            found.append(AcquiredRecords(start, last, delivery_count))
    return found
