"""Acquisition of fetched records by a member: new ones, released ones, gaps; the limits of a delivery.

Records near the limit of deliveries are delivered in smaller and smaller groups, and finally alone, so that a bad
record is found and archived without its neighbours.

Source: ``SharePartition.acquire`` and the methods that it calls.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.share.fetched import AcquiredRecords, Fetched
from kbroker.share.in_flight import AcquisitionLock, InFlightBatch, InFlightRun, RecordState
from kbroker.share.window import InFlightWindow

MIN_THROTTLED_DELIVERIES = 2

#: Locks records for a member, from a first to a last offset, and returns the lock.
LockRecords = Callable[[str, int, int], AcquisitionLock]


class AcquireMode(enum.IntEnum):
    """Modes of a ShareFetch (KIP-1206). BATCH_OPTIMIZED acquires whole batches, RECORD_LIMIT at most MaxRecords."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquireLimits(NamedTuple):
    """Limits of one acquisition: of the request, and of the group."""

    mode: AcquireMode
    batch_size: int
    max_records: int
    max_in_flight: int
    max_delivery_count: int

    @property
    def throttled_deliveries(self) -> int:
        """Number of deliveries from which records are delivered in smaller groups."""
        return max(MIN_THROTTLED_DELIVERIES, (self.max_delivery_count + 1) // 2)

    @property
    def is_record_limit(self) -> bool:
        """Return whether the maximum number of records is strict: a batch that exceeds it is acquired in part."""
        return self.mode is AcquireMode.RECORD_LIMIT


def acquire(
    window: InFlightWindow,
    member_id: str,
    limits: AcquireLimits,
    fetch_offset: int,
    fetched: Fetched,
    lock_records: LockRecords,
) -> list[AcquiredRecords]:
    """Acquire records for a member, and return their ranges. The caller holds the share partition's lock.

    Args: ``fetch_offset``: the offset that was read; ``fetched``: the result, with at least one batch.
    """
    window.archive_stale(fetch_offset, fetched.batches[0].base_offset)
    last = fetched.last_offset
    left = min(limits.max_records, limits.max_in_flight - window.record_count)
    if left <= 0:
        if fetch_offset > window.end_offset:
            return []
        left = min(limits.max_records, window.end_offset - fetch_offset + 1)
        last = min(last, window.end_offset)
    if left <= 0 or fetched.last_offset < window.start_offset:
        return []
    return _Acquisition(window, member_id, limits, fetched, lock_records).run(last, left)


@dataclass
class _Acquisition:
    """State of one acquisition: the ranges that were ``found``, and the ``count`` of their records."""

    window: InFlightWindow
    member_id: str
    limits: AcquireLimits
    fetched: Fetched
    lock_records: LockRecords
    found: list[AcquiredRecords] = field(default_factory=list)
    count: int = 0

    def run(self, last: int, left: int) -> list[AcquiredRecords]:
        """Acquire about ``left`` of the fetched records to offset ``last``; return their ranges."""
        window = self.window
        first = base = self.fetched.batches[0].base_offset
        floor = window.floor(base)
        if floor is None:
            base = max(base, window.start_offset)
        elif floor.last_offset >= base:
            base = floor.first_offset
        batches = window.between(min(first, base), last)
        if not batches:
            self._acquire_new(base, last, left)
            return self.found
        maximum = self._acquire_known(batches, base, last, left)
        if self.count < maximum and batches[-1].last_offset < last:
            self._acquire_new(batches[-1].last_offset + 1, last, maximum - self.count)
        if self.found:
            window.acquired_to(self.found[-1].last_offset + 1)
        return self.found

    def _acquire_known(self, batches: Iterable[InFlightBatch], base: int, last: int, maximum: int) -> int:
        """Acquire the available records of batches, and the gaps between them.

        Returns: ``maximum``, or 0 if a throttled batch ends the acquisition.
        """
        gap_start = base
        first = self.fetched.batches[0].base_offset
        for batch in batches:
            if self.count >= maximum:
                break
            if self.window.has_gaps:
                if gap_start < batch.first_offset:
                    self._acquire_new(gap_start, batch.first_offset - 1, maximum - self.count)
                gap_start = batch.last_offset + 1
                if self.count >= maximum:
                    break
            is_throttled = self._is_throttled(batch, first, last)
            if is_throttled and self.count > 0:
                return 0
            is_part = batch.first_offset < first or batch.last_offset > last
            if self.limits.is_record_limit and batch.count > maximum - self.count:
                is_part = True
            acquired = 0
            if is_part or batch.is_split or is_throttled:
                if batch.is_split or batch.whole.is_available:
                    batch.is_split = True
                    acquired = self._acquire_part(batch, maximum - self.count, first, last)
            elif batch.whole.is_available:
                acquired = self._deliver(batch.whole, self.found)
            self.count += acquired
            if is_throttled and acquired > 0:
                return 0
        return maximum

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Return whether the batch has available records that were delivered ``throttled_deliveries`` times or more."""
        limit = self.limits.throttled_deliveries
        runs = batch.between(first, last) if batch.is_split else batch.runs
        return any(run.is_available and run.delivery_count >= limit for run in runs)

    def _acquire_part(self, batch: InFlightBatch, maximum: int, first: int, last: int) -> int:
        """Acquire the available records of a range of the batch, within the limits; return their number."""
        limits = self.limits
        last_delivery = limits.max_delivery_count - 1 if limits.max_delivery_count > 2 else -1
        acquired, throttled_maximum = 0, -1
        rows: list[AcquiredRecords] = []
        for run in batch.between(first, last):
            if not run.is_available:
                continue
            if run.delivery_count == last_delivery and acquired > 0:
                break  # the run is delivered alone next time
            excess = run.delivery_count - limits.throttled_deliveries
            if excess >= 0 and throttled_maximum < 0:
                throttled_maximum = max(1, batch.count >> (excess + 1))
            end = min(run.last_offset, last)
            start = max(run.first_offset, first)
            if limits.is_record_limit:
                end = min(end, start + maximum - acquired - 1)
            if acquired < throttled_maximum:
                end = min(end, start + throttled_maximum - acquired - 1)
            is_alone = run.delivery_count == last_delivery
            if is_alone:
                end = start
            acquired += self._deliver(batch.part(run, start, end), rows)
            is_full = limits.is_record_limit and acquired == maximum
            if is_alone or is_full or acquired == throttled_maximum:
                break
        self.found.extend(rows)
        return acquired

    def _deliver(self, run: InFlightRun, rows: list[AcquiredRecords]) -> int:
        """Deliver a run; add it to rows, or to the last row if its delivery count is the same; return its size."""
        lock = self.lock_records(self.member_id, run.first_offset, run.last_offset)  # first: memory may be exhausted
        run.acquire(self.member_id)
        run.hold(lock)
        row = AcquiredRecords(run.first_offset, run.last_offset, run.delivery_count)
        if rows and rows is not self.found and rows[-1][1:] == (row.first_offset - 1, row.delivery_count):
            rows[-1] = AcquiredRecords(rows[-1].first_offset, row.last_offset, row.delivery_count)
        else:
            rows.append(row)
        return row.size

    def _acquire_new(self, first: int, last: int, maximum: int) -> None:
        """Acquire records that were not in flight, to the end of the batch that exceeds the maximum."""
        window, limits = self.window, self.limits
        first = max(first, window.end_offset if window.is_empty else window.start_offset)
        if first > last:
            return  # a gap before the start of the log
        limit = last
        if maximum < last - first + 1:
            last = self.fetched.end_of_batch(first + maximum - 1)
            if window.has_gaps:
                last = min(last, limit)
        acquired_last = last
        if limits.is_record_limit and last - first + 1 > maximum:
            acquired_last = first + maximum - 1
            self._add(first, last, acquired_last)
        else:
            for start, end in self._split(first, last):
                self._add(start, end, end)
        if window.batches[0].first_offset == first:
            window.start_offset = first
        window.end_offset = max(window.end_offset, last)
        window.acquired_to(acquired_last + 1)
        self.count += acquired_last - first + 1

    def _split(self, first: int, last: int) -> Iterable[tuple[int, int]]:
        """Yield ranges at batch boundaries, each with at least the batch size except the last one."""
        limits = self.limits
        size = max(1, limits.batch_size)  # the client's value, maybe below 1: a range must not be empty
        if not limits.is_record_limit and last - first + 1 > size:
            for batch in self.fetched.batches:
                if batch.base_offset > last:
                    break
                if batch.base_offset - first >= size:
                    yield first, batch.base_offset - 1
                    first = batch.base_offset
        yield first, last

    def _add(self, first: int, last: int, acquired_last: int) -> None:
        """Add a batch whose records up to ``acquired_last`` are acquired and the rest available."""
        run = InFlightRun(first, last, RecordState.AVAILABLE, 0)
        batch = InFlightBatch(run)
        if acquired_last < last:
            batch.is_split = True
            self.window.is_next_unknown = True
            run = batch.part(run, first, acquired_last)
        self._deliver(run, self.found)
        self.window.add(batch)
