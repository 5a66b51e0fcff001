"""Streams groups on a virtual clock over logs in memory, with short forms of the requests of members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.streams_group.endpoints import EndpointPartitions
from kbroker.coordinator.streams_group.member import Endpoint
from kbroker.coordinator.streams_group.membership import HeartbeatRequest
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from kbroker.coordinator.streams_group.tasks import Tasks
from kbroker.coordinator.streams_groups import DescribedStreamsGroup
from tests.support.consumer_groups import GroupBench
from tests.support.groups import Groups, MemoryTopic

Body = dict[str, Any]
Given = Mapping[str, Sequence[int]]
AT_ONCE = StreamsGroupSettings(assignment_interval=Limits(0, 0, 15_000), initial_rebalance_delay=Limits(0, 0, 15_000))


def topic(name: str, partitions: int = 0, **configs: str) -> Body:
    """Return an internal topic; with 0 partitions the broker chooses the number."""
    rows = [{"Key": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    return {"Name": name, "Partitions": partitions, "ReplicationFactor": 0, "TopicConfigs": rows}


def subtopology(
    subtopology_id: str = "0",
    sources: Sequence[str] = ("t",),
    changelogs: Sequence[str] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[Body] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> Body:
    return {
        "SubtopologyId": subtopology_id,
        "SourceTopics": list(sources),
        "SourceTopicRegex": [],
        "StateChangelogTopics": [topic(name) for name in changelogs],
        "RepartitionSinkTopics": list(sinks),
        "RepartitionSourceTopics": list(repartition),
        "CopartitionGroups": [
            {"SourceTopics": list(some), "SourceTopicRegex": [], "RepartitionSourceTopics": list(others)}
            for some, others in together
        ],
    }


def topology(*subtopologies: Body, epoch: int = 0) -> Body:
    return {"Epoch": epoch, "Subtopologies": list(subtopologies or (subtopology(),))}


@dataclass
class Beat:
    """Response to a member. Tasks are None if the response has no assignment."""

    epoch: int
    active: dict[str, list[int]] | None
    standby: dict[str, list[int]] | None = None
    statuses: list[int] = field(default_factory=list)


@dataclass
class StreamsGroupBench(GroupBench):
    """Coordinator of streams groups."""

    settings: StreamsGroupSettings = AT_ONCE
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    endpoints: Sequence[EndpointPartitions] | None = None  # of the latest heartbeat
    endpoint_epoch: int = 0
    texts: list[str] = field(default_factory=list)  # status details of the latest heartbeat
    missing: dict[str, int] = field(default_factory=dict)  # internal topics to create, with their numbers of partitions

    def __post_init__(self) -> None:
        known = GroupSettings(initial_rebalance_delay_ms=0, streams=self.settings)
        self.groups = Groups(known, self.clock, self.topic, self.image)
        self.topic, self.coordinator = self.groups.topic, self.groups.coordinator
        self.after = self.groups.after

    def join(self, member_id: str, shape: Body | None = None, *, timeout_ms: int = 60_000, **how: Any) -> Beat:
        """Send a first heartbeat, with epoch 0, all fields and no owned tasks."""
        shape = topology() if shape is None else shape
        return self.beat(member_id, 0, active={}, shape=shape, timeout_ms=timeout_ms, **how)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        active: Given | None = None,
        standby: Given | None = None,
        shape: Body | None = None,
        timeout_ms: int = -1,
        group: str = "g",
        process: str | None = None,
        rack: str | None = None,
        endpoint: str | None = None,
        endpoint_epoch: int = 0,
        shuts_down: bool = False,
    ) -> Beat:
        has_tasks = active is not None or standby is not None
        result = self.coordinator.streams_groups.heartbeat(
            HeartbeatRequest(
                group,
                member_id,
                epoch,
                rebalance_timeout_ms=timeout_ms,
                topology=shape,
                active=tasks(active) if has_tasks else None,
                standby=tasks(standby) if has_tasks else None,
                warmup={} if has_tasks else None,
                rack_id=rack,
                process_id=process if process is not None or epoch else f"process of {member_id}",
                endpoint=None if endpoint is None else Endpoint(endpoint, 1),
                shuts_down=shuts_down,
                endpoint_epoch=endpoint_epoch,
                client_id="client",
                client_host="/host",
            )
        )
        self.coordinator.advance()
        self.endpoint_epoch = result.endpoint_epoch
        self.endpoints, self.texts = result.endpoints, [one.text for one in result.statuses]
        self.missing = {name: one.partitions for name, one in result.missing.items()}
        statuses = [int(one.status) for one in result.statuses]
        if result.assigned is None:
            return Beat(result.member_epoch, None, None, statuses)
        has = result.assigned.without_epochs
        return Beat(result.member_epoch, lists(has.active), lists(has.standby), statuses)

    def described(self, group: str = "g") -> DescribedStreamsGroup:
        return self.coordinator.streams_groups.describe(group)

    def create_missing(self) -> None:
        """Create the internal topics that the latest heartbeat requires, as the broker does."""
        for name, partitions in self.missing.items():
            self.image.create(name, partitions)


def tasks(given: Given | None) -> Tasks:
    return {one: frozenset(partitions) for one, partitions in (given or {}).items()}


def lists(given: Tasks) -> dict[str, list[int]]:
    return {one: sorted(partitions) for one, partitions in given.items()}
