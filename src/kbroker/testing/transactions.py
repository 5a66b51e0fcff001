"""Transactions of a broker for tests: delayed end markers, and the offsets of decided records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from kbroker.coordinator.transaction_service import PartitionMarkers
from kbroker.protocol.records import RecordBatch, iter_batches

READ_BYTES = 1 << 20
_COMMIT = b"\0\1"  # type of a commit marker, after the version of its key


class HeldMarkers:
    """End markers that are delayed; made by ``EmbeddedBroker.hold_markers``.

    As a context manager it releases them at the end of the block. Threads: any.
    """

    def __init__(self, markers: PartitionMarkers, topic: str | None) -> None:
        self._markers = markers
        self._topic = topic
        self._lock = threading.Lock()
        self._partitions: set[tuple[str, int]] = set()
        self._is_held = self._hold  # one object, for identity checks
        markers.is_held = self._is_held

    def __enter__(self) -> HeldMarkers:
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()

    @property
    def is_active(self) -> bool:
        """Return whether this object delays markers now: it was not released, and no later one has replaced it."""
        return self._markers.is_held is self._is_held

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """The partitions, as topic and index, whose markers were delayed so far."""
        with self._lock:
            return set(self._partitions)

    def release(self) -> None:
        """Release the markers: the broker writes them at its next try, 0.1 to 5 s later by its clock. Idempotent."""
        if self.is_active:
            self._markers.is_held = None

    def _hold(self, place: tuple[str, int]) -> bool:
        if self._topic is not None and place[0] != self._topic:
            return False
        with self._lock:
            self._partitions.add(place)
        return True


def decided_offsets(log: Any) -> set[int]:
    """Return the offsets of the records of a log that a read_committed consumer gets."""
    decided: set[int] = set()
    open_batches: dict[int, list[range]] = {}
    for batch in batches_of(log, log.last_stable_offset):
        offsets = range(batch.base_offset, batch.last_offset + 1)
        if batch.is_control:
            ((_, _, key, _, _),) = batch.records()
            ranges = open_batches.pop(batch.producer_id, [])
            if (key or b"")[2:4] == _COMMIT:
                for each in ranges:
                    decided.update(each)
        elif batch.is_transactional:
            open_batches.setdefault(batch.producer_id, []).append(offsets)
        else:
            decided.update(offsets)
    return decided


def batches_of(log: Any, end: int) -> Iterator[RecordBatch]:
    """Yield the record batches of a log that begin before an offset."""
    offset = log.log_start_offset
    while offset < end:
        next_offset = end
        for batch in iter_batches(memoryview(log.read(offset, READ_BYTES).records), allow_truncated=True):
            next_offset = batch.last_offset + 1
            if batch.last_offset >= offset and batch.base_offset < end:
                yield batch
        offset = max(next_offset, offset + 1)
