"""The members of consumer groups: heartbeats, by which they join, follow the target assignment and leave; fencing.

A request's changes are first a list of records. Once they are written, the group replays them, then the timers are set
and the response is sent: a change that cannot be written has no effect.
Lock order: a group's lock, then the purgatory's own. Callers hold the lock of a group that is not dead.
Source: ``GroupMetadataManager`` (consumer groups).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.consumer_group import records, target_assignment
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import NO_TARGET, ConsumerGroupMember, MemberState, Owned, new_member_id
from kbroker.coordinator.consumer_group.migration import NotDowngradedError
from kbroker.coordinator.consumer_group.reconciliation import Reconciliation, Reported, reconcile
from kbroker.coordinator.consumer_group.records import RECORDS
from kbroker.coordinator.consumer_group.regexes import Regexes, RegexStatus, Visible
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.modern_group import timers
from kbroker.coordinator.modern_group.group import TargetAssignment
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, is_subset
from kbroker.coordinator.modern_group.membership import GroupParts, ModernMembership, other_epoch
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord, tombstone

logger = get_logger(__name__)


class Downgrade(Protocol):
    """Convert a group whose other members all use the classic protocol, and write ``changes`` first.

    ``joining`` replaces the last member of the consumer protocol; ``rebalances``: whether the members must join again.
    """

    def __call__(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        changes: Sequence[GroupRecord] = (),
        joining: ConsumerGroupMember | None = None,
        rebalances: bool = True,
    ) -> None: ...


class HeartbeatRequest(NamedTuple):
    """A heartbeat. None, or -1 for the time-out, means unchanged; ``owned``: partitions by topic id.

    ``visible``: selects the topics that the client may describe; None: all.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: Sequence[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Reported | None = None
    client_id: str = ""
    client_host: str = ""
    visible: Visible | None = None

    @property
    def is_plain(self) -> bool:
        """True if the request only has the fields that identify the member."""
        names = self.topic_names is None and self.topic_regex is None
        wishes = self.rebalance_timeout_ms == -1 and self.server_assignor is None and self.rack_id is None
        return names and wishes and self.owned is None

    @property
    def is_full(self) -> bool:
        """True if the request has all fields: the response then has the assignment."""
        has_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_topics and self.owned is not None


class HeartbeatResult(NamedTuple):
    """Response to a heartbeat. ``assigned``: None if it is unchanged."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Owned | None = None


class ConsumerGroupMembership(ModernMembership[ConsumerGroup, ConsumerGroupSettings]):
    """Changes of the membership of consumer groups.

    Threads: any; a group's lock guards the whole group.
    """

    def __init__(
        self,
        parts: GroupParts,
        write: Callable[[ConsumerGroup, Sequence[GroupRecord]], object],
        settings: ConsumerGroupSettings,
        downgrade: Downgrade,
    ) -> None:
        super().__init__(parts, write, settings, parts.sensors.consumer_rebalances)
        self.downgrade = downgrade
        self.regexes = Regexes(self)

    # ------------------------------------------------------------ heartbeat

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, conversion: Sequence[GroupRecord] = ()
    ) -> HeartbeatResult:
        """Add a member, or reconcile it with its target assignment.

        Args: ``conversion``: records that the group has replayed already, to be written before the other changes.
        Raises: KafkaError; the group is then unchanged.
        """
        changes = list(conversion)
        replaced = group.static_member(request.instance_id)
        joins = request.member_epoch == JOIN_EPOCH
        self.check_room(group, request.member_id)
        member_id = request.member_id or new_member_id()
        if request.instance_id is None:
            member = self._dynamic_member(group, member_id, request)
        else:
            member = self.static_member(group, member_id, request.instance_id, joins, changes, False)
            if not joins:
                check_epoch(member, request.member_epoch, request.owned)
        updated = _updated(member, request)
        updated, reconciled = self.follow(group, member, updated, request.owned, changes)
        self.write(group, changes)
        if replaced is not None and replaced.member_id != member_id:
            self.timers.cancel_member(group, replaced.member_id)
        if member.uses_classic_protocol:  # its classic join and sync are no longer awaited
            self.timers.cancel(group, timers.JOIN, member_id)
            self.timers.cancel(group, timers.SYNC, member_id)
        self.watch_reconciliation(group, reconciled, updated)
        self.await_heartbeat(group, member_id)
        self.regexes.after_heartbeat(group, request.visible)
        shows = joins or request.is_full or member.assigned != updated.assigned
        interval_ms = self.settings.heartbeat_interval_ms(group.group_id)
        return HeartbeatResult(member_id, updated.member_epoch, interval_ms, updated.assigned if shows else None)

    def steady(self, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResult | None:
        """Return the response to a plain heartbeat of a reconciled member, the usual case; None for any other
        heartbeat, or if a target assignment is due.

        The effect is that of ``heartbeat``, in a third of the time.
        """
        member = group.members.get(request.member_id)
        epoch = request.member_epoch
        if (
            member is None
            or epoch <= 0
            or member.member_epoch != epoch
            or epoch != group.target_epoch
            or member.state is not MemberState.STABLE
            or not request.is_plain
            or request.instance_id not in (None, member.instance_id)
            or member.client_id != request.client_id
            or member.client_host != request.client_host
            or member.classic is not None
            or self.is_refresh_due(group)
            or (epoch != group.epoch and self.may_assign(group))
        ):
            return None
        self.await_heartbeat(group, request.member_id)
        self.regexes.after_heartbeat(group, request.visible)
        return HeartbeatResult(request.member_id, epoch, self.settings.heartbeat_interval_ms(group.group_id))

    def follow(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        reported: Reported | None,
        changes: list[GroupRecord],
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember]:
        """Update a member's subscription, make a target assignment if one is due, and reconcile the member with it.

        Returns: the member after and before the reconciliation; ``changes`` gets the records.
        """
        epoch, is_refreshed, has_changed = self.subscribe(group, member, updated, changes)
        target = self._target(group, epoch, member, updated, is_refreshed, changes)
        return self.reconcile(group, updated, target, has_changed, reported, changes), updated

    def subscribe(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        changes: list[GroupRecord],
    ) -> tuple[int, bool, bool]:
        """Update a member's subscription.

        Returns: the group epoch, whether the topics were read again, and whether the member's subscription has changed.
        """
        group_id = group.group_id
        names_changed = False
        if updated != member:
            changes.append(RECORDS.member(group_id, updated))
            names_changed = updated.topic_names != member.topic_names
        status = self.regexes.update(group, member, updated, changes)
        bumps = names_changed or status is RegexStatus.UPDATED_AND_RESOLVED
        if updated.uses_classic_protocol:
            bumps = names_changed or status is not RegexStatus.UNCHANGED
        epoch = group.epoch
        is_refreshed = bumps or self.is_refresh_due(group)
        if is_refreshed:
            epoch = self.refresh(group, group.topics_with(member, updated), bumps, changes)
            if group.has_partition_metadata:
                changes.append(tombstone(records.PARTITION_METADATA, group_id))
        return epoch, is_refreshed, names_changed or status is not RegexStatus.UNCHANGED

    def _target(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        is_refreshed: bool,
        changes: list[GroupRecord],
    ) -> TargetAssignment:
        if group.target_epoch >= epoch or not self.may_assign(group):
            return TargetAssignment(group.target_epoch, group.target(updated))
        preferred = group.preferred_assignor(member, updated)
        if preferred not in self.settings.assignors:  # none, or one no longer in the configuration
            preferred = self.settings.assignors[0]
        began_ms = self.clock.now_ms()
        target, rows = target_assignment.assign(
            group,
            epoch,
            updated,
            assignor=preferred,
            is_homogeneous=group.is_homogeneous_with(member, updated) if is_refreshed else group.is_homogeneous(),
            image=self.image,
            now_ms=self.clock.wall_ms(),
        )
        self.note_assignment(group, began_ms)
        changes += rows
        return target

    def lacks_target(self, group: ConsumerGroup) -> bool:
        """Return whether a join has to make the due target assignment: no member uses the consumer protocol."""
        if group.classic_member_count < len(group.members):
            return False
        if group.target_epoch >= group.epoch and not self._have_topics_changed(group):
            return False
        return self.may_assign(group)

    def _have_topics_changed(self, group: ConsumerGroup) -> bool:
        if not self.is_refresh_due(group):
            return False
        version = self.image.version
        if self.refreshed_hash(group, group.subscribers.topics) != group.metadata_hash:
            return True
        self.note_refresh(group, group.epoch, version)
        return False

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: TargetAssignment,
        has_subscription_changed: bool,
        reported: Reported | None,
        changes: list[GroupRecord],
    ) -> ConsumerGroupMember:
        """Return a member reconciled with a target assignment as far as possible now; add its record to ``changes``."""
        if not has_subscription_changed and member.is_reconciled_to(target.epoch):
            return member
        given = Reconciliation(group, self.image, target.epoch, target.target, has_subscription_changed, reported)
        following = reconcile(member, given)
        if following != member:
            changes.append(RECORDS.current(group.group_id, following))
        return following

    # ------------------------------------------------------------ identity of the member

    def _dynamic_member(self, group: ConsumerGroup, member_id: str, request: HeartbeatRequest) -> ConsumerGroupMember:
        member: ConsumerGroupMember
        if request.member_epoch != JOIN_EPOCH:
            member = group.member(member_id)
        else:
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
        check_epoch(member, request.member_epoch, request.owned)
        return member

    def static_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        joins: bool,
        changes: list[GroupRecord],
        is_classic: bool,
    ) -> ConsumerGroupMember:
        """Return the member of an instance id; a joining member replaces one that has released the id.

        Raises: KafkaError UNRELEASED_INSTANCE_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        present = group.static_member(instance_id)
        if not joins:
            return check_instance(present, member_id, instance_id)
        if present is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not is_classic and not present.uses_classic_protocol and present.member_epoch != STATIC_LEAVE_EPOCH:
            text = (
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {present.member_id} member."
            )
            raise KafkaError(Errors.UNRELEASED_INSTANCE_ID, text)
        group_id = group.group_id
        member = present._replace(member_id=member_id, member_epoch=0, previous_member_epoch=0)
        changes += RECORDS.member_tombstones(group_id, present.member_id)
        changes.append(RECORDS.member(group_id, member))
        changes.append(RECORDS.target(group_id, member_id, group.targets.get(present.member_id, NO_TARGET)))
        changes.append(RECORDS.current(group_id, member))
        logger.info("group %s: %s takes the place of %s", group_id, member_id, present.member_id)
        return member

    # ------------------------------------------------------------ leave

    def leave(self, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResult:
        """Remove a member, or note that a static one is away. Raises: KafkaError."""
        if request.instance_id is None:
            self.fence(group, [group.member(request.member_id)], "it left")
            return HeartbeatResult(request.member_id, request.member_epoch)
        member = check_instance(group.static_member(request.instance_id), request.member_id, request.instance_id)
        if request.member_epoch != STATIC_LEAVE_EPOCH:
            self.fence(group, [member], "it left")
            return HeartbeatResult(request.member_id, request.member_epoch)
        assigned = {one: dict.fromkeys(partitions, 0) for one, partitions in member.assigned.items()}
        away = member._replace(member_epoch=STATIC_LEAVE_EPOCH, pending_revocation={}, assigned=assigned)
        self.write(group, [RECORDS.current(group.group_id, away)])
        logger.info("group %s: static member %s is away", group.group_id, member.member_id)
        return HeartbeatResult(member.member_id, STATIC_LEAVE_EPOCH)

    def fence(self, group: ConsumerGroup, members: Collection[ConsumerGroupMember], reason: str) -> None:
        """Remove members; a group that is left with members of the classic protocol only may become a classic one.

        Raises: KafkaError; the group is then unchanged.
        """
        if not members:
            return
        changes = self.member_tombstones(group, members, reason)
        if self.may_downgrade(group, members):
            try:
                self.downgrade(group, members)
                return
            except NotDowngradedError as error:  # members can leave whatever the others subscribe to
                logger.warning("group %s: stays a consumer group: %s", group.group_id, error.message)
        group_id = group.group_id
        left: dict[str, int] = {}
        for member in members:
            if member.topic_regex:
                left[member.topic_regex] = left.get(member.topic_regex, 0) + 1
        unused = [regex for regex, count in left.items() if group.regex_subscribers.get(regex, 0) == count]
        changes += [tombstone(records.REGULAR_EXPRESSION, group_id, regex) for regex in unused]
        value = self.hashes.group_hash(group.subscribers_without(members, unused).topics)
        changes.append(RECORDS.epoch(group_id, GroupEpoch(group.epoch + 1, value)))
        self.write_removal(group, members, changes)

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[ConsumerGroupMember]) -> bool:
        """Return whether a group is converted to a classic one when these members leave."""
        staying = len(group.members) - len(leaving)
        if not group.are_others_classic(leaving) or staying <= 0:
            return False
        if not self.settings.allows_downgrades or staying > self.settings.classic_max_size:
            logger.info("group %s: stays a consumer group: the configuration allows no downgrade", group.group_id)
            return False
        return True


def check_epoch(member: ConsumerGroupMember, epoch: int, reported: Reported | None) -> None:
    """Check the epoch of a heartbeat. Raises: KafkaError FENCED_MEMBER_EPOCH.

    The previous epoch is accepted from a member that reports only assigned partitions: the response with the current
    epoch may be lost.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    is_previous = epoch < member.member_epoch and epoch == member.previous_member_epoch
    if is_previous and is_subset(reported, member.assigned):
        return
    raise other_epoch("consumer", epoch, member.member_epoch)


def check_instance(present: ConsumerGroupMember | None, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """Return the member of an instance id. Raises: KafkaError UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if present is None:
        raise KafkaError(Errors.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {present.member_id}."
        raise KafkaError(Errors.FENCED_INSTANCE_ID, text)
    return present


def _updated(member: ConsumerGroupMember, request: HeartbeatRequest) -> ConsumerGroupMember:
    """Return the member with the fields of a heartbeat."""
    names, timeout_ms = request.topic_names, request.rebalance_timeout_ms
    return ConsumerGroupMember(  # takes a third of the time of _replace
        member.member_id,
        member.member_epoch,
        member.previous_member_epoch,
        member.state,
        _given(request.instance_id, member.instance_id),
        _given(request.rack_id, member.rack_id),
        member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        request.client_id,
        request.client_host,
        member.topic_names if names is None else frozenset(names),
        _given(request.topic_regex, member.topic_regex),
        _given(request.server_assignor, member.server_assignor),
        member.assigned,
        member.pending_revocation,
        None,
    )


def _given(value: str | None, otherwise: str | None) -> str | None:
    return otherwise if value is None else value
