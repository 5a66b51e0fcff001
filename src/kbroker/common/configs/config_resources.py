"""Configuration keys of groups and of client metrics subscriptions, stored and described as in Kafka.

All of them have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kbroker.common.configs.config_def import ConfigError, ConfigKey, Validator, between, key, one_of
from kbroker.common.configs.group_bounds import bound_name
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_duration import parse_duration_ns
from kbroker.common.java.java_patterns import is_java_pattern
from kbroker.common.java.java_values import java_split, trim


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration that `offset_reset` accepts."""
    duration_ns = parse_duration_ns(text)
    assert duration_ns is not None
    return duration_ns // 10**6


def offset_reset() -> Validator:
    """Return a check for ``earliest``, ``latest``, or ``by_duration:`` with a duration as in Java, not negative."""
    name = "share.auto.offset.reset"

    def check(value: bool | int | float | str) -> str | None:
        kind, _, duration = str(value).partition(":")
        duration_ns = parse_duration_ns(duration) if kind == "by_duration" else None
        if value in ("earliest", "latest") or (duration_ns is not None and duration_ns >= 0):
            return None
        allowed = "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'"
        return f"Invalid value `{value}` for configuration {name}. The value must be {allowed}."

    return Validator("one of earliest, latest, by_duration:PnDTnHnMn.nS", check)


_key = partial(key, dynamic="cluster-wide")
#: Configs of a group whose default is the broker's config with the prefix ``group.``.
_WITH_SYNONYM = (
    *(
        _key(f"{kind}.{name}", "int", default, text.format(kind), between(low))
        for kind in ("consumer", "share", "streams")
        for name, default, text, low in (
            ("assignment.interval.ms", 1000, "Minimum milliseconds between target assignments.", 0),
            ("heartbeat.interval.ms", 5000, "Heartbeat interval of members of a {} group.", 1),
            ("session.timeout.ms", 45_000, "Session timeout of members of a {} group.", 1),
        )
    ),
    _key("share.delivery.count.limit", "int", 5, "Maximum number of deliveries of a record.", between(2)),
    _key("share.partition.max.record.locks", "int", 2000,
        "Maximum number of records of a partition that are locked at once.", between(100)),
    _key("share.record.lock.duration.ms", "int", 30_000, "Milliseconds for which a member locks a record.",
        between(1000)),
    _key("streams.initial.rebalance.delay.ms", "int", 3000, "Milliseconds that a new group waits for more members.",
        between(0)),
    _key("streams.num.standby.replicas", "int", 0, "Standby replicas of each task.", between(0)),
)  # fmt: skip
_GROUP_KEYS = (
    *(row._replace(synonym=f"group.{row.name}") for row in _WITH_SYNONYM),
    _key("share.auto.offset.reset", "string", "latest", "Position at which a share group starts.", offset_reset()),
    _key("share.isolation.level", "string", "read_uncommitted", "Isolation of a share group's reads.",
        one_of("read_committed", "read_uncommitted")),
    _key("share.renew.acknowledge.enable", "boolean", True, "Whether a member may renew the lock of a record."),
)  # fmt: skip

_METRICS_KEYS = (
    _key("interval.ms", "int", 300_000, "Milliseconds between two pushes of a client's metrics."),
    _key("match", "list", (), "Clients of the subscription: name=expression, separated by commas."),
    _key("metrics", "list", (), "Prefixes of the names of the metrics to push."),
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

GROUP_TABLE: Mapping[str, ConfigKey] = {row.name: row for row in sorted(_GROUP_KEYS, key=lambda row: row.name)}
CLIENT_METRICS_TABLE: Mapping[str, ConfigKey] = {row.name: row for row in _METRICS_KEYS}


def validate_group_configs(configs: Mapping[str, str], setting_of: Callable[[str], int | None]) -> None:
    """Refuse configs that a group cannot have.

    Args: ``setting_of``: returns the broker's setting of a name, None if the broker has no such setting.
    Raises: ConfigError with Kafka's wording.
    """
    for name in configs:
        if name not in GROUP_TABLE:
            raise ConfigError("", name, f"Unknown group config name: {name}")
    values = {name: GROUP_TABLE[name].parse(value) for name, value in configs.items()}
    for name, value in values.items():
        low, high = bound_name(name, "min"), bound_name(name, "max")
        least, most = setting_of(low), setting_of(high)
        if isinstance(value, int) and least is not None and value < least:
            raise ConfigError("", value, f"{name} must be greater than or equal to {low}")
        if isinstance(value, int) and most is not None and value > most:
            raise ConfigError("", value, f"{name} must be less than or equal to {high}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        timeout_ms, interval_ms = (values.get(name, setting_of(f"group.{name}")) for name in (session, heartbeat))
        if isinstance(timeout_ms, int) and isinstance(interval_ms, int) and timeout_ms <= interval_ms:
            raise ConfigError("", timeout_ms, f"{session} must be greater than {heartbeat}")


def validate_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Refuse configs that a subscription cannot have. Raises: ConfigError or KafkaError with Kafka's wording."""
    for name in configs:
        if name not in CLIENT_METRICS_TABLE:
            raise KafkaError(Errors.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    values = {name: CLIENT_METRICS_TABLE[name].parse(value) for name, value in configs.items()}
    interval_ms, words = values.get("interval.ms"), values.get("match")
    if isinstance(interval_ms, int) and not 100 <= interval_ms <= 3_600_000:
        text = f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        raise KafkaError(Errors.INVALID_REQUEST, text)
    for word in words if isinstance(words, tuple) else ():
        match_parts(word)


def match_parts(word: str) -> tuple[str, str]:
    """Return name and regular expression of a word of ``match``. Raises: ConfigError if they are not valid."""
    parts = [trim(part) for part in java_split(word, "=")]
    if len(parts) != 2 or parts[0] not in MATCH_NAMES or not is_java_pattern(parts[1]):
        raise ConfigError("", word, f"Illegal client matching pattern: {word}")
    return parts[0], parts[1]
