"""Broker keys of streams groups (KIP-1071). Source: ``GroupCoordinatorConfig``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import INT32_MAX, ConfigError, ConfigKey, between, key
from kbroker.common.configs.group_bounds import member_keys

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

STREAMS_KEYS: tuple[ConfigKey, ...] = (
    *member_keys("streams"),
    key("group.streams.initial.rebalance.delay.ms", "int", 3000,
        "Milliseconds that a new streams group waits for more members before its first target assignment.",
        between(0)),
    key("group.streams.max.size", "int", INT32_MAX, "Maximum number of members of one streams group.", between(1)),
    key("group.streams.num.standby.replicas", "int", 0, "Number of standby tasks of each stateful task.", between(0)),
    key("group.streams.max.standby.replicas", "int", 2, "Maximum of streams.num.standby.replicas of a group.",
        between(0)),
)  # fmt: skip


def check_streams(config: BrokerConfig) -> None:
    """Check rules that concern several keys. Raises: ConfigError with Kafka's wording."""
    name, most = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    if config.integer(name) > config.integer(most):
        raise ConfigError("", config.integer(name), f"{name} must be less than or equal to {most}")
