"""The configuration table, and a broker's values: defaults, properties file, environment, ``--set``, dynamic values.

One table drives validation, DescribeConfigs, ``server.properties``, ``--set key=value`` and the environment. Later
sources take precedence: defaults, properties file, environment, ``--set``; dynamic values override all of them.

Environment: ``KAFKA_LOG_DIRS``, ``KAFKA_CFG_LOG_DIRS`` and ``KBROKER_CFG_LOG_DIRS`` all mean ``log.dirs``; keys that
only kbroker has, such as ``kbroker.request.batch.max``, are ``KBROKER_REQUEST_BATCH_MAX`` or
``KBROKER_CFG_KBROKER_REQUEST_BATCH_MAX``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from kbroker.common.configs.config_accepted import ACCEPTED_KEYS, RACK_AWARE_SELECTOR, RATE_KEYS, REPLICA_SELECTOR
from kbroker.common.configs.config_broker import BROKER_KEYS, check_connections, check_listeners, check_own
from kbroker.common.configs.config_def import INT64_MAX, ConfigError, ConfigKey, ConfigValue
from kbroker.common.configs.config_groups import GROUP_KEYS, check_groups
from kbroker.common.configs.config_log import LOG_KEYS, check_log
from kbroker.common.configs.config_member import MEMBER_KEYS
from kbroker.common.configs.config_quorum import (
    BROKER_ROLE,
    QUORUM_KEYS,
    ROLES,
    broker_advertised_listeners,
    broker_listeners,
    check_quorum,
)
from kbroker.common.configs.config_resource import ConfigSource
from kbroker.common.configs.config_security import LISTENER_PREFIX, SECURITY_KEYS, security_key
from kbroker.common.configs.config_share import SHARE_KEYS, check_share
from kbroker.common.configs.config_streams import STREAMS_KEYS, check_streams
from kbroker.common.configs.config_telemetry import TELEMETRY_KEYS, check_telemetry
from kbroker.common.configs.config_topic import TOPIC_KEYS
from kbroker.common.listeners import Listener
from kbroker.common.similar_names import misspelled_name

_ALL_KEYS = (
    *(BROKER_KEYS + TELEMETRY_KEYS + QUORUM_KEYS + MEMBER_KEYS + GROUP_KEYS + SHARE_KEYS + STREAMS_KEYS),
    *(LOG_KEYS + SECURITY_KEYS + ACCEPTED_KEYS),
)
BROKER_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in sorted(_ALL_KEYS, key=lambda key: key.name)}
RATE_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in RATE_KEYS}
TOPIC_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in sorted(TOPIC_KEYS, key=lambda key: key.name)}

#: Keys that can be set for one listener, as ``listener.name.<name in lower case>.<key>``.
LISTENER_KEYS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
_OF_LISTENER = re.compile(r"listener\.name\.([^.]*)\.(.*)")

#: Fallbacks of an unset key: the value of the first key that is set, times its factor (``LogConfig`` of Kafka).
FALLBACKS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
}


#: Variables with kbroker's prefix that are not settings of the broker.
_NOT_SETTINGS = frozenset(
    {"KAFKA_HOME", "KAFKA_OPTS", "KAFKA_VERSION", "KAFKA_URI", "KAFKA_ROOT", "KAFKA_PATH", "KAFKA_DEBUG"}
    | {"KBROKER_BOOTSTRAP"}
)


def broker_key(name: str) -> ConfigKey | None:
    """Return the row of a broker key, with or without a listener's prefix; None if there is no such key."""
    key = BROKER_TABLE.get(name) or RATE_TABLE.get(name)
    if key is None and base_name(name) != name:
        key = BROKER_TABLE[base_name(name)]._replace(name=name)
    return key


def described_key(name: str) -> ConfigKey | None:
    """Return the row that checks and describes a broker config, with or without effect; None for an unknown config.

    Every key of the broker may follow a listener's prefix, and keys of mechanisms the mechanism's prefix.
    """
    base = of_listener(name)
    key = broker_key(name)
    if key is None and base is not None:
        key = security_key(name) or BROKER_TABLE.get(base)
    return None if key is None else key._replace(name=name)


def of_listener(name: str) -> str | None:
    """Return the part of a name after a listener's prefix, None without such a prefix."""
    match = _OF_LISTENER.fullmatch(name)
    return None if match is None else match[2]


