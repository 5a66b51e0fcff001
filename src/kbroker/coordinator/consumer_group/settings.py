"""Settings of consumer groups: the broker's, and those of a single group.

Source: ``GroupCoordinatorConfig``, ``ConsumerGroupMigrationPolicy``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.coordinator.modern_group.settings import GroupConfigs, Limits, no_group_configs


class ConsumerGroupSettings(NamedTuple):
    """Settings, in milliseconds and members. ``assignors``: names, the default one first."""

    session_timeout: Limits = Limits(45_000, 45_000, 60_000)
    heartbeat_interval: Limits = Limits(5000, 5000, 15_000)
    assignment_interval: Limits = Limits(1000, 0, 15_000)
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    regex_refresh_interval_ms: int = 600_000
    classic_max_size: int = 2**31 - 1
    is_enabled: bool = True
    group_configs: GroupConfigs = no_group_configs
    current_assignment_interval_ms: Callable[[], int] | None = None  # of the broker, at present: it is dynamic

    @property
    def allows_upgrades(self) -> bool:
        return self.migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def allows_downgrades(self) -> bool:
        return self.migration_policy.lower() in ("bidirectional", "downgrade")

    @property
    def allows_classic_members(self) -> bool:
        return self.migration_policy.lower() != "disabled"

    def session_timeout_ms(self, group_id: str) -> int:
        return self.session_timeout.of(self.group_configs(group_id).get("consumer.session.timeout.ms"))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.heartbeat_interval.of(self.group_configs(group_id).get("consumer.heartbeat.interval.ms"))

    def assignment_interval_ms(self, group_id: str) -> int:
        own = self.group_configs(group_id).get("consumer.assignment.interval.ms")
        if own is None and self.current_assignment_interval_ms is not None:
            return self.current_assignment_interval_ms()
        return self.assignment_interval.of(own)
