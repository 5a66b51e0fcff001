"""Broker keys of streams groups (KIP-1071). Source: ``GroupCoordinatorConfig``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import INT32_MAX, ConfigError, ConfigKey, between, key

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

STREAMS_KEYS: tuple[ConfigKey, ...] = (
    key("group.streams.session.timeout.ms", "int", 45_000,
        "Milliseconds without a heartbeat after which a member of a streams group is removed.", between(1)),
    key("group.streams.min.session.timeout.ms", "int", 45_000, "Minimum of streams.session.timeout.ms of a group.",
        between(1)),
    key("group.streams.max.session.timeout.ms", "int", 60_000, "Maximum of streams.session.timeout.ms of a group.",
        between(1)),
    key("group.streams.heartbeat.interval.ms", "int", 5000,
        "Milliseconds between two heartbeats of a member of a streams group.", between(1)),
    key("group.streams.min.heartbeat.interval.ms", "int", 5000, "Minimum of streams.heartbeat.interval.ms of a group.",
        between(1)),
    key("group.streams.max.heartbeat.interval.ms", "int", 15_000,
        "Maximum of streams.heartbeat.interval.ms of a group.", between(1)),
    key("group.streams.assignment.interval.ms", "int", 1000,
        "Minimum milliseconds between two target assignments of a streams group.", between(0), dynamic="cluster-wide"),
    key("group.streams.min.assignment.interval.ms", "int", 0, "Minimum of streams.assignment.interval.ms of a group.",
        between(0)),
    key("group.streams.max.assignment.interval.ms", "int", 15_000,
        "Maximum of streams.assignment.interval.ms of a group.", between(0)),
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
