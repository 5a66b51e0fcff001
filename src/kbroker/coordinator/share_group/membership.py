"""The members of share groups: heartbeats, by which they join, follow the target assignment and leave; fencing.

Source: ``GroupMetadataManager`` (share groups); KIP-932.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.common.loggers import get_logger
from kbroker.coordinator.modern_group.member import JOIN_EPOCH
from kbroker.coordinator.modern_group.membership import ModernMembership, other_epoch
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord, Partitions
from kbroker.coordinator.share_group import records, simple_assignor
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.share_group.member import NO_TARGET, ShareGroupMember
from kbroker.coordinator.share_group.records import RECORDS, StatePartitions, TopicPartitions
from kbroker.coordinator.share_group.settings import ShareGroupSettings

logger = get_logger(__name__)


class HeartbeatRequest(NamedTuple):
    """A heartbeat. None means unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topic_names: Sequence[str] | None = None
    client_id: str = ""
    client_host: str = ""


class HeartbeatResult(NamedTuple):
    """Response to a heartbeat. ``assigned``: None if it is unchanged.

    ``epoch`` of the group; ``uninitialized``: share partitions to be initialized.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
    epoch: int = 0
    uninitialized: Partitions = NO_TARGET


class ShareGroupMembership(ModernMembership[ShareGroup, ShareGroupSettings]):
    """Changes of the membership of share groups.

    Threads: any; a group's lock, which the caller holds, guards the whole group.
    """

    def heartbeat(self, group: ShareGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Add a member, or update its assignment. Raises: KafkaError; the group is then unchanged."""
        member_id, joins = request.member_id, request.member_epoch == JOIN_EPOCH
        self.check_room(group, member_id)
        member: ShareGroupMember
        if joins:
            member = group.members.get(member_id) or ShareGroupMember(member_id)
        else:
            member = group.member(member_id)
            check_epoch(member, request.member_epoch)
        updated = _updated(member, request)
        changes: list[GroupRecord] = []
        if updated != member:
            changes.append(RECORDS.member(group.group_id, updated))
        bumps = updated.topic_names != member.topic_names
        if group.target_epoch >= group.epoch:
            bumps |= self._lacks_assignment(group)
        epoch, names = group.epoch, frozenset(group.subscribers)
        if bumps or self.is_refresh_due(group):
            names = frozenset(group.subscribers_with(member, updated))
            epoch = self.refresh(group, names, bumps, changes)
            bumps = epoch > group.epoch
        target_epoch, target = group.target_epoch, group.targets.get(member_id, NO_TARGET)
        if target_epoch < epoch and self.may_assign(group):
            target_epoch, target = epoch, self._assign(group, epoch, updated, changes)
        following = self._reconciled(updated, target_epoch, target, bumps)
        if following != updated:
            changes.append(RECORDS.current(group.group_id, following))
        uninitialized = self._uninitialized(group, names)
        if uninitialized:
            changes.append(records.state_partitions_record(group.group_id, self.initializing(group, uninitialized)))
        self.write(group, changes)
        self.await_heartbeat(group, member_id)
        shows = joins or request.topic_names is not None or member.assigned != following.assigned
        return HeartbeatResult(
            member_id,
            following.member_epoch,
            self.settings.heartbeat_interval_ms(group.group_id),
            following.assigned if shows else None,
            epoch,
            {topic_id: one.partitions for topic_id, one in uninitialized.items()},
        )

    def fence(self, group: ShareGroup, members: Collection[ShareGroupMember], reason: str) -> None:
        """Remove members. Raises: KafkaError; the group is then unchanged."""
        changes = self.member_tombstones(group, members, reason)
        subscribers = dict(group.subscribers)
        for member in members:
            for name in member.topic_names:
                subscribers[name] -= 1
        value = self.hashes.group_hash(name for name, count in subscribers.items() if count)
        changes.append(RECORDS.epoch(group.group_id, GroupEpoch(group.epoch + 1, value)))
        self.write_removal(group, members, changes)

    # ------------------------------------------------------------ assignment

    def _lacks_assignment(self, group: ShareGroup) -> bool:
        """Return whether the target assignment differs from the initialized share partitions of subscribed topics."""
        state = group.state_partitions
        if state is None or not state.initialized or not group.subscribers:
            return False
        check = group.epoch, group.target_epoch, state
        known = group.assigned_check
        if known is not None and known[:2] == check[:2] and known[2] is state:
            return False
        assigned: dict[UUID, set[int]] = {}
        for target in group.targets.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        for topic_id, topic in state.initialized.items():
            is_wanted = topic.name in group.subscribers and assigned.get(topic_id, set()) != topic.partitions
            if is_wanted and self.image.get_by_id(topic_id) is not None:  # the removal of a topic may not be stored
                return True
        group.assigned_check = check
        return False

    def _assign(
        self, group: ShareGroup, epoch: int, updated: ShareGroupMember, changes: list[GroupRecord]
    ) -> Partitions:
        """Make the target assignment for a group epoch; return the member's target."""
        members = {**group.members, updated.member_id: updated}
        topics: dict[str, UUID] = {}
        for name in {name for member in members.values() for name in member.topic_names}:
            topic = self.image.get(name)
            if topic is not None:
                topics[name] = topic.topic_id
        state = group.state_partitions or StatePartitions()
        specs = {
            member_id: simple_assignor.MemberSpec(
                frozenset(topics[name] for name in member.topic_names if name in topics),
                group.targets.get(member_id, NO_TARGET),
            )
            for member_id, member in members.items()
        }
        partitions = {topic_id: one.partitions for topic_id, one in state.initialized.items()}
        is_homogeneous = len({member.topic_names for member in members.values()}) == 1
        targets = simple_assignor.assign(specs, partitions, is_homogeneous)
        logger.info("group %s: made a target assignment for epoch %d", group.group_id, epoch)
        changes += group.target_changes(epoch, targets, self.clock.wall_ms())
        return targets[updated.member_id]

    def _reconciled(
        self, member: ShareGroupMember, epoch: int, target: Partitions, has_subscription_changed: bool
    ) -> ShareGroupMember:
        """Return the member with the partitions of its target that belong to its subscribed topics."""
        if epoch == member.member_epoch and not has_subscription_changed:
            return member
        assigned = {
            topic_id: partitions
            for topic_id, partitions in target.items()
            if (topic := self.image.get_by_id(topic_id)) is not None and topic.name in member.topic_names
        }
        if epoch == member.member_epoch:
            return member._replace(assigned=assigned)
        return member._replace(member_epoch=epoch, previous_member_epoch=member.member_epoch, assigned=assigned)

    # ------------------------------------------------------------ share partitions

    def _uninitialized(self, group: ShareGroup, names: Collection[str]) -> dict[UUID, TopicPartitions]:
        """Return partitions of these topics to initialize: new ones, and those whose initialization is overdue."""
        state = group.state_partitions or StatePartitions()
        now_ms = self.clock.wall_ms()
        found: dict[UUID, TopicPartitions] = {}
        for name in names:
            topic = self.image.get(name)
            if topic is None:
                continue
            known: set[int] = set()
            if topic.topic_id in state.initialized:
                known |= state.initialized[topic.topic_id].partitions
            begun = state.initializing.get(topic.topic_id)
            if begun is not None:
                age_ms = now_ms - begun.timestamp_ms  # negative: the clock was set back
                if 0 <= age_ms < self.settings.initialize_retry_ms:
                    known |= begun.partitions
            if len(known) < topic.partition_count:
                missing = frozenset(range(topic.partition_count)) - known
                found[topic.topic_id] = TopicPartitions(name, missing, now_ms)
        return found

    def initializing(self, group: ShareGroup, topics: Mapping[UUID, TopicPartitions]) -> StatePartitions:
        """Return the group's state partitions after the initialization of ``topics`` has begun."""
        state = group.state_partitions or StatePartitions()
        deleting = {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in topics}
        return state._replace(initializing=combined(state.initializing, topics), deleting=deleting)


