"""Settings of groups of the newer protocols: the broker's, and bounds of the settings of a single group.

Source: ``GroupConfig``, ``GroupConfigManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

INT32_MAX = 2**31 - 1

#: Returns the configs of a group itself by its id, as stored: strings.
GroupConfigs = Callable[[str], Mapping[str, str]]


def no_group_configs(group_id: str) -> Mapping[str, str]:
    """Return no configs, for any group."""
    return {}


class Limits(NamedTuple):
    """A setting of the broker, and the bounds of a group's own value."""

    default: int
    least: int
    most: int

    def of(self, own: str | None) -> int:
        """Return the value for a group. ``own``: its own value, which is limited to the bounds."""
        return self.default if own is None else min(max(int(own), self.least), self.most)


_SESSION, _HEARTBEAT, _ASSIGNMENT = Limits(45_000, 45_000, 60_000), Limits(5000, 5000, 15_000), Limits(1000, 0, 15_000)


@dataclass(frozen=True)
class ModernGroupSettings:
    """Settings of the groups of one kind, in milliseconds and members. Base class.

    ``group_configs`` returns the configs of a group itself; ``current_assignment_interval_ms`` the dynamic setting of
    the broker.
    """

    KIND: ClassVar[str]  # prefix of a group's own configs
    session_timeout: Limits = _SESSION
    heartbeat_interval: Limits = _HEARTBEAT
    assignment_interval: Limits = _ASSIGNMENT
    max_size: int = INT32_MAX
    group_configs: GroupConfigs = no_group_configs
    current_assignment_interval_ms: Callable[[], int] | None = None

    def session_timeout_ms(self, group_id: str) -> int:
        return self.session_timeout.of(self.own(group_id, "session.timeout.ms"))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.heartbeat_interval.of(self.own(group_id, "heartbeat.interval.ms"))

    def assignment_interval_ms(self, group_id: str) -> int:
        own = self.own(group_id, "assignment.interval.ms")
        if own is None and self.current_assignment_interval_ms is not None:
            return self.current_assignment_interval_ms()
        return self.assignment_interval.of(own)

    def own(self, group_id: str, name: str) -> str | None:
        """Return a config of the group itself, None if it is not set; ``name``: without the kind."""
        configs = self.group_configs(group_id)
        return configs.get(f"{self.KIND}.{name}") if configs else None
