"""Share partition on a virtual clock: a persister in memory, artificial batches, and members that fetch them."""

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast
from uuid import UUID

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.share.persister import ShareState, StateBatch, StateChange
from kbroker.coordinator.share.share_coordinator import ShareStatePersister
from kbroker.share.acquisition import AcquireMode
from kbroker.share.fetched import AcquiredRecords, Fetched
from kbroker.share.group_configs import ShareGroupConfigs
from kbroker.share.share_partition import AcknowledgementBatch, SharePartition, SharePartitionKey
from kbroker.share.share_sensors import ShareSensors

TOPIC_ID = UUID(int=1)
KEY = SharePartitionKey("g", TOPIC_ID, "t", 0)
LOCK_MS = 30_000
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class MemoryPersister:
    """State of share partitions by offset.

    ``error``: error of each later call. ``during_write``: called once, in the next write, before its effect.
    """

    def __init__(self) -> None:
        self.offsets: dict[int, tuple[int, int]] = {}
        self.start_offset = -1
        self.complete_count = -1
        self.state_epoch = 0
        self.error = Errors.NONE
        self.during_write: Callable[[], None] | None = None
        self.writes: list[list[StateBatch]] = []

    def read_state(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        self._check()
        live = sorted((offset, *state) for offset, state in self.offsets.items() if offset >= self.start_offset)
        batches = []
        for _, run in groupby(enumerate(live), lambda one: (one[1][0] - one[0], one[1][1:])):
            rows = [row for _, row in run]
            batches.append(StateBatch(rows[0][0], rows[-1][0], rows[0][1], rows[0][2]))
        return ShareState(self.state_epoch, self.start_offset, self.complete_count, leader_epoch, batches)

    def write_state(self, group_id: str, topic_id: UUID, partition: int, change: StateChange) -> None:
        during, self.during_write = self.during_write, None
        if during is not None:
            during()
        self._check()
        self.start_offset, self.complete_count = change.start_offset, change.delivery_complete_count
        self.writes.append(list(change.batches))
        for first, last, state, count in change.batches:
            self.offsets.update((offset, (state, count)) for offset in range(first, last + 1))

    def _check(self) -> None:
        if self.error is not Errors.NONE:
            raise KafkaError(self.error, "refused")


@dataclass
class Configs:
    """Configs of a group."""

    record_lock_duration_ms: int = LOCK_MS
    delivery_count_limit: int = 5
    max_record_locks: int = 200
    is_renew_enabled: bool = True


@dataclass
class Measured:
    """Sensors of a share partition."""

    timeouts: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def lock_timeout(self, records: int) -> None:
        self.timeouts.append(records)

    def in_flight_batch(self, records: int) -> None:
        self.batches.append(records)


def header(first: int, last: int, *, producer_id: int = -1, attributes: int = 0) -> bytes:
    """Return the header of a batch without records."""
    fields = first, 49, 0, 2, 0, attributes, last - first, 0, 0, producer_id, 0, -1, last - first + 1
    return struct.pack(">qiibIhiqqqhii", *fields)


class ShareBench:
    """Share partition over batches that a test defines by their first and last offsets."""

    def __init__(
        self, *batches: tuple[int, int], persister: MemoryPersister | None = None, initial_offset: int = 0
    ) -> None:
        self.clock = VirtualClock()
        self.timer = Timer(self.clock)
        self.persister = persister if persister is not None else MemoryPersister()
        self.configs = Configs()
        self.sensors = Measured()
        self.batches = list(batches)
        self.initial_offset = initial_offset
        self.wakes = 0
        self.partition = self.load()

    def load(self) -> SharePartition:
        """Return a share partition that has read its state."""
        self.partition = self.new(lambda: self.initial_offset, self._wake)
        with suppress(KafkaError):
            self.partition.initialize()
        return self.partition

    def new(self, initial_offset: Callable[[], int], wake: Callable[[], object]) -> SharePartition:
        """Return a share partition that has not read its state."""
        return SharePartition(
            KEY,
            0,
            cast(ShareGroupConfigs, self.configs),
            self.timer,
            self.clock,
            cast(ShareStatePersister, self.persister),
            initial_offset,
            wake,
            cast(ShareSensors, self.sensors),
        )

    def _wake(self) -> None:
        self.wakes += 1

    def after(self, ms: int) -> None:
        """Advance the clock."""
        self.clock.advance_ms(ms)
        while self.timer.advance(0):
            pass

    def fetched(self, offset: int) -> Fetched:
        """Return the batches beginning with the batch that contains an offset."""
        return Fetched.of(b"".join(header(first, last) for first, last in self.batches if last >= offset))

    def fetch(
        self,
        member: str = "m",
        max_records: int = 500,
        *,
        batch_size: int = 500,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[tuple[int, int, int]]:
        """Fetch as a member; return the acquired records."""
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return []
        fetched = self.fetched(offset)
        acquired: Iterable[AcquiredRecords] = self.partition.acquire(
            member, mode, batch_size, max_records, offset, fetched
        )
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in acquired]

    def ack(self, member: str, first: int, last: int, *types: int) -> Errors | None:
        """Acknowledge records; return the error, or None if the persister has not completed the write."""
        return self.outcome(lambda done: self.partition.acknowledge(member, [batch_of(first, last, types)], done))

    def leave(self, member: str) -> Errors | None:
        """Release the records of a member; return the error, None while the outcome is open."""
        return self.outcome(lambda done: self.partition.release_member(member, done))

    def outcome(self, call: Callable[[Callable[[KafkaError | None], None]], None]) -> Errors | None:
        """Return the error with which a call was completed, or None if it is not completed."""
        found: list[KafkaError | None] = []
        call(found.append)
        assert len(found) < 2
        return None if not found else Errors.NONE if found[0] is None else found[0].error

    def states(self) -> dict[int, tuple[str, int]]:
        """Return the letter of the state and the delivery count of each offset in flight."""
        letters = {0: "v", 1: "a", 2: "k", 4: "x"}
        return {
            offset: (letters[run.state], run.delivery_count)
            for batch in self.partition.window.batches
            for run in batch.runs
            for offset in range(run.first_offset, run.last_offset + 1)
        }


def batch_of(first: int, last: int, types: Sequence[int]) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, types)
