"""Consumer groups on a virtual clock over logs in memory, and topics that a test creates and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.consumer_group.membership import HeartbeatRequest, HeartbeatResult
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.consumer_groups import DescribedConsumerGroup
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.modern_group.settings import Limits
from tests.support.errors import error_of
from tests.support.fake_image import FakeImage
from tests.support.groups import Groups, MemoryTopic

Bench = TypeVar("Bench", bound="GroupBench")
Partitions = Mapping[str, Iterable[int]]
AT_ONCE = ConsumerGroupSettings(assignment_interval=Limits(0, 0, 15_000))


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
