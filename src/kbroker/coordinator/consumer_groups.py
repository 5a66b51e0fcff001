"""The consumer groups of a coordinator: their requests, and conversions between them and classic groups.

Source: ``GroupMetadataManager``, ``GroupCoordinatorService``; KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.consumer_group import migration, records
from kbroker.coordinator.consumer_group.classic_members import ClassicMembers
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import NO_TARGET, ConsumerGroupMember, Target
from kbroker.coordinator.consumer_group.membership import (
    ConsumerGroupMembership,
    HeartbeatRequest,
    HeartbeatResult,
)
from kbroker.coordinator.consumer_group.records import RECORDS
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.internal_topic import Written
from kbroker.coordinator.modern_group.group import ModernGroupState
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kbroker.coordinator.modern_group.membership import GroupParts
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord
from kbroker.coordinator.modern_groups import Assigned, ModernGroups, encoded

logger = get_logger(__name__)


class DescribedConsumerMember(NamedTuple):
    """Description of a member. ``owned``: the partitions that it has or is revoking."""

    member: ConsumerGroupMember
    owned: Target
    target: Target


class DescribedConsumerGroup(NamedTuple):
    """Description of a consumer group."""

    group_id: str
    state: ModernGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: Sequence[DescribedConsumerMember]


class ConsumerGroups(ModernGroups[ConsumerGroup, ConsumerGroupSettings]):
    """Consumer groups. Threads: any; a group's lock guards the whole group."""

    membership: ConsumerGroupMembership

    def __init__(
        self, parts: GroupParts, settings: ConsumerGroupSettings, groups: GroupMap, classic: Membership
    ) -> None:
        super().__init__(ConsumerGroup, parts, settings, groups, classic)
        self.membership = ConsumerGroupMembership(parts, self.write, settings, self.downgrade)
        self.classic_members = ClassicMembers(self.membership)

    # ------------------------------------------------------------ requests

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """Add, reconcile or remove a member. Raises: KafkaError; the group is then unchanged."""
        group_id = request.group_id
        joins = request.member_epoch == JOIN_EPOCH
        known = self._groups.find(group_id)
        if isinstance(known, ConsumerGroup):  # the usual case, in fewer steps
            with known.lock:
                if not known.is_dead:
                    result = self.membership.steady(known, request)
                    if result is not None:
                        return result
                    try:
                        return self._heartbeat(known, request)
                    finally:
                        self._groups.drop_unused(known)
        with self._groups.locked(group_id, joins, ConsumerGroup) as group:
            if isinstance(group, ConsumerGroup):
                return self._heartbeat(group, request)
            if group is None:
                leaves = request.member_epoch < JOIN_EPOCH
                name = "Group" if leaves else "Consumer group"
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"{name} {group_id} not found.")
            if not joins or not isinstance(group, ClassicGroup):
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return self._upgrade(group, request)

    def _heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResult:
        if STATIC_LEAVE_EPOCH <= request.member_epoch < JOIN_EPOCH:
            return self.membership.leave(group, request)
        return self.membership.heartbeat(group, request)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a group. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        with self._groups.locked(group_id) as group:
            found = self.found(group_id, group)
            members = [_described(found, member) for member in found.members.values()]
            assignor = found.preferred_assignor() or self.settings.assignors[0]
            return DescribedConsumerGroup(group_id, found.state, found.epoch, found.target_epoch, assignor, members)

    # ------------------------------------------------------------ from outside

    def bump_epoch(self, group_id: str) -> None:
        """Request a new target assignment, which members get with their heartbeats. Raises: KafkaError."""
        with self._groups.locked(group_id) as group:
            found = self.found(group_id, group)
            self.write(found, [RECORDS.epoch(group_id, GroupEpoch(found.epoch + 1, found.metadata_hash))])

    # ------------------------------------------------------------ groups that change their kind

    def _upgrade(self, group: ClassicGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Convert a classic group whose first member of the consumer protocol joins, and add the member.

        Raises: KafkaError, also if the group cannot be converted.
        """
        changes: list[GroupRecord] = []
        if not group.is_empty:
            migration.check_upgrade(group, self.settings)
            changes = migration.upgraded(group, self.image, self.membership.hashes)
        following = self.following(group)
        for record in changes:
            following.replay(record)
        return self.membership.heartbeat(following, request, changes)

    def write(self, group: ConsumerGroup, changes: Sequence[GroupRecord]) -> Written:
        """Append the records, and start the sessions of members of the classic protocol in a converted group."""
        is_converted = group.predecessor is not None
        written = super().write(group, changes)
        if is_converted:
            for member in group.members.values():
                if member.classic is not None:
                    self.membership.await_heartbeat(group, member.member_id, member.classic.session_timeout_ms)
        return written

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        changes: Sequence[GroupRecord] = (),
        joining: ConsumerGroupMember | None = None,
        rebalances: bool = True,
    ) -> None:
        """Convert a consumer group whose other members all use the classic protocol.

        Args: ``changes``: earlier records; ``joining`` replaces the last member of the consumer protocol;
        ``rebalances``: whether the members must join again. Raises: KafkaError; the group is then unchanged.
        """
        group_id = group.group_id
        classic = migration.downgraded(group, leaving, joining, self.image, self._clock.wall_ms())
        member_ids = list(group.members)
        replaced = None if joining is None else group.static_member(joining.instance_id)
        if joining is not None and replaced is not None:  # its tombstones are among the changes
            member_ids = [joining.member_id if one == replaced.member_id else one for one in member_ids]
        rows = encoded([*changes, *records.group_tombstones(group_id, member_ids, group.resolved)], group.FORMATS)
        rows.append(classic.record())
        group.shard.append(rows)
        classic.is_stored = True
        self.replace(group, classic)
        self._classic.resume(classic)
        if rebalances:
            self._classic.start_rebalance(classic)
        logger.info("group %s: converted to a classic group", group_id)

    # ------------------------------------------------------------ offsets

    def stale(self, member: ConsumerGroupMember) -> Errors:
        """Return the code for an epoch other than the member's."""
        return Errors.ILLEGAL_GENERATION if member.uses_classic_protocol else Errors.STALE_MEMBER_EPOCH

    def assigned(self, group: ConsumerGroup, member: ConsumerGroupMember, topic: str, partition: int) -> Assigned:
        """Return the partition with the epoch of its assignment, or the reason why the member may not commit for it."""
        known = self.image.get(topic)
        epoch = None if known is None else member.assignment_epoch(known.topic_id, partition)
        if epoch is None:
            return Assigned(f"Partition {topic}-{partition} is not assigned or pending revocation for member.")
        return Assigned(f"partition {topic}-{partition}", epoch)


def _described(group: ConsumerGroup, member: ConsumerGroupMember) -> DescribedConsumerMember:
    owned = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
    for topic_id, partitions in member.pending_revocation.items():
        owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(partitions)
    return DescribedConsumerMember(member, owned, group.targets.get(member.member_id, NO_TARGET))
