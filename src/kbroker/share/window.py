"""The in-flight window of a share partition: its batches in order of offset, start and end offset, and gaps.

The window is from the start offset (SPSO) to the end offset, the last offset that was ever acquired. Without batches
both offsets are the next one to fetch.

Source: ``SharePartition`` (its cached state).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.share.persister import StateBatch
from kbroker.share.in_flight import TERMINAL, InFlightBatch, InFlightRun, RecordState

NO_OFFSET = -1


class InFlightWindow:
    """Batches in flight, by first offset. The caller holds the share partition's lock.

    ``complete_count``: records at or after the start offset that are acknowledged or archived, or about to be.
    ``is_next_unknown``: records before the end offset may be available. ``gap_start`` and ``gap_end`` bound the offsets
    between the batches of the stored state that were never acquired; they are acquired while the window still ends at
    ``gap_end``.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.complete_count = 0
        self.is_next_unknown = False
        self.gap_start = NO_OFFSET
        self.gap_end = NO_OFFSET
        self.batches: list[InFlightBatch] = []
        self._firsts: list[int] = []

    # ------------------------------------------------------------ batches

    def load(self, start_offset: int, batches: Iterable[StateBatch]) -> None:
        """Load a stored state. Raises: KafkaError for a state that is not valid."""
        self.start_offset = self.end_offset = start_offset
        gap_start, previous_last = NO_OFFSET, start_offset - 1
        for first_offset, last_offset, state_id, delivery_count in batches:
            if first_offset < start_offset or last_offset < first_offset:
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"invalid stored batch {first_offset} to {last_offset}")
            if state_id not in RecordState._value2member_map_:
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Unknown record state id: {state_id}")
            if gap_start == NO_OFFSET and first_offset > previous_last + 1:
                gap_start = previous_last + 1
            previous_last = last_offset
            state = RecordState(state_id)
            self.add(InFlightBatch(InFlightRun(first_offset, last_offset, state, delivery_count)))
            if state in TERMINAL:
                self.complete_count += last_offset - first_offset + 1
        if not self.batches:
            return
        self.is_next_unknown = True
        self.end_offset = self.batches[-1].last_offset
        if gap_start != NO_OFFSET:
            self.gap_start, self.gap_end = gap_start, self.end_offset
        self.move_start()

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch. One with the same first offset is replaced."""
        index = bisect_left(self._firsts, batch.first_offset)
        if index < len(self._firsts) and self._firsts[index] == batch.first_offset:
            self.batches[index] = batch
        else:
            self._firsts.insert(index, batch.first_offset)
            self.batches.insert(index, batch)

    def floor(self, offset: int) -> InFlightBatch | None:
        """Return the last batch that begins at or before an offset, or None."""
        index = bisect_right(self._firsts, offset) - 1
        return None if index < 0 else self.batches[index]

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches that begin in a range of offsets."""
        return self.batches[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def _remove(self, count: int) -> None:
        del self._firsts[:count], self.batches[:count]

    @property
    def is_empty(self) -> bool:
        """Return whether no batch is in flight."""
        return not self.batches

    @property
    def record_count(self) -> int:
        """Number of offsets in flight."""
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def has_gaps(self) -> bool:
        """Return whether gaps of the stored state are still to be acquired."""
        return self.gap_start != NO_OFFSET and self.gap_end == self.end_offset

    def acquired_to(self, offset: int) -> None:
        """Move the start of the gaps after all records before ``offset`` were acquired; end them if none is left."""
        if self.gap_start == NO_OFFSET:
            return
        if self.gap_end == self.end_offset and offset <= self.gap_end:
            self.gap_start = offset
        else:
            self._end_gaps()

    def _end_gaps(self) -> None:
        """Forget the gaps: offsets before the first batch have no records, as after a compaction."""
        self.gap_start = self.gap_end = NO_OFFSET
        self.start_offset = max([self.start_offset, *self._firsts[:1]])

    def count_from_start(self, first: int, last: int) -> int:
        """Return the number of offsets of a range that are at or after the start offset."""
        return max(0, last - max(first, self.start_offset) + 1)

    # ------------------------------------------------------------ next offset

    def next_fetch_offset(self) -> int:
        """Return the first offset that a member may acquire; end the gaps if it is after the last batch."""
        if self.is_empty or self.start_offset > self.batches[-1].last_offset:
            self.is_next_unknown = False
            return self.end_offset
        if not self.is_next_unknown:
            return self.end_offset + 1
        gaps = self.has_gaps
        gap_start = self.gap_start
        for batch in self.batches:
            if gaps:
                if batch.first_offset > gap_start:
                    return gap_start
                gap_start = max(batch.last_offset + 1, gap_start)
            for run in batch.runs:
                if run.is_available:
                    return run.first_offset
        self.is_next_unknown = False
        if gaps:  # no record after the acquired ones is available: the gaps no longer bound the start offset
            self._end_gaps()
            self.move_start()
        return self.end_offset if self.is_empty else self.end_offset + 1

    # ------------------------------------------------------------ archiving

    def archive(self, first: int, last: int, state: RecordState, *, is_counted: bool) -> bool:
        """Archive the records of a range that are in a state. Returns: whether there were any."""
        found = False
        floor = self.floor(first)
        begin = first if floor is None else floor.first_offset
        for batch in self.between(min(begin, first), last):
            is_whole = first <= batch.first_offset and batch.last_offset <= last
            if not batch.is_split and not is_whole and batch.whole.state is state and batch.last_offset >= first:
                batch.is_split = True
            for run in batch.between(first, last):
                if run.state is not state:
                    continue
                part = batch.part(run, first, last)
                part.archive()
                if is_counted:
                    self.complete_count += part.last_offset - part.first_offset + 1
                batch.merge(part)
                found = True
        return found

    def archive_stale(self, fetch_offset: int, base_offset: int) -> None:
        """Archive available records before the first fetched batch: they were compacted or deleted."""
        if not self.batches or fetch_offset >= base_offset:
            return
        self.acquired_to(max(self.gap_start, base_offset))  # the gaps have no records there
        if self.archive(fetch_offset, base_offset - 1, RecordState.AVAILABLE, is_counted=True):
            self.move_start()

    def move_log_start(self, log_start: int) -> None:
        """Move the start offset to the start of the log, if that is after it; acquired records stay locked."""
        if log_start <= self.start_offset:
            return
        if self.is_empty:
            self.start_offset = self.end_offset = log_start
            self.complete_count = 0
            return
        removed = sum(
            min(log_start - 1, run.last_offset) - max(self.start_offset, run.first_offset) + 1
            for batch in self.batches
            for run in batch.between(self.start_offset, log_start - 1)
            if run.state in TERMINAL
        )
        self.archive(self.start_offset, log_start - 1, RecordState.AVAILABLE, is_counted=False)
        self.acquired_to(max(self.gap_start, log_start))
        self.start_offset = log_start
        self.complete_count -= removed
        self.end_offset = max(self.end_offset, log_start)
        self.move_start()

    # ------------------------------------------------------------ start offset

    def move_start(self) -> bool:
        """Move the start offset past records that are acknowledged or archived. Returns: whether it could move."""
        if not self._can_move_start():
            return False
        last_done, done_count = self._done_prefix()
        if last_done == NO_OFFSET:
            return False
        if last_done == self.batches[-1].last_offset:
            self.start_offset = self.end_offset = max(self.start_offset, last_done + 1)
            self._remove(len(self.batches))
            self.complete_count = 0
            return True
        index = bisect_right(self._firsts, last_done) - 1
        if last_done == self.batches[index].last_offset:
            self.start_offset = max(self.start_offset, self._firsts[index + 1])
            if self.has_gaps:
                self.start_offset = min(self.gap_start, self.start_offset)
            self._remove(index + 1)
        else:
            self.start_offset = max(self.start_offset, last_done + 1)
            self._remove(index)
        self.complete_count -= done_count
        return True

    def _can_move_start(self) -> bool:
        batch = self.floor(self.start_offset)
        return batch is not None and batch.run_at(self.start_offset).is_done

    def _done_prefix(self) -> tuple[int, int]:
        """Return the last of the done offsets at the front, and the number of them from the start offset on."""
        last_done, count = NO_OFFSET, 0
        gaps = self.has_gaps
        for batch in self.batches:
            if gaps and batch.last_offset >= self.gap_start:
                break
            for run in batch.runs:
                if not run.is_done:
                    return last_done, count
                last_done = run.last_offset
                count += self.count_from_start(run.first_offset, run.last_offset)
        return last_done, count
