"""The members of classic groups: join, sync, heartbeat, leave, and the rebalances they cause.

Nothing here blocks: a delayed request gets its response later through its callback, under the group's lock.
Lock order: a group's lock, then the purgatories' own.
Source: ``GroupCoordinator``, ``GroupMetadataManager`` (classic groups); ``DelayedJoin``, ``InitialDelayedJoin``,
``DelayedSync``, ``DelayedHeartbeat``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.coordinator.classic_group import (
    ClassicGroup,
    GroupState,
    JoinCallback,
    JoinResult,
    Member,
    Protocols,
    SyncCallback,
    SyncResult,
)
from kbroker.coordinator.group_sensors import GroupSensors

logger = get_logger(__name__)

# a first join has no session yet, and the close of a muted connection is not detected
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
# a rebalance that no member has joined is repeated until the sessions end; a client may have chosen a time-out of 0
LEAST_REPEAT_MS = 100
CLIENT_ID_IN_MEMBER_ID = 1000  # characters; a member id must fit the protocol's STRING
NO_MEMBERSHIP = (GroupState.DEAD, GroupState.EMPTY, GroupState.PREPARING_REBALANCE)


class JoinRequest(NamedTuple):
    """A join. ``member_id`` is empty for a new member; ``protocols``: name and metadata, the preferred first."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = False
    supports_skipping_assignment: bool = False