def combined(
    topics: Mapping[UUID, TopicPartitions], others: Mapping[UUID, TopicPartitions]
) -> dict[UUID, TopicPartitions]:
    """Return the partitions of both, with the later time."""
    found = dict(topics)
    for topic_id, other in others.items():
        present = found.get(topic_id)
        if present is not None:
            other = TopicPartitions(
                other.name, present.partitions | other.partitions, max(present.timestamp_ms, other.timestamp_ms)
            )
        found[topic_id] = other
    return found


def check_epoch(member: ShareGroupMember, epoch: int) -> None:
    """Check the epoch of a heartbeat. Raises: KafkaError FENCED_MEMBER_EPOCH.

    The previous epoch is accepted: the response with the current epoch may be lost.
    """
    if epoch in (member.member_epoch, member.previous_member_epoch) and epoch <= member.member_epoch:
        return
    previous = f", and it does not match the previous member epoch ({member.previous_member_epoch})"
    raise other_epoch("share", epoch, member.member_epoch, previous if epoch < member.member_epoch else "")


def _updated(member: ShareGroupMember, request: HeartbeatRequest) -> ShareGroupMember:
    """Return the member with the fields of a heartbeat."""
    names = request.topic_names
    return member._replace(
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topic_names=member.topic_names if names is None else frozenset(names),
        client_id=request.client_id,
        client_host=request.client_host,
    )
