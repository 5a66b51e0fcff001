"""Settings of consumer groups.

Source: ``GroupCoordinatorConfig``, ``GroupConfig``, ``ConsumerGroupMigrationPolicy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kbroker.coordinator.modern_group.settings import INT32_MAX, ModernGroupSettings


@dataclass(frozen=True)
class ConsumerGroupSettings(ModernGroupSettings):
    """Settings, in milliseconds and members. ``assignors``: names, the default one first."""

    KIND: ClassVar[str] = "consumer"
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    regex_refresh_interval_ms: int = 600_000
    classic_max_size: int = INT32_MAX
    is_enabled: bool = True

    @property
    def allows_upgrades(self) -> bool:
        return self.migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def allows_downgrades(self) -> bool:
        return self.migration_policy.lower() in ("bidirectional", "downgrade")

    @property
    def allows_classic_members(self) -> bool:
        return self.migration_policy.lower() != "disabled"
