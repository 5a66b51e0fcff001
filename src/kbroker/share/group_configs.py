"""Configs of share groups: a group's own, within the bounds of the broker, or the broker's.

Source: ``ShareGroupConfigProvider``, ``GroupConfig``, ``ShareGroupAutoOffsetResetStrategy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resources import duration_ms
from kbroker.coordinator.modern_group.settings import Limits

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration:"


class ShareGroupConfigs:
    """Configs of one share group, looked up at each access. Threads: any.

    Args: ``own`` returns the configs of the group itself, as stored.
    """

    def __init__(self, limits: Mapping[str, Limits], own: Callable[[], Mapping[str, str]]) -> None:
        self._limits = limits
        self._own = own

    def _limited(self, name: str) -> int:
        return self._limits[name].of(self._own().get(f"share.{name}"))

    @property
    def record_lock_duration_ms(self) -> int:
        """Duration of an acquisition lock in milliseconds."""
        return self._limited("record.lock.duration.ms")

    @property
    def delivery_count_limit(self) -> int:
        """Maximum number of deliveries of a record."""
        return self._limited("delivery.count.limit")

    @property
    def max_record_locks(self) -> int:
        """Maximum number of records of a partition in flight."""
        return self._limited("partition.max.record.locks")

    @property
    def is_renew_enabled(self) -> bool:
        """Return whether members may renew locks."""
        return self._own().get("share.renew.acknowledge.enable", "true").strip().lower() == "true"

    @property
    def is_read_committed(self) -> bool:
        """Return whether records of open and aborted transactions are left out."""
        return self._own().get("share.isolation.level") == "read_committed"

    @property
    def offset_reset(self) -> tuple[str, int]:
        """Strategy of the first start offset, and the duration in milliseconds of BY_DURATION."""
        text = self._own().get("share.auto.offset.reset", LATEST)
        if text.startswith(BY_DURATION):
            return BY_DURATION, duration_ms(text[len(BY_DURATION) :])
        return text, 0


def share_limits(config: BrokerConfig) -> Mapping[str, Limits]:
    """Return the broker's settings that a group can replace, with the bounds of the group's values."""
    names = "record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks"
    words = "", "min.", "max."
    return {name: Limits(*(config.integer(f"group.share.{word}{name}") for word in words)) for name in names}
