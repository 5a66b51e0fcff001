"""The configuration table, and a broker's values: defaults, properties file, environment, ``--set``, dynamic ones.

One table drives validation, DescribeConfigs, ``server.properties``, ``--set key=value`` and the environment. Later
sources win: defaults, properties file, environment, ``--set``; dynamic values win over all of them.

Environment: ``KAFKA_LOG_DIRS``, ``KAFKA_CFG_LOG_DIRS`` and ``KBROKER_CFG_LOG_DIRS`` all mean ``log.dirs``; keys of
kbroker alone, such as ``kbroker.request.batch.max``, are ``KBROKER_REQUEST_BATCH_MAX`` or
``KBROKER_CFG_KBROKER_REQUEST_BATCH_MAX``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kbroker.common.configs.config_accepted import ACCEPTED_KEYS, GROUP_ASSIGNMENT_MAX_MS, RATE_KEYS
from kbroker.common.configs.config_broker import BROKER_KEYS
from kbroker.common.configs.config_def import INT64_MAX, ConfigError, ConfigKey, ConfigSource, ConfigValue
from kbroker.common.configs.config_groups import GROUP_KEYS, check_groups
from kbroker.common.configs.config_log import LOG_KEYS
from kbroker.common.configs.config_security import LISTENER_PREFIX, SECURITY_KEYS, security_key
from kbroker.common.configs.config_topic import TOPIC_KEYS
from kbroker.common.listeners import Listener, advertised_listeners, parse_http_address, parse_listeners, parse_loopback
from kbroker.common.similar_names import misspelled_name
from kbroker.common.topics import invalid_name_reason

_ALL_KEYS = BROKER_KEYS + GROUP_KEYS + LOG_KEYS + SECURITY_KEYS + ACCEPTED_KEYS
BROKER_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in sorted(_ALL_KEYS, key=lambda key: key.name)}
RATE_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in RATE_KEYS}
TOPIC_TABLE: Mapping[str, ConfigKey] = {key.name: key for key in sorted(TOPIC_KEYS, key=lambda key: key.name)}

#: Keys that can be set for one listener, as ``listener.name.<name in lower case>.<key>``.
LISTENER_KEYS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
_OF_LISTENER = re.compile(r"listener\.name\.([^.]*)\.(.*)")

#: A key that is unset takes the first of these that is set, times the factor (``LogConfig`` of Kafka).
FALLBACKS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
}


#: Variables with our prefix that are not settings of the broker.
_NOT_SETTINGS = frozenset(
    {"KAFKA_HOME", "KAFKA_OPTS", "KAFKA_VERSION", "KAFKA_URI", "KAFKA_ROOT", "KAFKA_PATH", "KAFKA_DEBUG"}
)


def broker_key(name: str) -> ConfigKey | None:
    """The row of a broker key, with or without a listener's prefix; None if there is no such key."""
    key = BROKER_TABLE.get(name) or RATE_TABLE.get(name)
    if key is None and base_name(name) != name:
        key = BROKER_TABLE[base_name(name)]._replace(name=name)
    return key


def described_key(name: str) -> ConfigKey | None:
    """The row by which a broker config is checked and shown, also one that changes nothing; None for an unknown one.

    Any key of the broker may stand behind a listener's prefix, and the keys of mechanisms behind theirs.
    """
    base = of_listener(name)
    key = broker_key(name)
    if key is None and base is not None:
        key = security_key(name) or BROKER_TABLE.get(base)
    return None if key is None else key._replace(name=name)


def of_listener(name: str) -> str | None:
    """Return the part of a name behind a listener's prefix, None without such a prefix."""
    match = _OF_LISTENER.fullmatch(name)
    return None if match is None else match[2]


def base_name(name: str) -> str:
    """The broker's key for a key with a listener's prefix; any other name unchanged."""
    match = _OF_LISTENER.fullmatch(name)
    return match[2] if match is not None and match[2] in LISTENER_KEYS else name


def misspelled_key(name: str) -> str | None:
    """Return the broker config that an unknown name must be meant for, with its listener's prefix; None if none is."""
    if described_key(name) is not None:
        return None
    base = of_listener(name) or name
    found = misspelled_name(base, [*BROKER_TABLE, *RATE_TABLE])
    return None if found is None else name[: len(name) - len(base)] + found


def check_broker_names(names: Iterable[str]) -> None:
    """Refuse names that can only be misspelled: of settings given one by one, by an option or in a program.

    Raises: ConfigError for an unknown name that is nearly a known one.
    """
    for name in names:
        meant = misspelled_key(name)
        if meant is not None:
            raise ConfigError("", name, f"unknown config {name}; did you mean {meant}?")


def listener_key(listener: str, name: str) -> str:
    """The name of a listener's own key."""
    return f"listener.name.{listener.lower()}.{name}"


