"""The time-outs of members: sessions, rebalances, and joins and syncs of members of the classic protocol.

Source: ``GroupMetadataManager`` (its timers), ``CoordinatorTimer``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.clock import BaseClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker.coordinator.modern_group.group import ModernGroup

SESSION, REBALANCE, JOIN, SYNC, REGEX = "session", "rebalance", "join", "sync", "regex"
ALL_OF_A_MEMBER = (SESSION, REBALANCE, JOIN, SYNC)


#: Called at the end of a time-out; returns the milliseconds until it is called again, None if it is done.
Fire = Callable[[], int | None]


class MemberTimer(DelayedOperation):
    """A time-out; ``fire`` is called under the group's lock when it ends, unless it was replaced or cancelled.

    ``due_ms``: time of its next check; ``deadline_ms``: its end, which may have moved since.
    """

    def __init__(
        self,
        timers: MemberTimers,
        group: ModernGroup,
        key: tuple[str, str],
        timeout_ms: int,
        fire: Fire,
    ) -> None:
        super().__init__(max(0, timeout_ms), group.lock)
        self.due_ms = self.deadline_ms = timers.clock.now_ms() + timeout_ms
        self._timers = timers
        self._group = group
        self._key = key
        self._fire = fire

    def try_complete(self) -> bool:
        return self._group.timers.get(self._key) is not self and self.force_complete()

    def on_expiration(self) -> None:
        group = self._group
        with group.lock:
            if group.is_dead or group.timers.get(self._key) is not self:
                return
            left_ms = self.deadline_ms - self._timers.clock.now_ms()
            if left_ms > 0:
                self._timers.set(group, *self._key, left_ms, self._fire)
                return
            del group.timers[self._key]
            again_ms = self._fire()
            if again_ms is not None:
                self._timers.set(group, *self._key, again_ms, self._fire)


class MemberTimers:
    """Time-outs of members. The caller holds the group's lock."""

    def __init__(self, purgatory: Purgatory, clock: BaseClock) -> None:
        self.clock = clock
        self._purgatory = purgatory

    def set(self, group: ModernGroup, kind: str, name: str, timeout_ms: int, fire: Fire) -> None:
        """Start a time-out; it replaces an earlier one of the kind."""
        self.cancel(group, kind, name)
        key = kind, name
        timer = MemberTimer(self, group, key, timeout_ms, fire)
        group.timers[key] = timer
        self._purgatory.try_complete_else_watch(timer, [(group.group_id, kind, name)])

    def extend(self, group: ModernGroup, kind: str, name: str, timeout_ms: int, fire: Fire) -> None:
        """Start or restart a time-out. A running time-out only gets a later end, and keeps its ``fire``."""
        timer = group.timers.get((kind, name))
        deadline_ms = self.clock.now_ms() + timeout_ms
        if isinstance(timer, MemberTimer) and timer.due_ms <= deadline_ms:
            timer.deadline_ms = deadline_ms
        else:
            self.set(group, kind, name, timeout_ms, fire)

    def set_if_absent(self, group: ModernGroup, kind: str, name: str, timeout_ms: int, fire: Fire) -> None:
        """Start a time-out, unless one of the kind runs."""
        if (kind, name) not in group.timers:
            self.set(group, kind, name, timeout_ms, fire)

    def cancel(self, group: ModernGroup, kind: str, name: str) -> None:
        """End a time-out, if there is one."""
        if group.timers.pop((kind, name), None) is not None:
            self._purgatory.check_and_complete((group.group_id, kind, name))

    def cancel_member(self, group: ModernGroup, member_id: str) -> None:
        """End all time-outs of a member."""
        for kind in ALL_OF_A_MEMBER:
            self.cancel(group, kind, member_id)

    def cancel_all(self, group: ModernGroup) -> None:
        """End all time-outs of a group."""
        for kind, name in list(group.timers):
            self.cancel(group, kind, name)
