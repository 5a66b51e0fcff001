"""Broker keys about groups of the consumer protocol (KIP-848), and about the bounds of what groups set themselves."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common.configs.config_def import (
    INT32_MAX,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Importance,
    Validator,
    between,
    one_of,
)

STRING, INT, LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST
ASSIGNORS = ("uniform", "range")
PROTOCOLS = ("consumer", "classic", "share", "streams")  # in Kafka's order, for the text of the refusal
POLICIES = ("disabled", "downgrade", "upgrade", "bidirectional")


def _key(
    name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str,
    dynamic: Dynamic = Dynamic.READ_ONLY,
) -> ConfigKey:  # fmt: skip
    return ConfigKey(f"group.consumer.{name}", kind, default, doc, validator, Importance.MEDIUM, dynamic)


def policy() -> Validator:
    """A migration policy, in upper or lower case."""

    def check(value: bool | int | float | str) -> str | None:
        if str(value).lower() in POLICIES:
            return None
        return f"String must be one of (case insensitive): {', '.join(word.upper() for word in POLICIES)}"

    return Validator(", ".join(POLICIES), check)


GROUP_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "group.coordinator.rebalance.protocols", LIST, ("classic", "consumer", "streams"),
        "Protocols of groups: classic, always, and consumer (KIP-848), unless it is left out. share and streams have "
        "no effect. Deprecated: the feature group.version does the same.",
        one_of(*PROTOCOLS), Importance.MEDIUM, Dynamic.READ_ONLY,
    ),
    _key("session.timeout.ms", INT, 45_000, between(1),
         "Milliseconds without a heartbeat after which a member of a consumer group is removed."),
    _key("min.session.timeout.ms", INT, 45_000, between(1), "Minimum of consumer.session.timeout.ms of a group."),
    _key("max.session.timeout.ms", INT, 60_000, between(1), "Maximum of consumer.session.timeout.ms of a group."),
    _key("heartbeat.interval.ms", INT, 5000, between(1),
         "Milliseconds between two heartbeats, as members of a consumer group are asked to keep them."),
    _key("min.heartbeat.interval.ms", INT, 5000, between(1), "Minimum of consumer.heartbeat.interval.ms of a group."),
    _key("max.heartbeat.interval.ms", INT, 15_000, between(1), "Maximum of consumer.heartbeat.interval.ms of a group."),
    _key("assignment.interval.ms", INT, 1000, between(0),
         "Minimum milliseconds between two target assignments of a consumer group.", Dynamic.CLUSTER_WIDE),
    _key("min.assignment.interval.ms", INT, 0, between(0), "Minimum of consumer.assignment.interval.ms of a group."),
    _key("max.assignment.interval.ms", INT, 15_000, between(0),
         "Maximum of consumer.assignment.interval.ms of a group."),
    _key("max.size", INT, INT32_MAX, between(1), "Maximum number of members of one consumer group."),
    _key("assignors", LIST, ASSIGNORS, None,
         "Assignors that members of consumer groups can ask for, uniform and range; the first is the default."),
    _key("migration.policy", STRING, "bidirectional", policy(),
         "Whether groups change their protocol while members are in them: upgrade, when the first member of the "
         "consumer protocol joins a classic group; downgrade, when the last one leaves; bidirectional; or disabled."),
    _key("regex.refresh.interval.ms", INT, 600_000, between(10_000),
         "Milliseconds after which the topics of members' regular expressions are looked up again."),
)  # fmt: skip


def check_groups(integer: Callable[[str], int], words: Callable[[str], tuple[str, ...]]) -> None:
    """Check rules that concern several keys. Raises: ConfigError with Kafka's wording."""
    for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        key, low, high = (f"group.consumer.{word}{name}" for word in ("", "min.", "max."))
        if integer(high) < integer(low):
            raise ConfigError("", integer(high), f"{high} must be greater than or equal to {low}")
        if integer(key) < integer(low):
            raise ConfigError("", integer(key), f"{key} must be greater than or equal to {low}")
        if integer(key) > integer(high):
            raise ConfigError("", integer(key), f"{key} must be less than or equal to {high}")
    heartbeat, session = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
    if integer(heartbeat) >= integer(session):
        raise ConfigError("", integer(heartbeat), f"{heartbeat} must be less than {session}")
    protocols = words("group.coordinator.rebalance.protocols")
    if not protocols:
        text = "Configuration 'group.coordinator.rebalance.protocols' must not be empty. Valid values include: "
        raise ConfigError("", "", f"{text}[{', '.join(PROTOCOLS)}]")
    if "classic" not in protocols:
        raise ConfigError("", ",".join(protocols), "Disabling the 'classic' protocol is not supported.")
    names = words("group.consumer.assignors")
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names or len(set(names)) < len(names):
        found = ",".join(names)
        reason = "Expected uniform, range, or both, each once"
        raise ConfigError("group.consumer.assignors", found, reason, "uniform,range")