class BrokerConfig:
    """The values of one broker.

    Args: ``values`` key to value (text or Python values), each as if set in the properties file.
    Raises: ConfigError for a bad value; unknown keys are kept in ``unknown`` for the caller to warn about.
    Threads: reading from any thread; ``set_dynamic`` swaps whole mappings, one writer at a time.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self.unknown: dict[str, object] = {}
        self._static: dict[str, ConfigValue] = {}
        self._of_listeners: dict[str, ConfigValue] = {}
        self._dynamic_broker: Mapping[str, ConfigValue] = {}
        self._dynamic_default: Mapping[str, ConfigValue] = {}
        self._texts_broker: Mapping[str, str] = {}
        self._texts_default: Mapping[str, str] = {}
        for name, value in (values or {}).items():
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
        """Return the configuration of a properties file, an environment and ``key=value`` words, later ones winning.

        Raises: ConfigError for a bad value or a word without ``=``; OSError if the file cannot be read.
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
        """The value in force; of a listener's key that is not set, the broker's.

        Raises: KeyError for a name that is not in the table.
        """
        for source in (self._dynamic_broker, self._dynamic_default, self._static):
            if name in source:
                return source[name]
        base = base_name(name)
        if base != name:
            return self.value(base)
        return (RATE_TABLE[name] if name in RATE_TABLE else BROKER_TABLE[name]).default

    def integer(self, name: str) -> int:
        """The value of a whole-number key that is never null."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {value!r}")
        return value

    def boolean(self, name: str) -> bool:
        """The value of a true/false key."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected true or false, got {value!r}")
        return value

    def text(self, name: str) -> str:
        """The value of a text key, empty if null."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {value!r}")
        return value or ""

    def words(self, name: str) -> tuple[str, ...]:
        """The value of a list key, empty if null."""
        value = self.value(name)
        if value is not None and not isinstance(value, tuple):
            raise TypeError(f"{name}: expected a list, got {value!r}")
        return value or ()

    def is_set(self, name: str) -> bool:
        """Return whether the key was given a value by file, environment, ``--set`` or argument."""
        return name in self._static

    def sources(self, name: str) -> list[tuple[ConfigSource, ConfigValue]]:
        """Every value the key has, the winning one first, the default (if any) last; dynamic ones as typed."""
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
        """Names that are set, at start or at run time, and have no row: of listeners, and unknown ones."""
        names = {*self._static, *self._of_listeners, *self.unknown, *self._texts_broker, *self._texts_default}
        return sorted(name for name in names if name not in BROKER_TABLE)

    @property
    def node_id(self) -> int:
        """The broker's number."""
        return self.integer("node.id")

    def _mirror_node_id(self) -> None:
        """Let each of node.id and its old name have the number of the other; the new name wins."""
        old = self._static.get("broker.id")
        if isinstance(old, int) and old >= 0:
            self._static.setdefault("node.id", old)
        self._static["broker.id"] = self.integer("node.id")

    @property
    def log_dirs(self) -> list[Path]:
        """The folders of the data."""
        return [Path(folder) for folder in self.words("log.dirs") or (self.text("log.dir"),)]

    @property
    def log_dir(self) -> Path:
        """The first folder of the data, which has the metadata file."""
        return self.log_dirs[0]

    @property
    def listeners(self) -> list[Listener]:
        """Listeners to bind."""
        return parse_listeners("listeners", self.words("listeners"), self.words("listener.security.protocol.map"))

    @property
    def listener_settings(self) -> list[str]:
        """The keys of listeners that are set."""
        names = {**self._static, **self._dynamic_default, **self._dynamic_broker}
        return sorted(name for name in names if base_name(name) != name)

    def listener_integer(self, listener: str, name: str) -> int | None:
        """A listener's own value of a whole-number key; None if it has none and the broker's counts."""
        key = listener_key(listener, name)
        return self.integer(key) if self.sources(key) else None

    @property
    def inter_broker_listener(self) -> str:
        """The listener that is not held to the broker's limits of connections."""
        return (self.text("inter.broker.listener.name") or "PLAINTEXT").upper()

    @property
    def advertised_listeners(self) -> list[Listener]:
        """The addresses that clients get; empty when they follow from ``listeners``."""
        protocols = self.words("listener.security.protocol.map")
        return advertised_listeners(self.words("advertised.listeners"), self.listeners, protocols)

    def listener_value(self, listener: str, name: str) -> ConfigValue:
        """The value of a key for one listener: its own, else the broker's; None for a mechanism's key that is unset."""
        own = f"{LISTENER_PREFIX}{listener.lower()}.{name}"
        if own in self._of_listeners:
            return self._of_listeners[own]
        return self.value(name) if name in BROKER_TABLE else None

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

    def topic_configs(self, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Every topic key with its value in force, for a topic that sets ``overrides``.

        One that is no longer valid, stored by a version that allowed it, counts as unset.
        """
        own = _parsed(overrides, TOPIC_TABLE.get)
        return {name: own[name] if name in own else self.topic_default(name) for name in TOPIC_TABLE}

    # ------------------------------------------------------------ dynamic values

    def set_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> None:
        """Replace the dynamic values of this broker and of all brokers; those that are no longer valid are left out."""
        self._texts_broker, self._texts_default = dict(broker), dict(default)
        self._dynamic_broker = _parsed(broker)
        self._dynamic_default = _parsed(default)

    def with_dynamic(self, broker: Mapping[str, str], default: Mapping[str, str]) -> BrokerConfig:
        """The configuration as it would be with these dynamic values. Raises: ConfigError."""
        import copy

        other = copy.copy(self)
        other.set_dynamic(broker, default)
        other._check()
        return other

    def _check(self) -> None:
        """Check rules that concern several keys. Raises: ConfigError."""
        request_max = self.integer("socket.request.max.bytes")
        queued = self.integer("queued.max.request.bytes")
        if 0 < queued < request_max:
            reason = f"Must be 0 or less (no limit), or at least socket.request.max.bytes ({request_max})"
            raise ConfigError("queued.max.request.bytes", queued, reason)
        delay_ms, idle_ms = (
            self.integer("connection.failed.authentication.delay.ms"),
            self.integer("connections.max.idle.ms"),
        )
        if 0 <= idle_ms <= delay_ms:
            delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
            reason = f"{delay}={delay_ms} should be less than {idle}={idle_ms}"
            raise ConfigError("", delay_ms, reason)
        overrides = host_limits(self.text("max.connections.per.ip.overrides"))
        if self.integer("max.connections.per.ip") == 0 and not overrides:
            reason = (
                "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
            )
            raise ConfigError("", 0, reason)
        check_groups(self.integer, self.words)
        for kind in ("share", "streams"):
            name = f"group.{kind}.assignment.interval.ms"
            if self.integer(name) > GROUP_ASSIGNMENT_MAX_MS:
                text = f"{name} must be less than or equal to group.{kind}.max.assignment.interval.ms"
                raise ConfigError("", self.integer(name), text)
        if self.value("log.retention.ms") == 0:
            raise ConfigError("", 0, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
        share_bytes = self.integer("log.cleaner.dedupe.buffer.size") // max(1, self.integer("log.cleaner.threads"))
        if share_bytes <= 1 << 20:
            text = "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
            raise ConfigError("", share_bytes, text)
        if self.integer("default.replication.factor") != 1:
            raise ConfigError(
                "default.replication.factor", self.integer("default.replication.factor"), "There is one broker", "1"
            )
        if self.is_set("log.dirs") and not self.words("log.dirs"):
            raise ConfigError("log.dirs", "", "A folder is needed", "one or more folders")
        control = self.text("kbroker.control.listener")
        if control:
            try:
                parse_loopback(control)
            except ValueError as error:
                raise ConfigError("kbroker.control.listener", control, str(error), "127.0.0.1:port") from None
        topic = self.text("kbroker.request.log.topic")
        if topic and invalid_name_reason(topic) is not None:
            raise ConfigError("kbroker.request.log.topic", topic, "No topic can have this name", "a topic's name")
        metrics = self.text("kbroker.metrics.listener")
        if metrics:
            try:
                parse_http_address(metrics)
            except ValueError as error:
                raise ConfigError("kbroker.metrics.listener", metrics, str(error), "host:port") from None
        token = self.text("kbroker.console.token")
        if token and re.fullmatch(r"[!-~]{16,1024}", token) is None:
            expected = "16 to 1024 characters of ASCII without spaces"
            raise ConfigError("kbroker.console.token", "[hidden]", "The token cannot be sent or is too short", expected)
        self.listeners  # noqa: B018 - parsing is the check
        self.advertised_listeners  # noqa: B018


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse what a topic cannot have: unknown keys, bad values, what does not work here.

    Raises: ConfigError with Kafka's wording.
    """
    for name in configs:
        if name not in TOPIC_TABLE:
            raise ConfigError("", name, f"Unknown topic config name: {name}")
    values = {name: TOPIC_TABLE[name].parse(value) for name, value in configs.items()}
    if values.get("remote.storage.enable") is True:
        text = "Tiered Storage functionality is disabled in the broker."
        raise ConfigError("", "true", f"{text} Topic cannot be configured with remote log storage.", "false")
    shortest, longest = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", INT64_MAX)
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise ConfigError(
            "",
            shortest,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
        )


def host_limits(text: str) -> dict[str, int]:
    """Return host to number of a ``host:number,...`` text. Raises: ConfigError."""
    limits = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = word.rpartition(":")
        if not host.strip() or not (number.strip().isascii() and number.strip().isdigit()):
            raise ConfigError("max.connections.per.ip.overrides", text, f"Not host:number: {word}", "host:number,...")
        limits[host.strip().strip("[]")] = int(number)
    return limits


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys of a Java properties file: comments, ``=`` or ``:`` or blanks, continued lines, escapes."""
    found: dict[str, str] = {}
    pending = ""
    for raw in text.splitlines():
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

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in an environment; unknown names count, for a warning, only with a ``_CFG_`` prefix."""
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
                if sure or broker_key(key) is not None:
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
                continue  # stored by a version that allowed it: the next source counts
    return found
