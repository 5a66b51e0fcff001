"""The consumer groups of a coordinator: their requests, their records, and conversions between the two kinds of group.

A converted group has the lock and the offsets of the one that it replaces. It is built beside that one and replaces it
once the records are written: a request that fails changes nothing.
Source: ``GroupMetadataManager``, ``GroupCoordinatorService``; KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.timer.purgatory import Purgatory
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.consumer_group import migration, records
from kbroker.coordinator.consumer_group.classic_members import ClassicMembers
from kbroker.coordinator.consumer_group.group import ConsumerGroup, ConsumerGroupState
from kbroker.coordinator.consumer_group.member import (
    JOIN_EPOCH,
    NO_TARGET,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    Target,
)
from kbroker.coordinator.consumer_group.membership import (
    ConsumerGroupMembership,
    HeartbeatRequest,
    HeartbeatResult,
)
from kbroker.coordinator.consumer_group.records import GroupRecord
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.consumer_group.topics_image import TopicsImage
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.group_sensors import GroupSensors
from kbroker.coordinator.internal_topic import KeyValue

logger = get_logger(__name__)


class DescribedConsumerMember(NamedTuple):
    """Description of a member. ``owned``: the partitions that it has or is revoking."""

    member: ConsumerGroupMember
    owned: Target
    target: Target


class DescribedConsumerGroup(NamedTuple):
    """Description of a consumer group."""

    group_id: str
    state: ConsumerGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: Sequence[DescribedConsumerMember]


class ConsumerGroups:
    """Consumer groups, in a map with the classic ones.

    Args: ``classic``: the members of the classic groups that consumer groups become, or were.
    Threads: any; a group's lock guards everything of it.
    """

    def __init__(
        self,
        clock: BaseClock,
        groups: GroupMap,
        purgatory: Purgatory,
        classic: Membership,
        image: TopicsImage,
        settings: ConsumerGroupSettings,
        sensors: GroupSensors,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._classic = classic
        self.image = image
        self.settings = settings
        self.membership = ConsumerGroupMembership(clock, self, purgatory, image, settings, sensors)
        self.classic_members = ClassicMembers(self.membership, self.downgrade)

    # ------------------------------------------------------------ requests

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """Let a member join, follow or leave. Raises: KafkaError; the group is then unchanged."""
        group_id = request.group_id
        joins = request.member_epoch == JOIN_EPOCH
        known = self._groups.find(group_id)
        if isinstance(known, ConsumerGroup):
            with known.lock:
                result = None if known.is_dead else self.membership.steady(known, request)
            if result is not None:
                return result
        with self._groups.locked(group_id, joins, ConsumerGroup) as group:
            if isinstance(group, ConsumerGroup):
                if STATIC_LEAVE_EPOCH <= request.member_epoch < JOIN_EPOCH:
                    return self.membership.leave(group, request)
                return self.membership.heartbeat(group, request)
            if group is None:
                leaves = request.member_epoch < JOIN_EPOCH
                name = "Group" if leaves else "Consumer group"
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"{name} {group_id} not found.")
            if not joins:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return self._upgrade(group, request)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a group. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        with self._groups.locked(group_id) as group:
            found = _consumer_group(group_id, group)
            members = [_described(found, member) for member in found.members.values()]
            assignor = found.preferred_assignor() or self.settings.assignors[0]
            return DescribedConsumerGroup(group_id, found.state, found.epoch, found.target_epoch, assignor, members)

    # ------------------------------------------------------------ from outside

    def remove_member(self, group_id: str, member_id: str) -> None:
        """Remove a member as if its session were over. Raises: KafkaError GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID."""
        with self._groups.locked(group_id) as group:
            found = _consumer_group(group_id, group)
            self.membership.fence(found, [found.member(member_id)], "it was removed by an operator")

    def bump_epoch(self, group_id: str) -> None:
        """Request a new target assignment, which members follow with their heartbeats. Raises: KafkaError."""
        with self._groups.locked(group_id) as group:
            found = _consumer_group(group_id, group)
            self.write(found, [records.epoch_record(group_id, found.epoch + 1, found.metadata_hash)])

    # ------------------------------------------------------------ groups that change their kind

    def _upgrade(self, group: ClassicGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Convert a classic group whose first member of the consumer protocol joins."""
        changes: list[GroupRecord] = []
        if not group.is_empty:
            migration.check_upgrade(group, self.settings)
            changes = migration.upgraded(group, self.image, self.membership.hashes)
        following = ConsumerGroup(group.group_id, group.lock, group.offsets)
        following.predecessor, following.shard = group, group.shard
        for record in changes:
            following.replay(record)
        return self.membership.heartbeat(following, request, changes)

    def write(self, group: ConsumerGroup, changes: Sequence[GroupRecord]) -> None:
        """Append the records to __consumer_offsets; the group replays them. Raises: KafkaError, nothing has changed."""
        old = group.predecessor
        rows: list[KeyValue] = []
        if old is not None and old.is_stored:
            rows.append((group_records.group_key(group.group_id), None))
        rows += encoded(changes)
        if rows:
            group.shard.append(rows)
        for record in changes:
            group.replay(record)
        if old is not None:
            group.predecessor = None
            self._groups.replace(old, group)
            self._classic.dismiss(old, Errors.REBALANCE_IN_PROGRESS)
            for member in group.members.values():
                if member.classic is not None:
                    self.membership.await_heartbeat(group, member.member_id, member.classic.session_timeout_ms)
            logger.info("group %s: converted to a consumer group", group.group_id)

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        changes: Sequence[GroupRecord] = (),
        joining: ConsumerGroupMember | None = None,
        rebalances: bool = True,
    ) -> None:
        """Convert a consumer group whose other members all use the classic protocol.

        Args: ``changes``: earlier records; ``joining`` takes the place of the last member of the consumer protocol;
        ``rebalances``: whether the members must join again. Raises: KafkaError; the group is then unchanged.
        """
        group_id = group.group_id
        classic = migration.downgraded(group, leaving, joining, self.image, self._clock.wall_ms())
        member_ids = list(group.members)
        replaced = None if joining is None else group.static_member(joining.instance_id)
        if joining is not None and replaced is not None:  # its tombstones are among the changes
            member_ids = [joining.member_id if one == replaced.member_id else one for one in member_ids]
        rows = encoded([*changes, *records.group_tombstones(group_id, member_ids, group.resolved)])
        rows.append((group_records.group_key(group_id), group_records.encode_group(classic.stored())))
        group.shard.append(rows)
        classic.is_stored = True
        self._replace(group, classic)
        self._classic.resume(classic)
        if rebalances:
            self._classic.start_rebalance(classic)
        logger.info("group %s: converted to a classic group", group_id)

    def to_classic(self, group: ConsumerGroup) -> ClassicGroup:
        """Convert an empty consumer group to a classic one. Raises: KafkaError; the group is then unchanged."""
        if group.is_stored:
            group.shard.append(self.tombstones(group))
        classic = ClassicGroup(group.group_id, lock=group.lock, offsets=group.offsets)
        self._replace(group, classic)
        return classic

    def _replace(self, group: ConsumerGroup, classic: ClassicGroup) -> None:
        self.membership.dismiss(group)
        self._groups.replace(group, classic)

    def tombstones(self, group: ConsumerGroup) -> list[KeyValue]:
        """Return tombstones for all records of a group except its offsets."""
        return encoded(records.group_tombstones(group.group_id, group.members, group.resolved))


def encoded(changes: Sequence[GroupRecord]) -> list[KeyValue]:
    """Return keys and values of records. Raises: KafkaError for values that the formats cannot hold."""
    try:
        return [record.encode() for record in changes]
    except ProtocolError as error:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error


def _consumer_group(group_id: str, group: ClassicGroup | ConsumerGroup | None) -> ConsumerGroup:
    """Return the group if it is a consumer group. Raises: KafkaError GROUP_ID_NOT_FOUND."""
    if group is None:
        raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return group


def _described(group: ConsumerGroup, member: ConsumerGroupMember) -> DescribedConsumerMember:
    owned = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
    for topic_id, partitions in member.pending_revocation.items():
        owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(partitions)
    return DescribedConsumerMember(member, owned, group.targets.get(member.member_id, NO_TARGET))
