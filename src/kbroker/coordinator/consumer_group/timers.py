"""The time-outs of members of consumer groups: sessions, rebalances, and joins and syncs of the classic protocol.

Source: ``GroupMetadataManager`` (its timers), ``CoordinatorTimer``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker.coordinator.consumer_group.group import ConsumerGroup

SESSION, REBALANCE, JOIN, SYNC, REGEX = "session", "rebalance", "join", "sync", "regex"
ALL_OF_A_MEMBER = (SESSION, REBALANCE, JOIN, SYNC)


class MemberTimer(DelayedOperation):
    """A time-out; ``fire`` is called under the group's lock when it is over, unless it was replaced or cancelled."""

    def __init__(self, group: ConsumerGroup, key: tuple[str, str], timeout_ms: int, fire: Callable[[], None]) -> None:
        super().__init__(max(0, timeout_ms), group.lock)
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
            del group.timers[self._key]
            self._fire()


class MemberTimers:
    """Sets and cancels time-outs. The caller holds the group's lock."""

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory

    def set(self, group: ConsumerGroup, kind: str, name: str, timeout_ms: int, fire: Callable[[], None]) -> None:
        """Begin a time-out; an earlier one of the kind is over."""
        self.cancel(group, kind, name)
        key = kind, name
        timer = MemberTimer(group, key, timeout_ms, fire)
        group.timers[key] = timer
        self._purgatory.try_complete_else_watch(timer, [(group.group_id, kind, name)])

    def set_if_absent(
        self, group: ConsumerGroup, kind: str, name: str, timeout_ms: int, fire: Callable[[], None]
    ) -> None:
        """Begin a time-out, unless one of the kind runs."""
        if (kind, name) not in group.timers:
            self.set(group, kind, name, timeout_ms, fire)

    def cancel(self, group: ConsumerGroup, kind: str, name: str) -> None:
        """End a time-out, if there is one."""
        if group.timers.pop((kind, name), None) is not None:
            self._purgatory.check_and_complete((group.group_id, kind, name))

    def cancel_member(self, group: ConsumerGroup, member_id: str) -> None:
        """End all time-outs of a member."""
        for kind in ALL_OF_A_MEMBER:
            self.cancel(group, kind, member_id)

    def cancel_all(self, group: ConsumerGroup) -> None:
        """End all time-outs of a group."""
        for kind, name in list(group.timers):
            self.cancel(group, kind, name)
