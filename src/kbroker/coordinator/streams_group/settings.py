"""Settings of streams groups.

Source: ``GroupCoordinatorConfig``, ``GroupConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kbroker.coordinator.modern_group.settings import INT32_MAX, Limits, ModernGroupSettings
from kbroker.coordinator.streams_group.assignor import STANDBY_REPLICAS

_DELAY, _STANDBYS = Limits(3000, 0, INT32_MAX), Limits(0, 0, 2)


@dataclass(frozen=True)
class StreamsGroupSettings(ModernGroupSettings):
    """Settings, in milliseconds and members."""

    KIND: ClassVar[str] = "streams"
    initial_rebalance_delay: Limits = _DELAY
    standby_replicas: Limits = _STANDBYS
    is_enabled: bool = True

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        return self.initial_rebalance_delay.of(self.own(group_id, "initial.rebalance.delay.ms"))

    def assignment_configs(self, group_id: str) -> Mapping[str, str]:
        """Return the settings of the assignor; a changed setting leads to a new target assignment."""
        return {STANDBY_REPLICAS: str(self.standby_replicas.of(self.own(group_id, STANDBY_REPLICAS)))}
