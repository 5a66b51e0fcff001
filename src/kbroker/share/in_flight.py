"""Records in flight of a share partition: batches, and their runs of consecutive records in the same state.

Kafka tracks a batch as a whole or each of its offsets. A run is any number of offsets, so a batch needs memory for its
changes of state only. Nothing here locks: the share partition does.

Source: ``InFlightBatch``, ``InFlightState``, ``RecordState``, ``AcquisitionLockTimerTask``.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from kbroker._core.timer.timing_wheel import TimerTask

NO_MEMBER = ""


class RecordState(enum.IntEnum):
    """States of records, with their numbers in the stored state."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # in stored state only
    ARCHIVED = 4


class AcknowledgeType(enum.IntEnum):
    """Types of acknowledgements, with their numbers on the wire. GAP: an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


TERMINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


@dataclass(slots=True, eq=False)
class AcquisitionLock:
    """Lock of a member on the records that it acquired together, until ``due_ms``.

    ``holders``: number of runs that have the lock. The timer's task is cancelled when the last of them releases it.
    """

    member_id: str
    first_offset: int
    last_offset: int
    due_ms: int
    holders: int = 0
    has_expired: bool = False
    task: TimerTask | None = None

    def release(self) -> None:
        """Release the lock for one run; the last release cancels its expiry."""
        self.holders -= 1
        if self.holders == 0 and self.task is not None:
            self.task.cancel()
            self.task = None


class Transition:
    """Changes of state that wait for the persister. ``runs``: the runs that change, and the parts of split ones."""

    __slots__ = ("max_delivery_count", "runs")

    def __init__(self, max_delivery_count: int) -> None:
        self.max_delivery_count = max_delivery_count
        self.runs: list[InFlightRun] = []


@dataclass(slots=True, eq=False)
class InFlightRun:
    """Consecutive records of a batch that have the same state, delivery count, member and lock.

    ``previous``: state and member to which a failed transition returns. ``is_final``: the records were archived for
    good, whatever the transition's outcome is.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str = NO_MEMBER
    lock: AcquisitionLock | None = None
    transition: Transition | None = None
    previous: tuple[RecordState, str] | None = None
    is_final: bool = False

    @property
    def is_available(self) -> bool:
        """Return whether a member may acquire the records."""
        return self.state is RecordState.AVAILABLE and self.transition is None

    @property
    def is_done(self) -> bool:
        """Return whether the start offset may move past the records."""
        return self.transition is None and self.state in TERMINAL

    def hold(self, lock: AcquisitionLock) -> None:
        """Put the records under a lock."""
        self.drop_lock()
        lock.holders += 1
        self.lock = lock

    def drop_lock(self) -> None:
        """Release the lock, if there is one."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def acquire(self, member_id: str) -> None:
        """Deliver available records to a member."""
        self.state = RecordState.ACQUIRED
        self.delivery_count += 1
        self.member_id = member_id

    def release(self, max_delivery_count: int) -> None:
        """Make acquired records available, or archive them after their last delivery."""
        is_last = self.delivery_count >= max_delivery_count
        self.state = RecordState.ARCHIVED if is_last else RecordState.AVAILABLE
        self.member_id = NO_MEMBER

    def archive(self) -> None:
        """Archive the records, even if a transition in progress fails."""
        self.is_final = True
        self.state = RecordState.ARCHIVED
        self.member_id = NO_MEMBER
        self.drop_lock()

    def begin(self, transition: Transition, state: RecordState) -> None:
        """Change acquired records to a state, until the transition ends."""
        self.previous = self.state, self.member_id
        if state is RecordState.AVAILABLE:
            self.release(transition.max_delivery_count)
        else:
            self.state = state
            self.member_id = NO_MEMBER
        self.transition = transition
        transition.runs.append(self)

    def end(self, is_stored: bool) -> None:
        """Keep the new state if it is stored; else restore the previous one, or release records if the lock expired."""
        transition, previous, lock = self.transition, self.previous, self.lock
        self.transition = self.previous = None
        if is_stored or self.is_final:
            self.drop_lock()
        elif transition is not None and lock is not None and lock.has_expired:
            self.release(transition.max_delivery_count)
            self.drop_lock()
        elif previous is not None:
            self.state, self.member_id = previous

    def cut(self, offset: int) -> InFlightRun:
        """Split the run before ``offset``; return the second part."""
        rest = InFlightRun(offset, self.last_offset, self.state, self.delivery_count, self.member_id)
        rest.is_final = self.is_final
        if self.lock is not None:
            rest.hold(self.lock)
        if self.transition is not None:
            rest.transition, rest.previous = self.transition, self.previous
            self.transition.runs.append(rest)
        self.last_offset = offset - 1
        return rest

    def absorbs(self, other: InFlightRun) -> bool:
        """Return whether the next run of the batch can be merged with this one."""
        if self.transition is not None or other.transition is not None or self.state is not other.state:
            return False
        if self.state in TERMINAL:
            return True
        return (
            self.state is RecordState.AVAILABLE
            and self.delivery_count == other.delivery_count
            and self.lock is None
            and other.lock is None
        )


_first_offset = attrgetter("first_offset")


class InFlightBatch:
    """Records that were first acquired together. ``is_split``: the state of single records is tracked.

    A split batch stays one batch, as in Kafka: errors and the throttling of deliveries depend on it.
    """

    __slots__ = ("first_offset", "is_split", "last_offset", "runs")

    def __init__(self, run: InFlightRun) -> None:
        self.first_offset = run.first_offset
        self.last_offset = run.last_offset
        self.runs = [run]
        self.is_split = False

    @property
    def whole(self) -> InFlightRun:
        """The one run of a batch that is not split."""
        return self.runs[0]

    @property
    def count(self) -> int:
        """Number of offsets of the batch."""
        return self.last_offset - self.first_offset + 1

    def index_of(self, offset: int) -> int:
        """Return the index of the run that contains an offset of the batch."""
        return max(0, bisect_right(self.runs, offset, key=_first_offset) - 1)

    def run_at(self, offset: int) -> InFlightRun:
        """Return the run that contains an offset; the last run for an offset past the batch."""
        return self.runs[self.index_of(offset)]

    def cut(self, offset: int) -> bool:
        """Split runs so that one begins at ``offset``; return False if the batch lacks it or begins with it."""
        if not self.first_offset < offset <= self.last_offset:
            return False
        self.is_split = True
        index = self.index_of(offset)
        run = self.runs[index]
        if run.first_offset != offset:
            self.runs.insert(index + 1, run.cut(offset))
        return True

    def between(self, first_offset: int, last_offset: int) -> Iterator[InFlightRun]:
        """Yield the runs that overlap a range, cutting none; the caller may cut the yielded run and those before it."""
        offset = max(first_offset, self.first_offset)
        while offset <= min(last_offset, self.last_offset):
            run = self.run_at(offset)
            offset = run.last_offset + 1
            yield run

    def part(self, run: InFlightRun, first_offset: int, last_offset: int) -> InFlightRun:
        """Cut a run at both ends of a range that overlaps it; return the part within the range."""
        if run.last_offset > last_offset:
            self.runs.insert(self.index_of(run.first_offset) + 1, run.cut(last_offset + 1))
        if run.first_offset < first_offset:
            rest = run.cut(first_offset)
            self.runs.insert(self.index_of(run.first_offset) + 1, rest)
            return rest
        return run

    def merge(self, run: InFlightRun) -> None:
        """Join a run with its neighbours of the same state; no effect if the batch no longer has it."""
        index = self.index_of(run.first_offset)
        if self.runs[index] is not run:
            return
        if index + 1 < len(self.runs) and run.absorbs(self.runs[index + 1]):
            run.last_offset = self.runs.pop(index + 1).last_offset
        if index > 0 and self.runs[index - 1].absorbs(run):
            self.runs[index - 1].last_offset = run.last_offset
            del self.runs[index]
