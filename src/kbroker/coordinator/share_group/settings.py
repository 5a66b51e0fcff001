"""Settings of share groups that the group coordinator uses.

Source: ``GroupCoordinatorConfig``, ``GroupConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kbroker.coordinator.modern_group.settings import ModernGroupSettings


@dataclass(frozen=True)
class ShareGroupSettings(ModernGroupSettings):
    """Settings, in milliseconds and members."""

    KIND: ClassVar[str] = "share"
    max_size: int = 200
    initialize_retry_ms: int = 30_000  # the initialization of share partitions is retried after this time
