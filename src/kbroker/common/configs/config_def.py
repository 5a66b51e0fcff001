"""Definition of a configuration key: type, default, limits, parsing of text (Kafka's ``ConfigDef``)."""

import enum
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from kbroker.common.java.java_values import double_text, parse_double, parse_long, split_list, trim

ConfigValue = bool | int | float | str | tuple[str, ...] | None
Kind = Literal["boolean", "string", "int", "short", "long", "double", "list", "password"]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MOST_THREADS = 1000  # of one kind: more occupy the cores while they wait, and 10,000 took 12 s to stop


class ConfigType(enum.IntEnum):
    """Types, numbered as in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(enum.Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Dynamic(enum.Enum):
    """Scope of a key's changes while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigError(ValueError):
    """Invalid value of a key.

    ``str()`` is Kafka's wording, as clients get it; ``explain()`` adds the allowed values, for people.
    """

    def __init__(self, key: str, value: object, reason: str, allowed: str = "") -> None:
        super().__init__(f"Invalid value {value} for configuration {key}: {reason}" if key else reason)
        self.key = key
        self.value = value
        self.reason = reason
        self.allowed = allowed

    def explain(self) -> str:
        """Return one line with key, value, reason and the allowed values."""
        return f"{self} (allowed: {self.allowed})" if self.allowed else str(self)


def folder_error(key: str, folder: str, error: OSError | ValueError) -> ConfigError:
    """Return the error for a folder in which no file can be created; a ValueError: its path has a zero byte."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(key, folder, reason, "a folder in which the broker can create files")


class Validator(NamedTuple):
    """Check of a value: ``check`` returns the reason for a refusal or None; ``allowed`` describes the valid values.

    A list is checked word by word, or, with ``keeps_list``, as one text, which may have empty and repeated words.
    """

    allowed: str
    check: Callable[[bool | int | float | str], str | None]
    keeps_list: bool = False


def between(low: float, high: float | None = None) -> Validator:
    """Return a check for numbers from low to high, both included; no upper limit when high is None."""

    def check(value: bool | int | float | str) -> str | None:
        assert isinstance(value, (int, float))
        if not value >= low:  # NaN is neither below nor above
            return f"Value must be at least {low}"
        if high is not None and value > high:
            return f"Value must be no more than {high}"
        return None

    return Validator(f"at least {low}" if high is None else f"{low} to {high}", check)


def one_of(*words: str) -> Validator:
    """Return a check for one of these words, or a list of them."""

    def check(value: bool | int | float | str) -> str | None:
        return None if value in words else f"String must be one of: {', '.join(words)}"

    return Validator("one of " + ", ".join(word or "(empty)" for word in words), check)


def levels(low: int, high: int, default: int) -> Validator:
    """Return a check for compression levels: low to high, or the codec's default, which may be outside that range."""

    def check(value: bool | int | float | str) -> str | None:
        assert isinstance(value, int)
        good = low <= value <= high or value == default
        return None if good else f"Value must be between {low} and {high} or equal to {default}"

    return Validator(f"{low} to {high}, or {default}", check)


def throttled_replicas(name: str) -> Validator:
    """Return a check for ``*``, an empty list, or a list of partition:broker."""

    def check(value: bool | int | float | str) -> str | None:
        if value == "*" or re.fullmatch(r"(?:[0-9]+:[0-9]+)?(?:,(?:[0-9]+:[0-9]+)?)*", str(value)):
            return None
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        return f"{name} must be the literal '*' or a list of replicas in the following format: {form}"

    return Validator("*, or partition:broker,...", check, keeps_list=True)


