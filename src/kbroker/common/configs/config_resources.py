"""Configuration keys of groups and of client metrics subscriptions: stored and described as Kafka does.

Those of consumer groups have an effect; share groups, streams groups and client telemetry are not supported yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kbroker.common.configs.config_def import (
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Validator,
    between,
    one_of,
)
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_patterns import is_java_pattern
from kbroker.common.java.java_values import trim

BOOLEAN, STRING, INT, LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LIST


_DURATION = re.compile(  # what java.time.Duration reads, and is not negative
    r"\+?P(?=.)(?:\+?[0-9]+D)?(?:T(?=.)(?:\+?[0-9]+H)?(?:\+?[0-9]+M)?(?:\+?[0-9]+(?:[.,][0-9]{0,9})?S)?)?",
    re.IGNORECASE,
)


def offset_reset() -> Validator:
    """``earliest``, ``latest``, or ``by_duration:`` with an ISO 8601 duration that is not negative."""
    name = "share.auto.offset.reset"

    def check(value: bool | int | float | str) -> str | None:
        kind, _, duration = str(value).partition(":")
        if value in ("earliest", "latest") or (kind == "by_duration" and _DURATION.fullmatch(duration)):
            return None
        allowed = "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'"
        return f"Invalid value `{value}` for configuration {name}. The value must be {allowed}."

    return Validator("earliest, latest, by_duration:PnDTnHnMn.nS", check)


def _key(
    name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str, has_synonym: bool = True
) -> ConfigKey:
    synonym = f"group.{name}" if has_synonym else None
    return ConfigKey(name, kind, default, doc, validator, dynamic=Dynamic.CLUSTER_WIDE, synonym=synonym)


_GROUP_KEYS = (
    _key("consumer.assignment.interval.ms", INT, 1000, between(0), "Minimum milliseconds between two assignments."),
    _key("consumer.heartbeat.interval.ms", INT, 5000, between(1), "Heartbeat interval of members of a consumer group."),
    _key("consumer.session.timeout.ms", INT, 45_000, between(1), "Session timeout of members of a consumer group."),
    _key("share.assignment.interval.ms", INT, 1000, between(0), "Minimum milliseconds between two assignments."),
    _key("share.auto.offset.reset", STRING, "latest", offset_reset(),
         "Position at which a share group starts.", has_synonym=False),
    _key("share.delivery.count.limit", INT, 5, between(2), "Maximum number of deliveries of a record."),
    _key("share.heartbeat.interval.ms", INT, 5000, between(1), "Heartbeat interval of members of a share group."),
    _key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
         "Isolation of a share group's reads.", has_synonym=False),
    _key("share.partition.max.record.locks", INT, 2000, between(100),
         "Maximum number of records of a partition that are locked at once."),
    _key("share.record.lock.duration.ms", INT, 30_000, between(1000),
         "Milliseconds for which a member locks a record."),
    _key("share.renew.acknowledge.enable", BOOLEAN, True, None, "Whether a member may renew the lock of a record.",
         has_synonym=False),
    _key("share.session.timeout.ms", INT, 45_000, between(1), "Session timeout of members of a share group."),
    _key("streams.assignment.interval.ms", INT, 1000, between(0), "Minimum milliseconds between two assignments."),
    _key("streams.heartbeat.interval.ms", INT, 5000, between(1), "Heartbeat interval of members of a streams group."),
    _key("streams.initial.rebalance.delay.ms", INT, 3000, between(0),
         "Milliseconds that a new group waits for more members."),
    _key("streams.num.standby.replicas", INT, 0, between(0), "Standby replicas of each task."),
    _key("streams.session.timeout.ms", INT, 45_000, between(1), "Session timeout of members of a streams group."),
)  # fmt: skip

#: Minimum and maximum of a group's config, from the broker's config whose name (with min or max inserted) comes first.
_GROUP_LIMITS: Mapping[str, tuple[str, int, int]] = {
    "consumer.assignment.interval.ms": ("group.consumer.{}.assignment.interval.ms", 0, 15_000),
    "consumer.heartbeat.interval.ms": ("group.consumer.{}.heartbeat.interval.ms", 5000, 15_000),
    "consumer.session.timeout.ms": ("group.consumer.{}.session.timeout.ms", 45_000, 60_000),
    "share.assignment.interval.ms": ("group.share.{}.assignment.interval.ms", 0, 15_000),
    "share.delivery.count.limit": ("group.share.{}.delivery.count.limit", 2, 10),
    "share.heartbeat.interval.ms": ("group.share.{}.heartbeat.interval.ms", 5000, 15_000),
    "share.partition.max.record.locks": ("group.share.{}.partition.max.record.locks", 100, 4000),
    "share.record.lock.duration.ms": ("group.share.{}.record.lock.duration.ms", 15_000, 60_000),
    "share.session.timeout.ms": ("group.share.{}.session.timeout.ms", 45_000, 60_000),
    "streams.assignment.interval.ms": ("group.streams.{}.assignment.interval.ms", 0, 15_000),
    "streams.heartbeat.interval.ms": ("group.streams.{}.heartbeat.interval.ms", 5000, 15_000),
    "streams.num.standby.replicas": ("group.streams.{}.standby.replicas", 0, 2),
    "streams.session.timeout.ms": ("group.streams.{}.session.timeout.ms", 45_000, 60_000),
}

_METRICS_KEYS = (
    _key(
        "interval.ms", INT, 300_000, None, "Milliseconds between two pushes of a client's metrics.", has_synonym=False
    ),
    _key(
        "match", LIST, (), None, "Clients of the subscription: name=expression, separated by commas.", has_synonym=False
    ),
    _key("metrics", LIST, (), None, "Prefixes of the names of the metrics to push.", has_synonym=False),
)

#: Properties of a client that a subscription can match.
MATCH_NAMES = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

GROUP_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in _GROUP_KEYS}
CLIENT_METRICS_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in _METRICS_KEYS}


def validate_group_configs(configs: Mapping[str, str], setting_of: Callable[[str], int | None]) -> None:
    """Refuse what a group cannot have.

    Args: ``setting_of``: the broker's setting of a name, None for one that it does not have.
    Raises: ConfigError with Kafka's wording.
    """
    for name in configs:
        if name not in GROUP_TABLE:
            raise ConfigError("", name, f"Unknown group config name: {name}")
    values = {name: GROUP_TABLE[name].parse(value) for name, value in configs.items()}
    for name, value in values.items():
        if name in _GROUP_LIMITS and isinstance(value, int):
            setting, low, high = _GROUP_LIMITS[name]
            own_low, own_high = setting_of(setting.format("min")), setting_of(setting.format("max"))
            if value < (low if own_low is None else own_low):
                raise ConfigError("", value, f"{name} must be greater than or equal to {setting.format('min')}")
            if value > (high if own_high is None else own_high):
                raise ConfigError("", value, f"{name} must be less than or equal to {setting.format('max')}")
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    timeout_ms, interval_ms = (values.get(name, setting_of(f"group.{name}")) for name in (session, heartbeat))
    if isinstance(timeout_ms, int) and isinstance(interval_ms, int) and timeout_ms <= interval_ms:
        raise ConfigError("", timeout_ms, f"{session} must be greater than {heartbeat}")


def validate_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Refuse what a subscription cannot have. Raises: ConfigError or KafkaError INVALID_REQUEST, in Kafka's words."""
    for name, value in configs.items():
        if name not in CLIENT_METRICS_TABLE:
            raise KafkaError(Errors.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        parsed = CLIENT_METRICS_TABLE[name].parse(value)
        if name == "interval.ms" and isinstance(parsed, int) and not 100 <= parsed <= 3_600_000:
            text = f"Invalid value {parsed} for {name}, interval must be between 100 and 3600000 (1 hour)"
            raise KafkaError(Errors.INVALID_REQUEST, text)
        if name == "match" and isinstance(parsed, tuple):
            for word in parsed:
                _check_match(word)


def _check_match(word: str) -> None:
    """Refuse a word of ``match`` that is not NAME=REGULAR EXPRESSION of a known name. Raises: ConfigError."""
    parts = [trim(part) for part in word.split("=")]
    if len(parts) != 2 or parts[0] not in MATCH_NAMES or not parts[1] or not is_java_pattern(parts[1]):
        raise ConfigError("", word, f"Illegal client matching pattern: {word}")
