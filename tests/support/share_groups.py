"""A share coordinator on a virtual clock over a log in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from kbroker._core.clock import VirtualClock
from kbroker.coordinator.share.persister import ShareState
from kbroker.coordinator.share.share_coordinator import ShareCoordinator, ShareSettings
from kbroker.coordinator.share.share_records import SharePartitionKey
from tests.support.groups import MemoryTopic

TOPIC_ID = UUID(int=7)
KEY = SharePartitionKey("g", TOPIC_ID, 0)


@dataclass
class Counts:
    """Partition counts of topics by id."""

    counts: dict[UUID, int] = field(default_factory=lambda: {TOPIC_ID: 3})

    def partition_count(self, topic_id: UUID) -> int:
        return self.counts.get(topic_id, 0)


@dataclass
class Share:
    """The coordinator, and a restart over the same log."""

    settings: ShareSettings = field(default_factory=ShareSettings)
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    topics: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.topic = self.topic or MemoryTopic(self.clock)
        self.coordinator = ShareCoordinator(self.clock, self.topic, self.topics, self.settings)
        self.coordinator.runtime.prepare()

    def restart(self) -> Share:
        """Another coordinator over the same log, as after a kill."""
        return Share(self.settings, self.clock, self.topic, self.topics)

    def stored(self, key: SharePartitionKey = KEY) -> ShareState:
        """The state, without a new leader epoch."""
        return self.coordinator.read(key, -1)