def base_name(name: str) -> str:
    """Return the broker's key for a key with a listener's prefix; any other name unchanged."""
    match = _OF_LISTENER.fullmatch(name)
    return match[2] if match is not None and match[2] in LISTENER_KEYS else name


def misspelled_key(name: str) -> str | None:
    """Return the broker config that an unknown name probably means, with its listener's prefix; else None."""
    if described_key(name) is not None:
        return None
    base = of_listener(name) or name
    found = misspelled_name(base, [*BROKER_TABLE, *RATE_TABLE])
    return None if found is None else name[: len(name) - len(base)] + found


def check_broker_names(names: Iterable[str]) -> None:
    """Refuse misspelled names of settings that an option or a program gives one by one.

    Raises: ConfigError for an unknown name that is similar to a known one.
    """
    for name in names:
        meant = misspelled_key(name)
        if meant is not None:
            raise ConfigError("", name, f"unknown config {name}; did you mean {meant}?")


def checked_settings(values: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the settings, none for None. Raises: TypeError for anything but a mapping, such as the path of a file."""
    if isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
        return values
    if values is None:
        return {}
    kind = type(values).__name__  # the values may be secrets
    raise TypeError(
        f"expected a mapping from names of settings, texts, to values, got {kind}; BrokerConfig.load reads files"
    )


def listener_key(listener: str, name: str) -> str:
    """Return the name of a listener's own key."""
    return f"listener.name.{listener.lower()}.{name}"


class BrokerConfig:
    """Values of the configs of one broker.

    Args: ``values``: by key, texts or Python values, each as if set in the properties file.
    Raises: ConfigError for an invalid value. Unknown keys are kept in ``unknown``, so that the caller can warn about
    them.
    Threads: any thread may read; ``set_dynamic`` swaps whole mappings, one writer at a time.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self.unknown: dict[str, object] = {}
        self._static: dict[str, ConfigValue] = {}
        self._of_listeners: dict[str, ConfigValue] = {}
        self._dynamic_broker: Mapping[str, ConfigValue] = {}
        self._dynamic_default: Mapping[str, ConfigValue] = {}
        self._texts_broker: Mapping[str, str] = {}
        self._texts_default: Mapping[str, str] = {}
        #: Defaults of topics, with the dynamic values from which they were computed.
        self._topic_defaults: tuple[object, object, Mapping[str, ConfigValue]] = (None, None, {})
        for name, value in checked_settings(values).items():
            key = broker_key(name)
            if key is not None:
                self._static[name] = key.parse(value)
            elif (of_listener := security_key(name)) is not None:
                self._of_listeners[name] = of_listener.parse(value)
            else:
                self.unknown[name] = value
        self._mirror_node_id()
        self._check()

    @classmethod
    def load(
        cls,
        properties: str | Path | None = None,
        overrides: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """Return the configuration of a properties file, an environment and ``key=value`` words; later ones override.

        Raises: ConfigError for an invalid value or a word without ``=``; OSError if the file cannot be read.
        """
        values: dict[str, object] = {}
        if properties is not None:
            values.update(parse_properties(Path(properties).read_text(encoding="utf-8")))
        values.update(from_environment(environ or {}))
        for word in overrides:
            name, equals, value = word.partition("=")
            if not equals or not name.strip():
                raise ConfigError("", word, f"Expected key=value, got {word!r}")
            values[name.strip()] = value
        return cls(values)

    # ------------------------------------------------------------ reading

    def value(self, name: str) -> ConfigValue:
        """Return the value in force; for a listener's key that is not set, the broker's value.

        Raises: KeyError for a name that is not in the table.
        """
        for source in (self._dynamic_broker, self._dynamic_default, self._static):
            if name in source:
                return source[name]
        key = BROKER_TABLE.get(name) or RATE_TABLE.get(name)
        return self.value(BROKER_TABLE[base_name(name)].name) if key is None else key.default

    def integer(self, name: str) -> int:
        """Return the value of a whole-number key that is never null. Raises: TypeError for another type."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {value!r}")
        return value

    def boolean(self, name: str) -> bool:
        """Return the value of a true/false key. Raises: TypeError for another type."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected true or false, got {value!r}")
        return value

    def text(self, name: str) -> str:
        """Return the value of a text key, empty if null. Raises: TypeError for another type."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {value!r}")
        return value or ""

    def words(self, name: str) -> tuple[str, ...]:
        """Return the value of a list key, empty if null. Raises: TypeError for another type."""
        value = self.value(name)
        if value is not None and not isinstance(value, tuple):
            raise TypeError(f"{name}: expected a list, got {value!r}")
        return value or ()

    def is_set(self, name: str) -> bool:
        """Return whether a file, the environment, ``--set`` or an argument set the key."""
        return name in self._static

    def sources(self, name: str) -> list[tuple[ConfigSource, ConfigValue]]:
        """Return all values of the key: the one in force first, the default (if any) last; dynamic values as typed."""
        found: list[tuple[ConfigSource, ConfigValue]] = []
        if name in self._texts_broker:
            found.append((ConfigSource.DYNAMIC_BROKER_CONFIG, self._texts_broker[name]))
        if name in self._texts_default:
            found.append((ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self._texts_default[name]))
        for static in (self._static, self._of_listeners):
            if name in static:
                found.append((ConfigSource.STATIC_BROKER_CONFIG, static[name]))
        if name in self.unknown:
            found.append((ConfigSource.STATIC_BROKER_CONFIG, str(self.unknown[name])))
        if name in BROKER_TABLE and (default := BROKER_TABLE[name].default) is not None:
            found.append((ConfigSource.DEFAULT_CONFIG, default))
        return found

    @property
    def names_beyond_the_table(self) -> list[str]:
        """Names that are set but lack a row in BROKER_TABLE: rates, keys of listeners, and unknown names."""
        names = {*self._static, *self._of_listeners, *self.unknown, *self._texts_broker, *self._texts_default}
        return sorted(name for name in names if name not in BROKER_TABLE)

    @property
    def node_id(self) -> int:
        """Id of the broker."""
        return self.integer("node.id")

    def _mirror_node_id(self) -> None:
        """Copy the id between node.id and its old name broker.id; node.id takes precedence."""
        old = self._static.get("broker.id")
        if isinstance(old, int) and old >= 0:
            self._static.setdefault("node.id", old)
        self._static["broker.id"] = self.integer("node.id")

    @property
    def selects_by_rack(self) -> bool:
        """Return whether consumers are directed to followers on their racks (KIP-392)."""
        return self.unknown.get(REPLICA_SELECTOR) == RACK_AWARE_SELECTOR

    @property
    def is_member(self) -> bool:
        """Return whether the controllers of the broker's cluster are other nodes."""
        return self.words(ROLES) == (BROKER_ROLE,)

    @property
    def log_dirs(self) -> list[Path]:
        """The log folders."""
        return [Path(folder) for folder in self.words("log.dirs") or (self.text("log.dir"),)]

    @property
    def log_dir(self) -> Path:
        """First log folder, which has the metadata log unless metadata.log.dir names another."""
        return self.log_dirs[0]

    @property
    def metadata_log_dir(self) -> Path:
        """Log folder with the metadata log."""
        return Path(self.text("metadata.log.dir") or self.log_dir)

    @property
    def listeners(self) -> list[Listener]:
        """Listeners to bind; those of the controller are not among them."""
        return broker_listeners(self)

    def listener_integer(self, listener: str, name: str) -> int | None:
        """Return a listener's own value of a whole-number key; None if the broker's value applies."""
        key = listener_key(listener, name)
        return self.integer(key) if self.sources(key) else None

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener that is exempt from the broker's limits of connections."""
        return (self.text("inter.broker.listener.name") or "PLAINTEXT").upper()

    @property
    def advertised_listeners(self) -> list[Listener]:
        """Addresses that clients get; empty when they follow from ``listeners``."""
        return broker_advertised_listeners(self)

    def listener_value(self, listener: str, name: str) -> ConfigValue:
        """Return a listener's own value of a key, else the broker's; None for a mechanism's key that is unset."""
        own = f"{LISTENER_PREFIX}{listener.lower()}.{name}"
        if own in self._of_listeners:
            return self._of_listeners[own]
        return self.value(name) if name in BROKER_TABLE else None

    def has_own_value(self, listener: str, name: str) -> bool:
        """Return whether a listener has its own value of a key."""
        return f"{LISTENER_PREFIX}{listener.lower()}.{name}" in self._of_listeners

    # ------------------------------------------------------------ topics

    def topic_default(self, name: str) -> ConfigValue:
        """Return the value of a topic key for topics that do not set it."""
        key = TOPIC_TABLE[name]
        if key.synonym is None:
            return key.default
        value = self.value(key.synonym)
        if value is not None:
            return value
        for fallback, factor in FALLBACKS.get(key.synonym, ()):
            number = self.value(fallback)
            if isinstance(number, int):
                return number if number < 0 else min(number * factor, INT64_MAX)
        return key.default

    def topic_configs(self, overrides: Mapping[str, str]) -> Mapping[str, ConfigValue]:
        """Return the value in force of every topic key, for a topic that sets ``overrides``.

        A value that is no longer valid, stored by a version that allowed it, counts as unset. Topics without configs
        share one mapping, which is computed once per change of the broker's configs.
        """
        broker, default, defaults = self._topic_defaults
        if broker is not self._dynamic_broker or default is not self._dynamic_default:
            broker, default = self._dynamic_broker, self._dynamic_default
            defaults = MappingProxyType({name: self.topic_default(name) for name in TOPIC_TABLE})
            self._topic_defaults = (broker, default, defaults)
        own = _parsed(overrides, TOPIC_TABLE.get) if overrides else None
        return {**defaults, **own} if own else defaults

    # ------------------------------------------------------------ dynamic values

    def set_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> None:
        """Replace the dynamic values of this broker and of all brokers; invalid and unknown ones have no effect."""
        self._texts_broker, self._texts_default = dict(broker), dict(default)
        self._dynamic_broker = _parsed(broker)
        self._dynamic_default = _parsed(default)

    def with_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> BrokerConfig:
        """Return a copy of the configuration with these dynamic values. Raises: ConfigError."""
        import copy

        other = copy.copy(self)
        other.set_dynamic(broker, default)
        other._check()
        return other

    def _check(self) -> None:
        """Check rules that concern several keys, or more than the text of one. Raises: ConfigError."""
        for check in (
            check_quorum,
            check_connections,
            check_groups,
            check_share,
            check_streams,
            check_log,
            check_own,
            check_telemetry,
            check_listeners,
        ):
            check(self)


