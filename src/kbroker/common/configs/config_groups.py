"""Broker keys about groups of the consumer protocol (KIP-848), and the bounds of the configs of single groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import INT32_MAX, ConfigError, ConfigKey, Validator, between, key, one_of
from kbroker.common.configs.group_bounds import member_keys

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

ASSIGNORS = ("uniform", "range")
PROTOCOLS = ("consumer", "classic", "share", "streams")  # in Kafka's order, for the text of the refusal
POLICIES = ("disabled", "downgrade", "upgrade", "bidirectional")


def policy() -> Validator:
    """Return a check for a migration policy, in upper or lower case."""

    def check(value: bool | int | float | str) -> str | None:
        if str(value).lower() in POLICIES:
            return None
        return f"String must be one of (case insensitive): {', '.join(word.upper() for word in POLICIES)}"

    return Validator("one of " + ", ".join(POLICIES), check)


GROUP_KEYS: tuple[ConfigKey, ...] = (
    key("group.coordinator.rebalance.protocols", "list", ("classic", "consumer", "streams"),
        "Protocols of groups. classic is always enabled, consumer (KIP-848) and streams (KIP-1071) if they are in the "
        "list; share has no effect. Deprecated: use the feature group.version instead.", one_of(*PROTOCOLS)),
    *member_keys("consumer"),
    key("group.consumer.max.size", "int", INT32_MAX, "Maximum number of members of one consumer group.", between(1)),
    key("group.consumer.assignors", "list", ASSIGNORS,
        "Assignors that members of consumer groups can choose, uniform and range; the first is the default."),
    key("group.consumer.migration.policy", "string", "bidirectional",
        "Whether a group with members can change its protocol. upgrade: when the first member of the consumer "
        "protocol joins a classic group; downgrade: when the last such member leaves; bidirectional: both; "
        "disabled: neither.", policy()),
    key("group.consumer.regex.refresh.interval.ms", "int", 600_000,
        "Milliseconds after which the broker resolves the regular expressions of members again.", between(10_000)),
)  # fmt: skip


def check_groups(config: BrokerConfig) -> None:
    """Check rules that concern several keys. Raises: ConfigError with Kafka's wording."""
    words = config.words
    for kind in ("consumer", "share", "streams"):
        _check_intervals(config, kind)
    protocols = words("group.coordinator.rebalance.protocols")
    if not protocols:
        text = "Configuration 'group.coordinator.rebalance.protocols' must not be empty. Valid values include: "
        raise ConfigError("", "", f"{text}[{', '.join(PROTOCOLS)}]")
    if "classic" not in protocols:
        raise ConfigError("", ",".join(protocols), "Disabling the 'classic' protocol is not supported.")
    names = words("group.consumer.assignors")
    if not names or any(name not in ASSIGNORS for name in names):
        found = ",".join(names)
        reason = "Expected uniform, range, or both, each once"
        raise ConfigError("group.consumer.assignors", found, reason, "uniform,range")


def _check_intervals(config: BrokerConfig, kind: str) -> None:
    """Check the intervals and the session timeout of a kind of groups, and their bounds. Raises: ConfigError."""
    integer = config.integer
    for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        key, low, high = (f"group.{kind}.{word}{name}" for word in ("", "min.", "max."))
        if integer(high) < integer(low):
            raise ConfigError("", integer(high), f"{high} must be greater than or equal to {low}")
        if integer(key) < integer(low):
            raise ConfigError("", integer(key), f"{key} must be greater than or equal to {low}")
        if integer(key) > integer(high):
            raise ConfigError("", integer(key), f"{key} must be less than or equal to {high}")
    heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
    if integer(heartbeat) >= integer(session):
        raise ConfigError("", integer(heartbeat), f"{heartbeat} must be less than {session}")
