"""The streams groups of a coordinator: their requests, and conversions between them and empty classic groups.

Source: ``GroupMetadataManager``, ``GroupCoordinatorService``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.modern_group.group import ModernGroupState
from kbroker.coordinator.modern_group.member import JOIN_EPOCH
from kbroker.coordinator.modern_group.membership import GroupParts
from kbroker.coordinator.modern_groups import Assigned, ModernGroups
from kbroker.coordinator.streams_group.creation_errors import CreationErrors
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.member import StreamsGroupMember
from kbroker.coordinator.streams_group.membership import HeartbeatRequest, HeartbeatResult, StreamsGroupMembership
from kbroker.coordinator.streams_group.settings import StreamsGroupSettings
from kbroker.coordinator.streams_group.tasks import TargetTasks
from kbroker.coordinator.streams_group.topology import Subtopology


class DescribedStreamsMember(NamedTuple):
    """Description of a member."""

    member: StreamsGroupMember
    target: TargetTasks


class DescribedStreamsGroup(NamedTuple):
    """Description of a streams group. ``subtopologies``: configured ones, if all topics exist as required."""

    group_id: str
    state: ModernGroupState
    epoch: int
    target_epoch: int
    topology_epoch: int
    subtopologies: Sequence[Subtopology]
    members: Sequence[DescribedStreamsMember]


class StreamsGroups(ModernGroups[StreamsGroup, StreamsGroupSettings]):
    """Streams groups. Threads: any; a group's lock guards the whole group."""

    membership: StreamsGroupMembership

    def __init__(
        self, parts: GroupParts, settings: StreamsGroupSettings, groups: GroupMap, classic: Membership
    ) -> None:
        super().__init__(StreamsGroup, parts, settings, groups, classic)
        self.creation_errors = CreationErrors(parts.clock)
        self.membership = StreamsGroupMembership(parts, self.write, settings, parts.sensors.streams_rebalances)

    # ------------------------------------------------------------ requests

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """Add, reconcile or remove a member. Raises: KafkaError."""
        group_id = request.group_id
        joins = request.member_epoch == JOIN_EPOCH
        with self._groups.locked(group_id, joins, StreamsGroup) as group:
            if request.member_epoch < JOIN_EPOCH:
                return self.membership.leave(self.found(group_id, group), request)
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
            if joins and isinstance(group, ClassicGroup) and group.is_empty:
                return self.membership.heartbeat(self.following(group), request)
            return self.membership.heartbeat(self.found(group_id, group), request)

    def describe(self, group_id: str) -> DescribedStreamsGroup:
        """Describe a group. Raises: KafkaError GROUP_ID_NOT_FOUND; UNKNOWN_SERVER_ERROR without a topology."""
        with self._groups.locked(group_id) as group:
            found = self.found(group_id, group)
            topology, configured = found.topology, found.configured
            if topology is None:
                text = "There should always be a topology for a streams group."
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, text)
            subtopologies = topology.subtopologies
            if configured is not None and configured.is_ready:
                subtopologies = configured.subtopologies
            members = [DescribedStreamsMember(one, found.target(one.member_id)) for one in found.members.values()]
            return DescribedStreamsGroup(
                group_id,
                found.state,
                found.epoch,
                found.target_epoch,
                topology.epoch,
                list(subtopologies.values()),
                members,
            )

    # ------------------------------------------------------------ offsets

    def assigned(self, group: StreamsGroup, member: StreamsGroupMember, topic: str, partition: int) -> Assigned:
        """Return the task that reads the partition, with its epoch, or the reason why the member may not commit."""
        if group.topology is None:
            return Assigned("Topology is not available for offset commit validation.")
        reader = group.readers.get(topic)
        if reader is None:
            return Assigned(f"Topic {topic} is not in the topology.")
        for tasks in (member.assigned.active, member.pending_revocation.active):
            epoch = tasks.get(reader, {}).get(partition)
            if epoch is not None:
                return Assigned(f"task {reader}-{partition}", epoch)
        return Assigned(f"Task {reader}-{partition} is not assigned or pending revocation for member.")
