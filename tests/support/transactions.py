"""Transaction coordinator on a virtual clock over logs in memory, with markers that are recorded or refused."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.internal_topic import EndMarker
from kbroker.coordinator.transaction import transaction_records
from kbroker.coordinator.transaction.transaction_coordinator import (
    DescribedTransaction,
    Producer,
    TransactionCoordinator,
    TransactionSettings,
)
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
from kbroker.coordinator.transaction_service import TransactionService
from kbroker.log.scheduler import Scheduler
from kbroker.protocol.records import iter_records
from kbroker.requests.peers import transactions_of
from tests.support.closing import close_at_end
from tests.support.groups import MemoryTopic
from tests.support.server import make_bench

T0, T1, T2 = ("t", 0), ("t", 1), ("u", 0)
DEFAULTS = TransactionSettings()


@dataclass
class FakeMarkers:
    """Record of markers as (place, producer id, epoch, coordinator epoch, commit, version); errors by place."""

    written: list[tuple[TopicPartition, int, int, int, bool, int]] = field(default_factory=list)
    errors: dict[TopicPartition, Errors] = field(default_factory=dict)

    def write(self, place: TopicPartition, marker: EndMarker) -> Errors:
        error = self.errors.get(place, Errors.NONE)
        if error is Errors.NONE:
            self.written.append((place, *marker))
        return error


def service_of(topic: MemoryTopic, markers: FakeMarkers, clock: VirtualClock) -> TransactionService:
    """Return a service without running threads, whose coordinator is not started."""
    ctx = make_bench().ctx
    made = TransactionService(
        ctx.config,
        clock,
        ctx.topics,
        itertools.count(1000).__next__,
        lambda index: None,  # type: ignore[arg-type, return-value]
        partial(transactions_of, ctx),
    )
    ctx.transaction_service.started = close_at_end(made, timeout_s=1)
    topic.created = True
    made.coordinator._topic = made.coordinator.runtime._topic = topic
    made.coordinator._sender._markers = markers
    return made


@dataclass
class Transactions:
    """Coordinator with short forms of the requests of producers. ``settings``: of the coordinator."""

    settings: TransactionSettings = DEFAULTS
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    markers: FakeMarkers = field(default_factory=FakeMarkers)
    ids: Any = field(default_factory=lambda: itertools.count(1000))

    def __post_init__(self) -> None:
        if self.topic is None:
            self.topic = MemoryTopic(self.clock)
            self.topic.created = True
        self.scheduler = close_at_end(Scheduler(self.clock))
        self.coordinator = TransactionCoordinator(
            self.clock, self.topic, lambda: next(self.ids), self.markers, self.scheduler, self.settings
        )
        self.coordinator.start()
        self.scheduler.run_due()

    def restart(self) -> Transactions:
        """Return another coordinator over the same log, as after a kill."""
        self.scheduler.close()
        return Transactions(self.settings, self.clock, self.topic, self.markers, self.ids)

    def after(self, ms: int) -> None:
        """Advance the clock in steps, so that timers expire in the order of their deadlines."""
        while ms > 0:
            step = min(ms, 100 if ms <= 5_000 else 1_000 if ms < 60_000 else 10_000)
            self.clock.advance_ms(step)
            self.scheduler.run_due()
            ms -= step

    def init(self, name: str = "x", expected: Producer | None = None, timeout_ms: int = 60_000) -> Producer:
        return self.coordinator.init_producer_id(name, timeout_ms, expected)

    def add(self, producer: Producer, *places: TopicPartition, name: str = "x", version: int = 2) -> Errors:
        places = places or (T0,)
        (error,) = set(self.coordinator.add_partitions(name, *producer, places, version).values())
        return error

    def end(self, producer: Producer, commit: bool = True, name: str = "x", version: int = 2) -> Producer:
        return self.coordinator.end_transaction(name, *producer, commit, version)

    def see(self, name: str = "x") -> DescribedTransaction:
        return self.coordinator.describe(name)

    def state(self, name: str = "x") -> str:
        return self.see(name).state.label

    def metadata(self, name: str = "x") -> TransactionMetadata:
        """Return the coordinator's own state of a transactional id, which a test may change."""
        return self.coordinator.runtime.find(name).transactions[name]

    def records(self) -> list[tuple[str | None, TransactionMetadata | None]]:
        """Return the records of the log in order."""
        assert self.topic is not None
        found = []
        for log in self.topic.logs:
            assert log is not None
            for record in iter_records(log.read(0, 1 << 30).records):
                name = transaction_records.decode_key(record.key or b"")
                value = record.value
                found.append((name, None if value is None else transaction_records.decode_value(name or "", value)))
        return found