class ConfigKey(NamedTuple):
    """One row of the configuration table.

    ``synonym``: for a topic key, the broker key that gives the topic's default. ``doc``: text of DescribeConfigs and of
    the printed reference. ``default_doc``: description of a default that depends on the machine.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    doc: str
    validator: Validator | None = None
    importance: Importance = Importance.MEDIUM
    dynamic: Dynamic = Dynamic.READ_ONLY
    synonym: str | None = None
    default_doc: str = ""

    @property
    def is_sensitive(self) -> bool:
        """Return whether the value must not leave the broker."""
        return self.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)

    @property
    def allowed(self) -> str:
        """Description of the valid values."""
        kind = _KINDS[self.type]
        if self.validator is None:
            return kind
        each = "each " if self.type is ConfigType.LIST and not self.validator.keeps_list else ""
        return f"{kind}, {each}{self.validator.allowed}"

    def parse(self, text: object) -> ConfigValue:
        """Return the typed value of ``text`` (any Python value is converted to its text).

        Raises: ConfigError if it is of the wrong type or out of range.
        """
        value = self._typed(text)
        if isinstance(value, tuple):
            return self._checked_list(value)
        if self.validator is not None and value is not None:
            reason = self.validator.check(value)
            if reason is not None:
                raise ConfigError(self.name, to_text(value), reason, self.allowed)
        return value

    def _checked_list(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words, once each unless the validator keeps the list. Raises: ConfigError for an invalid word."""
        if self.validator is not None and self.validator.keeps_list:
            reason = self.validator.check(",".join(words))
            if reason is not None:
                raise ConfigError(self.name, f"[{', '.join(words)}]", reason, self.allowed)
            return words
        for word in words:
            if not word:
                raise ConfigError("", word, f"Configuration '{self.name}' values must not be empty.", self.allowed)
            reason = None if self.validator is None else self.validator.check(word)
            if reason is not None:
                raise ConfigError(self.name, word, reason, self.allowed)
        return tuple(dict.fromkeys(words))

    def _typed(self, given: object) -> ConfigValue:
        if given is None:
            if self.default is None:
                return None
            raise ConfigError(self.name, given, "entry must be non null", self.allowed)
        if isinstance(given, (list, tuple)):
            text = ",".join(str(word) for word in given)
        elif isinstance(given, bool):
            text = "true" if given else "false"
        else:
            text = str(given)
        trimmed = trim(text)
        if self.type is ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise ConfigError(self.name, text, "Expected value to be either true or false", self.allowed)
            return trimmed.lower() == "true"
        if self.type in _INTEGER_BITS:
            bits, whole = _INTEGER_BITS[self.type], parse_long(trimmed)
            if whole is not None and -(1 << bits) <= whole < 1 << bits:
                return whole
        elif self.type is ConfigType.DOUBLE:
            number = parse_double(trimmed)
            if number is not None:
                return number
        elif self.type is ConfigType.LIST:
            return split_list(trimmed)
        else:
            return trimmed
        raise ConfigError(self.name, text, f"Not a number of type {self.type.name}", self.allowed)


def key(
    name: str,
    kind: Kind,
    default: ConfigValue,
    doc: str,
    validator: Validator | None = None,
    *,
    importance: Literal["high", "medium", "low"] = "medium",
    dynamic: Literal["read-only", "per-broker", "cluster-wide"] = "read-only",
    synonym: str | None = None,
    default_doc: str = "",
) -> ConfigKey:
    """Return a row of the table; words name its type, its importance and the scope of its changes at run time."""
    scope = _DYNAMIC[dynamic]
    return ConfigKey(name, _TYPES[kind], default, doc, validator, _IMPORTANCE[importance], scope, synonym, default_doc)


# a look-up in a dictionary takes 0.02 us, in an enum class 0.4 us; a start makes three for each key
_TYPES = {kind.name.lower(): kind for kind in ConfigType}
_IMPORTANCE = {importance.value: importance for importance in Importance}
_DYNAMIC = {dynamic.value: dynamic for dynamic in Dynamic}
_INTEGER_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}

_KINDS = {
    ConfigType.UNKNOWN: "text",
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "text",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "text",
}


def to_text(value: ConfigValue) -> str | None:
    """Return the value as DescribeConfigs shows it; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return double_text(value) if isinstance(value, float) else str(value)
