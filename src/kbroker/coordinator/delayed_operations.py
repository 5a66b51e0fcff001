"""The operations of the group purgatories: delayed joins, syncs and heartbeats, each under its group's lock.

Source: ``DelayedJoin``, ``InitialDelayedJoin``, ``DelayedSync``, ``DelayedHeartbeat``.
"""

from __future__ import annotations

from typing import Protocol

from kbroker._core.timer.purgatory import DelayedOperation
from kbroker.coordinator.classic_group import ClassicGroup, GroupState

NO_MEMBERSHIP = (GroupState.DEAD, GroupState.EMPTY, GroupState.PREPARING_REBALANCE)


class GroupActions(Protocol):
    """Actions of delayed operations when they complete or expire; ``Membership`` implements them."""

    def watch_join(self, group: ClassicGroup, waiting: DelayedOperation) -> None: ...

    def complete_join(self, group: ClassicGroup) -> None: ...

    def expire_sync(self, group: ClassicGroup, generation_id: int) -> None: ...

    def expire_heartbeat(self, group: ClassicGroup, member_id: str, is_pending: bool) -> None: ...


class _GroupOperation(DelayedOperation):
    """An operation of a group, under its lock."""

    def __init__(self, actions: GroupActions, group: ClassicGroup, timeout_ms: int) -> None:
        super().__init__(max(0, timeout_ms), group.lock)
        self._actions = actions
        self._group = group


class DelayedJoin(_GroupOperation):
    """A rebalance that waits until every member has joined, at most for the maximum of their rebalance timeouts."""

    def try_complete(self) -> bool:
        return self._group.have_all_joined and self.force_complete()

    def on_complete(self) -> None:
        self._actions.complete_join(self._group)


class InitialDelayedJoin(_GroupOperation):
    """The first rebalance of an empty group. It waits for more members, and longer while members keep joining."""

    def __init__(
        self, actions: GroupActions, group: ClassicGroup, configured_ms: int, delay_ms: int, remaining_ms: int
    ) -> None:
        super().__init__(actions, group, delay_ms)
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
                again = InitialDelayedJoin(self._actions, group, self._configured_ms, delay_ms, remaining_ms)
                self._actions.watch_join(group, again)
            else:
                self._actions.complete_join(group)


class DelayedSync(_GroupOperation):
    """Wait for every member's SyncGroup; expiry removes the members that have sent none."""

    def __init__(self, actions: GroupActions, group: ClassicGroup, generation_id: int, timeout_ms: int) -> None:
        super().__init__(actions, group, timeout_ms)
        self._generation_id = generation_id

    def try_complete(self) -> bool:
        group = self._group
        over = group.generation_id != self._generation_id or group.state in NO_MEMBERSHIP or group.have_all_synced
        return over and self.force_complete()

    def on_expiration(self) -> None:
        self._actions.expire_sync(self._group, self._generation_id)


class DelayedHeartbeat(_GroupOperation):
    """The session of a member, or the time within which a client must join with its assigned member id."""

    def __init__(
        self, actions: GroupActions, group: ClassicGroup, member_id: str, timeout_ms: int, is_pending: bool = False
    ) -> None:
        super().__init__(actions, group, timeout_ms)
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
        self._actions.expire_heartbeat(self._group, self._member_id, self._is_pending)
