"""Share coordinator and share groups on a virtual clock over logs in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_coordinator import GroupCoordinator, GroupSettings
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.share.persister import ShareState
from kbroker.coordinator.share.share_coordinator import ShareCoordinator, ShareSettings
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.share_group.membership import HeartbeatRequest
from kbroker.coordinator.share_group.records import StatePartitions
from kbroker.coordinator.share_group.settings import ShareGroupSettings
from kbroker.coordinator.share_groups import DescribedShareGroup
from kbroker.metrics.registry import Metrics
from tests.support.closing import close_at_end
from tests.support.consumer_groups import Beat, GroupBench
from tests.support.groups import MemoryTopic

TOPIC_ID = UUID(int=7)
KEY = SharePartitionKey("g", TOPIC_ID, 0)


@dataclass
class Share:
    """Share coordinator that can be restarted over the same log."""

    settings: ShareSettings = field(default_factory=ShareSettings)
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    topics: dict[UUID, int] = field(default_factory=lambda: {TOPIC_ID: 3})  # number of partitions by topic id

    def __post_init__(self) -> None:
        self.topic = self.topic or MemoryTopic(self.clock)
        self.coordinator = ShareCoordinator(self.clock, self.topic, self._exists, self.settings)
        self.coordinator.runtime.prepare()

    def _exists(self, key: SharePartitionKey) -> bool:
        return key.partition < self.topics.get(key.topic_id, 0)

    def restart(self) -> Share:
        """Return another coordinator over the same log, as after a kill."""
        return replace(self)

    def stored(self, key: SharePartitionKey = KEY) -> ShareState:
        """Return the stored state without changing the leader epoch."""
        return self.coordinator.read(key, -1)


AT_ONCE = ShareGroupSettings(assignment_interval=Limits(0, 0, 15_000))


@dataclass
class ShareGroupBench(GroupBench):
    """Both coordinators with short forms of the requests of members. ``share``: None while it is unavailable."""

    settings: ShareGroupSettings = AT_ONCE
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    state_topic: MemoryTopic | None = None

    def __post_init__(self) -> None:
        self.topic = self.topic or MemoryTopic(self.clock)
        self.state_topic = self.state_topic or MemoryTopic(self.clock)
        self.share: ShareCoordinator | None = ShareCoordinator(self.clock, self.state_topic, self._exists)
        if self.state_topic.created:
            self.share.runtime.load_all()
        known = GroupSettings(initial_rebalance_delay_ms=0, share=self.settings)
        self.coordinator = close_at_end(
            GroupCoordinator(self.clock, self.topic, known, self.image, Metrics(clock=self.clock), self._coordinator_of)
        )
        self.coordinator.start()
        self.groups = self.coordinator.share_groups

    def _exists(self, key: SharePartitionKey) -> bool:
        topic = self.image.get_by_id(key.topic_id)
        return topic is not None and key.partition < topic.partition_count

    def _coordinator_of(self, key: SharePartitionKey) -> ShareCoordinator:
        if self.share is None:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)
        self.share.prepare()
        return self.share

    def after(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.coordinator.advance()

    def join(self, member_id: str = "a", *topics: str, group: str = "g") -> Beat:
        return self.beat(member_id, 0, *(topics or ("t",)), group=group)

    def beat(self, member_id: str, epoch: int, *topics: str, group: str = "g", rack: str | None = None) -> Beat:
        request = HeartbeatRequest(group, member_id, epoch, rack, topics or None, "client", "/host")
        result = self.groups.heartbeat(request)
        self.coordinator.advance()
        owned = None if result.assigned is None else {one: dict.fromkeys(p, 0) for one, p in result.assigned.items()}
        return Beat(result.member_id, result.member_epoch, self.image.by_name(owned))

    def settled(self, *member_ids: str, topics: tuple[str, ...] = ("t",)) -> dict[str, dict[str, list[int]]]:
        """Have members join and send heartbeats until their assignments are stable; return the assignments."""
        epochs = {one: self.join(one, *topics).epoch for one in member_ids}
        for _ in range(3):
            for one in member_ids:
                epochs[one] = self.beat(one, epochs[one]).epoch
        return self.assigned()

    def assigned(self, group: str = "g") -> dict[str, dict[str, list[int]]]:
        found = {}
        for member in self.groups.describe(group).members:
            whole = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.assigned.items()}
            found[member.member_id] = self.image.by_name(whole) or {}
        return found

    def described(self, group: str = "g") -> DescribedShareGroup:
        return self.groups.describe(group)

    def partitions(self) -> tuple[dict[str, list[int]], dict[str, list[int]], list[str]]:
        """Return the share partitions being initialized, the initialized ones, and the topics being deleted."""
        group = self.coordinator._groups.find("g")
        assert isinstance(group, ShareGroup)
        state = group.state_partitions or StatePartitions()
        begun, done = ({one.name: sorted(one.partitions) for one in rows.values()} for rows in state[:2])
        return begun, done, sorted(state.deleting.values())
