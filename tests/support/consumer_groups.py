"""Consumer groups on a virtual clock over logs in memory, and topics that a test creates and changes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.consumer_group.member import Owned
from kbroker.coordinator.consumer_group.membership import HeartbeatRequest, HeartbeatResult
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.consumer_groups import DescribedConsumerGroup
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.modern_group.topics_image import TopicMetadata
from tests.support.errors import error_of
from tests.support.groups import Groups, MemoryTopic

Bench = TypeVar("Bench", bound="GroupBench")
Partitions = Mapping[str, Iterable[int]]
AT_ONCE = ConsumerGroupSettings(assignment_interval=Limits(0, 0, 15_000))


class FakeImage:
    """Topics with ids 1, 2, 3 ... in the order of their creation."""

    def __init__(self, **counts: int) -> None:
        self.version = self.creation_version = 1
        self.rack: str | None = None
        self._topics: dict[str, TopicMetadata] = {}
        self._made = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._made += 1
        self._topics[name] = TopicMetadata(name, uuid.UUID(int=self._made), count)
        self.version += 1
        self.creation_version = self.version

    def grow(self, name: str, count: int) -> None:
        self._topics[name] = self._topics[name]._replace(partition_count=count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def get(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        return next((one for one in self._topics.values() if one.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return list(self._topics)

    def id(self, name: str) -> uuid.UUID:
        return self._topics[name].topic_id

    def by_name(self, owned: Owned | None) -> dict[str, list[int]] | None:
        """Return partitions by topic name; deleted topics are left out."""
        if owned is None:
            return None
        names = {one.topic_id: one.name for one in self._topics.values()}
        return {names[topic_id]: sorted(partitions) for topic_id, partitions in owned.items() if topic_id in names}


@dataclass
class Beat:
    """Response to a member. ``has``: the assignment by topic name, or None if the response has no assignment."""

    member_id: str
    epoch: int
    has: dict[str, list[int]] | None


@dataclass
class GroupBench:
    """Coordinator of groups of one type, with short forms of the requests of members."""

    image: FakeImage = field(default_factory=lambda: FakeImage(t=4))

    def restart(self: Bench) -> Bench:
        """Return another coordinator over the same log, as after a kill."""
        return replace(self)

    def beat(self, *args: Any, **how: Any) -> Any:
        raise NotImplementedError

    def described(self, group: str = "g") -> Any:
        raise NotImplementedError

    def refused(self, *args: Any, **how: Any) -> Errors:
        """Return the error code of a heartbeat."""
        return error_of(self.beat, *args, **how)

    def state(self, group: str = "g") -> str:
        return str(self.described(group).state.value)

    def epochs(self, group: str = "g") -> tuple[int, int]:
        """Return the group epoch and the epoch of the target assignment."""
        found = self.described(group)
        return found.epoch, found.target_epoch


@dataclass
class ConsumerGroupBench(GroupBench):
    """Coordinator of consumer groups."""

    settings: ConsumerGroupSettings = AT_ONCE
    classic_max_size: int = 2**31 - 1
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    initial_delay_ms: int = 0

    def __post_init__(self) -> None:
        known = GroupSettings(
            initial_rebalance_delay_ms=self.initial_delay_ms, max_size=self.classic_max_size, consumer=self.settings
        )
        self.groups = Groups(known, self.clock, self.topic, self.image)
        self.topic, self.coordinator = self.groups.topic, self.groups.coordinator
        self.after = self.groups.after

    def join(
        self,
        member_id: str = "",
        topics: list[str] | None = None,
        *,
        group: str = "g",
        regex: str | None = None,
        timeout_ms: int = 60_000,
        **how: Any,
    ) -> Beat:
        """Send a first heartbeat, with epoch 0, all fields and no owned partitions."""
        names = topics if topics is not None or regex is not None else ["t"]
        return self.beat(member_id, 0, has={}, topics=names, regex=regex, timeout_ms=timeout_ms, group=group, **how)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        has: Partitions | None = None,
        topics: list[str] | None = None,
        regex: str | None = None,
        timeout_ms: int = -1,
        group: str = "g",
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
    ) -> Beat:
        owned = None if has is None else {self.image.id(name): list(some) for name, some in has.items()}
        result: HeartbeatResult = self.coordinator.consumer_groups.heartbeat(
            HeartbeatRequest(
                group, member_id, epoch, instance, rack, timeout_ms, topics, regex, assignor, owned, "client", "/host"
            )
        )
        self.coordinator.advance()
        return Beat(result.member_id, result.member_epoch, self.image.by_name(result.assigned))

    def described(self, group: str = "g") -> DescribedConsumerGroup:
        return self.coordinator.consumer_groups.describe(group)

    def targets(self, group: str = "g") -> dict[str, dict[str, list[int]]]:
        members = self.described(group).members
        found = {}
        for one in members:
            whole = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in one.target.items()}
            found[one.member.member_id] = self.image.by_name(whole) or {}
        return found

    def kind(self, group: str = "g") -> str:
        return next((one.group_type for one in self.coordinator.list_groups() if one.group_id == group), "none")