class SyncRequest(NamedTuple):
    """A sync. ``assignments`` by member id: from the leader; empty from other members."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """A member to remove: by member id, by both ids, or (an administrator, a static member) by instance id alone."""

    member_id: str
    group_instance_id: str | None


class Membership:
    """Changes of the membership of classic groups. Callers hold the lock of a group that is not DEAD.

    Args: ``initial_delay_ms``: time for which an empty group waits for more members; ``max_size`` of a group.
    Threads: any; a group's lock guards the whole group.
    """

    def __init__(
        self,
        clock: BaseClock,
        save: Callable[[ClassicGroup, Mapping[str, bytes] | None], None],
        joins: Purgatory,
        heartbeats: Purgatory,
        *,
        initial_delay_ms: int,
        max_size: int,
        sensors: GroupSensors,
    ) -> None:
        self._clock = clock
        self._failures = RepeatedFailures(clock)  # a failure recurs soon: members join again at once
        self._save = save
        self._joins = joins
        self._heartbeats = heartbeats
        self._initial_delay_ms = initial_delay_ms
        self._max_size = max_size
        self._sensors = sensors

    # ------------------------------------------------------------ join

    def join(self, group: ClassicGroup, request: JoinRequest, on_joined: JoinCallback) -> None:
        """Add or keep a member; call ``on_joined`` now or when the rebalance is complete."""
        names = [name for name, _ in request.protocols]
        if not group.accepts(request.member_id, self._max_size):
            if request.member_id in group.members:
                self._heartbeat_over(group, request.member_id)
            group.remove(request.member_id)
            on_joined(JoinResult(Errors.GROUP_MAX_SIZE_REACHED, ""))
        elif not group.supports(request.protocol_type, names):
            on_joined(JoinResult(Errors.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif not request.member_id:
            self._join_new(group, request, on_joined)
        else:
            self._join_known(group, request, on_joined)
        self._check_join(group)

    def _join_new(self, group: ClassicGroup, request: JoinRequest, on_joined: JoinCallback) -> None:
        prefix = request.client_id if request.group_instance_id is None else request.group_instance_id
        member_id = f"{prefix[:CLIENT_ID_IN_MEMBER_ID]}-{uuid.uuid4()}"
        if request.group_instance_id is not None:
            old_id = group.static_members.get(request.group_instance_id)
            if old_id is not None:
                self._replace_static(group, old_id, member_id, request, on_joined)
            else:
                self._add(group, member_id, request, on_joined)
        elif request.requires_known_member_id:
            group.pending_joins.add(member_id)
            group.is_known = True
            waiting = DelayedHeartbeat(self, group, member_id, request.session_timeout_ms, is_pending=True)
            self._heartbeats.try_complete_else_watch(waiting, [_member_key(group, member_id)])
            on_joined(JoinResult(Errors.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, request, on_joined)

    def _join_known(self, group: ClassicGroup, request: JoinRequest, on_joined: JoinCallback) -> None:
        member_id = request.member_id
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:
                on_joined(JoinResult(Errors.UNKNOWN_MEMBER_ID, member_id))  # only dynamic members get ids in advance
            else:
                self._add(group, member_id, request, on_joined)
            return
        error = group.member_error(member_id, request.group_instance_id)
        if error is not Errors.NONE:
            on_joined(JoinResult(error, member_id))
            return
        member = group.members[member_id]
        unchanged = list(member.protocols) == list(request.protocols)
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            on_joined(group.join_result(member_id))  # its response was lost
        elif group.state is GroupState.STABLE and unchanged and group.leader_id != member_id:
            on_joined(group.join_result(member_id))
        else:
            group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
            group.await_join(member, on_joined)
            self.start_rebalance(group)

    def _add(self, group: ClassicGroup, member_id: str, request: JoinRequest, on_joined: JoinCallback) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True  # the first rebalance may wait for more members
        group.add(member, request.protocol_type, on_joined)
        self._await_heartbeat(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.start_rebalance(group)

    def _replace_static(
        self, group: ClassicGroup, old_id: str, new_id: str, request: JoinRequest, on_joined: JoinCallback
    ) -> None:
        """Rejoin a static member under a new id: no rebalance in a stable group, unless the protocol changes."""
        assert request.group_instance_id is not None
        old_leader = group.leader_id
        member = group.replace_static(request.group_instance_id, old_id, new_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._heartbeat_over(group, old_id)
        if group.state is not GroupState.STABLE:
            group.await_join(member, on_joined)
            # the leader may have assigned to the old id already: even a group that syncs rebalances again
            self.start_rebalance(group)
            return
        if group.select_protocol() != group.protocol_name:
            group.await_join(member, on_joined)
            self.start_rebalance(group)
            return
        try:
            self._save(group, None)
        except KafkaError as error:
            group.update(member, *before)
            group.replace_static(request.group_instance_id, new_id, old_id)
            self._await_heartbeat(group, member)
            on_joined(JoinResult(error.error, ""))
            return
        self._await_heartbeat(group, member)
        if request.supports_skipping_assignment:
            on_joined(group.join_result(new_id, skip_assignment=group.leader_id == new_id))
        else:
            # before v9 a returning leader must not assign again: its response names the old leader id
            result = group.join_result(new_id, with_members=False)
            on_joined(result._replace(leader_id=old_leader or ""))

    # ------------------------------------------------------------ rebalance

    def start_rebalance(self, group: ClassicGroup) -> None:
        """Start a rebalance, if the state allows that: the members must join again."""
        if group.can_rebalance:
            self._rebalance(group)

    def _rebalance(self, group: ClassicGroup) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._refuse_syncs(group, Errors.REBALANCE_IN_PROGRESS)
        waiting: DelayedOperation
        if group.state is GroupState.EMPTY:
            delay_ms = self._initial_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            waiting = InitialDelayedJoin(self, group, delay_ms, delay_ms, remaining_ms)
        else:
            waiting = DelayedJoin(self, group, group.rebalance_timeout_ms)
        logger.info("group %s: rebalance started from generation %d", group.group_id, group.generation_id)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._clock.wall_ms())
        self._joins.check_and_complete(_sync_key(group))
        self.watch_join(group, waiting)

    def watch_join(self, group: ClassicGroup, waiting: DelayedOperation) -> None:
        """Start to wait for the members' joins."""
        self._joins.try_complete_else_watch(waiting, [_join_key(group)])

    def complete_join(self, group: ClassicGroup) -> None:
        """End the wait for joins: dynamic members that did not rejoin are removed, and the next generation begins.

        If only static members are left, and none has rejoined, the wait begins again.
        """
        with group.lock:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return  # the group was deleted, or the broker stops
            for member in group.not_yet_rejoined():
                if member.group_instance_id is None:
                    logger.info("group %s: %s did not rejoin in time", group.group_id, member.member_id)
                    group.remove(member.member_id)
                    self._heartbeat_over(group, member.member_id)
            if group.members and not group.elect_joined_leader():
                again_ms = max(group.rebalance_timeout_ms, LEAST_REPEAT_MS)
                self.watch_join(group, DelayedJoin(self, group, again_ms))
                return
            group.next_generation(self._clock.wall_ms())
            logger.info(
                "group %s: generation %d has %d members",
                group.group_id,
                group.generation_id,
                len(group.members),
            )
            if not group.members:
                self._save_empty(group)
                return
            for member in list(group.members.values()):
                group.respond_to_join(member, group.join_result(member.member_id))
                member.is_new = False
                self._await_heartbeat(group, member)
                group.pending_syncs.add(member.member_id)
            waiting = DelayedSync(self, group, group.generation_id, group.rebalance_timeout_ms)
            self._joins.try_complete_else_watch(waiting, [_sync_key(group)])

    def _save_empty(self, group: ClassicGroup) -> None:
        try:
            self._save(group, None)
        except KafkaError as error:  # the next start loads the old members, and their sessions expire
            self._note_failure(group, "that the group is empty", error)

    def _note_failure(self, group: ClassicGroup, noun: str, error: KafkaError) -> None:
        message = "group %s: cannot store %s: %s"
        self._failures.log(noun, logger.warning, message, group.group_id, noun, str(error))

    # ------------------------------------------------------------ sync

    def sync(self, group: ClassicGroup, request: SyncRequest, on_synced: SyncCallback) -> None:
        """Call ``on_synced`` with an error, or with the member's assignment, now or once the leader has sent it."""
        error = _sync_error(group, request)
        if error is not Errors.NONE:
            on_synced(SyncResult(error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._synced(group, member)
            self._await_heartbeat(group, member)
            on_synced(SyncResult(Errors.NONE, group.protocol_type, group.protocol_name, member.assignment))
            return
        group.await_sync(member, on_synced)
        self._synced(group, member)
        if group.leader_id == member.member_id:
            self._take_assignments(group, request.assignments)

    def _synced(self, group: ClassicGroup, member: Member) -> None:
        group.pending_syncs.discard(member.member_id)
        self._joins.check_and_complete(_sync_key(group))

    def _take_assignments(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        try:
            self._save(group, assignments)
        except KafkaError as error:
            self._note_failure(group, "the assignments", error)
            self._refuse_syncs(group, error.error)
            self.start_rebalance(group)
            return
        group.transition_to(GroupState.STABLE, self._clock.wall_ms())
        self._sensors.classic_rebalances.record()
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")  # a member without an assignment gets no bytes
            result = SyncResult(Errors.NONE, group.protocol_type, group.protocol_name, member.assignment)
            if group.respond_to_sync(member, result):
                self._await_heartbeat(group, member)

    def _refuse_syncs(self, group: ClassicGroup, error: Errors) -> None:
        for member in group.members.values():
            member.assignment = b""
            if group.respond_to_sync(member, SyncResult(error)):
                self._await_heartbeat(group, member)

    def expire_sync(self, group: ClassicGroup, generation_id: int) -> None:
        """Remove members that joined this generation and did not send SyncGroup; the others must join again."""
        with group.lock:
            active = group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
            if group.generation_id != generation_id or not active or group.have_all_synced:
                return
            for member_id in list(group.pending_syncs):
                logger.info("group %s: %s did not sync in time", group.group_id, member_id)
                group.remove(member_id)
                self._heartbeat_over(group, member_id)
            self.start_rebalance(group)

    # ------------------------------------------------------------ heartbeat

    def heartbeat(
        self, group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> Errors:
        """Extend a session; return the error: REBALANCE_IN_PROGRESS while the group prepares a rebalance."""
        error = group.member_error(member_id, group_instance_id)
        if error is not Errors.NONE:
            return error
        if generation_id != group.generation_id:
            return Errors.ILLEGAL_GENERATION
        self._await_heartbeat(group, group.members[member_id])
        preparing = group.state is GroupState.PREPARING_REBALANCE
        return Errors.REBALANCE_IN_PROGRESS if preparing else Errors.NONE

    def touch(self, group: ClassicGroup, member_id: str) -> None:
        """Extend the session of a member that sent another request."""
        member = group.members.get(member_id)
        if member is not None:
            self._await_heartbeat(group, member)

    def _await_heartbeat(self, group: ClassicGroup, member: Member, timeout_ms: int | None = None) -> None:
        key = _member_key(group, member.member_id)
        member.heartbeat_satisfied = True
        self._heartbeats.check_and_complete(key)
        member.heartbeat_satisfied = False
        session_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        waiting = DelayedHeartbeat(self, group, member.member_id, session_ms)
        self._heartbeats.try_complete_else_watch(waiting, [key])

    def _heartbeat_over(self, group: ClassicGroup, member_id: str) -> None:
        """Remove the session of a removed member from the purgatory."""
        self._heartbeats.check_and_complete(_member_key(group, member_id))

    def expire_heartbeat(self, group: ClassicGroup, member_id: str, is_pending: bool) -> None:
        """Remove a member whose session has expired, or a member id with which no client has joined."""
        with group.lock:
            if group.state is GroupState.DEAD:
                return
            if is_pending:
                if member_id in group.pending_joins:
                    self._remove_pending(group, member_id)
                return
            member = group.members.get(member_id)
            if member is not None and not member.has_satisfied_heartbeat:
                logger.info("group %s: the session of %s expired", group.group_id, member_id)
                self._remove(group, member_id)

    def resume(self, group: ClassicGroup) -> None:
        """Start the sessions of a loaded group."""
        for member in group.members.values():
            self._await_heartbeat(group, member)

    # ------------------------------------------------------------ leave

    def leave(self, group: ClassicGroup, leaving: Sequence[LeavingMember]) -> list[Errors]:
        """Remove members; return one error code each, in order. A rebalance starts once, after the last one."""
        count = len(group.members)
        errors = [self._leave(group, one) for one in leaving]
        if len(group.members) < count:
            self._follow_removal(group)
        else:
            self._check_join(group)
        return errors

    def _leave(self, group: ClassicGroup, leaving: LeavingMember) -> Errors:
        member_id, instance_id = leaving
        if not member_id:
            member_id = group.static_members.get(instance_id or "", "")
            if not member_id:
                return Errors.UNKNOWN_MEMBER_ID
        elif member_id in group.pending_joins:
            group.pending_joins.discard(member_id)
            self._heartbeat_over(group, member_id)
            return Errors.NONE
        else:
            error = group.member_error(member_id, instance_id)
            if error is not Errors.NONE:
                return error
        logger.info("group %s: %s left", group.group_id, member_id)
        group.remove(member_id)
        self._heartbeat_over(group, member_id)
        return Errors.NONE

    def _remove(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self._follow_removal(group)

    def _follow_removal(self, group: ClassicGroup) -> None:
        """Complete the rebalance that waited for removed members, or start another one."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._check_join(group)
        else:
            self.start_rebalance(group)

    def _remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_joins.discard(member_id)
        self._check_join(group)

    def _check_join(self, group: ClassicGroup) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self._joins.check_and_complete(_join_key(group))

    def dismiss(self, group: ClassicGroup, error: Errors) -> None:
        """Make a group DEAD; delayed requests get ``error``."""
        for member in group.members.values():
            group.respond_to_join(member, JoinResult(error, member.member_id))
            group.respond_to_sync(member, SyncResult(error))
        members = [*group.members, *group.pending_joins]
        group.transition_to(GroupState.DEAD, self._clock.wall_ms())
        for member_id in members:
            self._heartbeat_over(group, member_id)
        self._joins.check_and_complete(_sync_key(group))


def _sync_error(group: ClassicGroup, request: SyncRequest) -> Errors:
    error = group.member_error(request.member_id, request.group_instance_id)
    if error is not Errors.NONE:
        return error
    if request.generation_id != group.generation_id:
        return Errors.ILLEGAL_GENERATION
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return Errors.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return Errors.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return Errors.REBALANCE_IN_PROGRESS
    return Errors.NONE


def _join_key(group: ClassicGroup) -> tuple[str, str]:
    return ("join", group.group_id)


def _sync_key(group: ClassicGroup) -> tuple[str, str]:
    return ("sync", group.group_id)


def _member_key(group: ClassicGroup, member_id: str) -> tuple[str, str]:
    return (group.group_id, member_id)


# ------------------------------------------------------------ operations of the purgatories


class _GroupOperation(DelayedOperation):
    """An operation of a group, under its lock."""

    def __init__(self, membership: Membership, group: ClassicGroup, timeout_ms: int) -> None:
        super().__init__(max(0, timeout_ms), group.lock)
        self._membership = membership
        self._group = group


class DelayedJoin(_GroupOperation):
    """A rebalance that waits until every member has joined, at most for the maximum of their rebalance timeouts."""

    def try_complete(self) -> bool:
        return self._group.have_all_joined and self.force_complete()

    def on_complete(self) -> None:
        self._membership.complete_join(self._group)


class InitialDelayedJoin(_GroupOperation):
    """The first rebalance of an empty group. It waits for more members, and longer while members keep joining."""

    def __init__(
        self, membership: Membership, group: ClassicGroup, configured_ms: int, delay_ms: int, remaining_ms: int
    ) -> None:
        super().__init__(membership, group, delay_ms)
        self._configured_ms = configured_ms
        self._remaining_ms = remaining_ms

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        group = self._group
        with group.lock:
            if group.new_member_added and self._remaining_ms > 0:
                group.new_member_added = False
                delay_ms = min(self._configured_ms, self._remaining_ms)
                remaining_ms = max(self._remaining_ms - self.timeout_ms, 0)
                again = InitialDelayedJoin(self._membership, group, self._configured_ms, delay_ms, remaining_ms)
                self._membership.watch_join(group, again)
            else:
                self._membership.complete_join(group)


class DelayedSync(_GroupOperation):
    """Wait for every member's SyncGroup; expiry removes the members that have sent none."""

    def __init__(self, membership: Membership, group: ClassicGroup, generation_id: int, timeout_ms: int) -> None:
        super().__init__(membership, group, timeout_ms)
        self._generation_id = generation_id

    def try_complete(self) -> bool:
        group = self._group
        over = group.generation_id != self._generation_id or group.state in NO_MEMBERSHIP or group.have_all_synced
        return over and self.force_complete()

    def on_expiration(self) -> None:
        self._membership.expire_sync(self._group, self._generation_id)


class DelayedHeartbeat(_GroupOperation):
    """The session of a member, or the time within which a client must join with its assigned member id."""

    def __init__(
        self, membership: Membership, group: ClassicGroup, member_id: str, timeout_ms: int, is_pending: bool = False
    ) -> None:
        super().__init__(membership, group, timeout_ms)
        self._member_id = member_id
        self._is_pending = is_pending

    def try_complete(self) -> bool:
        group = self._group
        if group.state is GroupState.DEAD:
            return self.force_complete()
        if self._is_pending:
            return self._member_id not in group.pending_joins and self.force_complete()
        member = group.members.get(self._member_id)
        return (member is None or member.has_satisfied_heartbeat) and self.force_complete()

    def on_expiration(self) -> None:
        self._membership.expire_heartbeat(self._group, self._member_id, self._is_pending)