def validate_topic_configs(configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Refuse configs that a topic cannot have: unknown keys, invalid values, and unsupported features.

    Args: ``broker``: has the values of the configs that the topic does not set.
    Raises: ConfigError with Kafka's wording.
    """
    for name in configs:
        if name not in TOPIC_TABLE:
            raise ConfigError("", name, f"Unknown topic config name: {name}")
    values = {name: TOPIC_TABLE[name].parse(value) for name, value in configs.items()}
    if values.get("remote.storage.enable") is True:
        text = "Tiered Storage functionality is disabled in the broker."
        raise ConfigError("", "true", f"{text} Topic cannot be configured with remote log storage.", "false")
    shortest, longest = (
        values[name] if name in values else broker.topic_default(name)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise ConfigError(
            "",
            shortest,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
        )


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys of a Java properties file: comments, ``=`` or ``:`` or blanks, continued lines, escapes."""
    found: dict[str, str] = {}
    pending = ""
    for raw in re.split("\r\n|[\r\n]", text):  # splitlines() ends lines at other characters too
        line = pending + raw.lstrip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        _add_property(found, line)
    if pending:
        _add_property(found, pending)
    return found


def _add_property(found: dict[str, str], line: str) -> None:
    match = re.match(r"((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", line)
    if match is not None:
        found[_unescape(match[1])] = _unescape(match[2]).rstrip()


def _unescape(text: str) -> str:
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replace(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if len(word) == 5 else letters.get(word, word)

    found = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # joins pairs of surrogates


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in an environment.

    Unknown names are included, for a warning, if they have a ``_CFG_`` prefix or are misspelled names of settings.
    """
    found: dict[str, str] = {}
    for name in sorted(environ):
        for prefix, own, sure in (
            ("KBROKER_CFG_", "", True),
            ("KAFKA_CFG_", "", True),
            ("KAFKA_", "", False),
            ("KBROKER_", "kbroker.", False),
        ):
            if name.startswith(prefix) and name not in _NOT_SETTINGS:
                key = own + name[len(prefix) :].lower().replace("_", ".")
                if sure or broker_key(key) is not None or misspelled_key(key) is not None:
                    found[key] = environ[name]
                break
    return found


def _parsed(values: Mapping[str, str], row: Callable[[str], ConfigKey | None] = broker_key) -> dict[str, ConfigValue]:
    found: dict[str, ConfigValue] = {}
    for name, value in values.items():
        key = row(name)
        if key is not None:
            try:
                found[name] = key.parse(value)
            except ConfigError:
                continue  # stored by a version that allowed it: the next source applies
    return found
