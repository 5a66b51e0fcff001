"""Binary Avro as JSON, by its schema.

The libraries for Avro do not check their input: fastavro 1.13 overflows the C stack on 10 KB of a recursive schema, and
reads an array of 2^60 nulls until the memory is full. Any producer can write such bytes, so this reader limits depth
and number of values by the size of its input, and the text that the schema adds to it.

Source: Avro 1.12, specification.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

from kbroker.decoders.decoded import Decoded, UndecodableError, check_schema_characters, json_text
from kbroker.decoders.plain import float_value, short_float

MAX_DEPTH = 100  # levels of values within values, and of types within types
_SPARE_VALUES = 1000  # values allowed beyond one for each byte of the input: some have no bytes
_MAX_VARINT_BYTES = 10
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_DECIMAL_BYTES = 1024  # Python limits the digits of an integer's text


class _Input:
    """Bytes that are read from the front, with the limits of one record."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth = data, 0, 0
        self.values_left = len(data) + _SPARE_VALUES
        self.schema_characters = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes. Raises: UndecodableError."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise UndecodableError(f"expected {size} bytes at position {self.at}, got {len(self.data) - self.at}")
        part = self.data[self.at : end]
        self.at = end
        return part

    def varint(self, bits: int = 64) -> int:
        """Return the next long, or an int of 32 bits. Raises: UndecodableError."""
        number = shift = 0
        for byte in self.data[self.at : self.at + _MAX_VARINT_BYTES]:
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number >> bits:
                    raise UndecodableError(f"expected a number of {bits} bits at position {self.at}, got a larger one")
                return number >> 1 ^ -(number & 1)
            shift += 7
        raise UndecodableError(f"expected a number at position {self.at}, got the end of the record or a longer one")

    def enter(self) -> None:
        """Count a value that contains values. Raises: UndecodableError beyond MAX_DEPTH levels."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UndecodableError(f"values are nested deeper than {MAX_DEPTH} levels")

    def count(self) -> None:
        """Count an element. Raises: UndecodableError for more elements than bytes."""
        self.values_left -= 1
        if self.values_left < 0:
            raise UndecodableError("more elements than bytes")

    def spell(self, characters: int) -> None:
        """Count characters of the schema in the result. Raises: UndecodableError for too many."""
        self.schema_characters += characters
        check_schema_characters(self.schema_characters)


_Reader = Callable[[_Input], Any]


class AvroSchema:
    """A schema and the reader that it describes.

    Args: ``text``: the schema as JSON; ``references``: schemas whose named types it uses, each before its users.
    Raises: UndecodableError for a text that is not a schema.
    Threads: any.
    """

    def __init__(self, text: str, references: tuple[str, ...] = ()) -> None:
        self._named: dict[str, list[_Reader]] = {}
        self._levels = 0
        try:
            for one in references:
                self._reader(json.loads(one), "")
            schema = json.loads(text)
            self._read = self._reader(schema, "")
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
            if isinstance(error, UndecodableError):
                raise
            raise UndecodableError(f"not an Avro schema: {type(error).__name__} {error}") from None
        name = schema.get("name", schema.get("type")) if isinstance(schema, dict) else schema
        self.name = name.encode("utf-8", "replace").decode() if isinstance(name, str) else "union"

    def decode(self, data: bytes) -> Decoded:
        """Return the value as JSON. Raises: UndecodableError."""
        source = _Input(data)
        try:
            value = self._read(source)
        except (ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, UndecodableError):
                raise
            raise UndecodableError(f"at position {source.at}: {error}") from None
        if source.at != len(data):
            raise UndecodableError(f"{len(data) - source.at} bytes are left after the value: another schema?")
        return Decoded("avro", json_text(value), is_json=True)

    def _reader(self, schema: Any, namespace: str) -> _Reader:
        self._levels += 1
        if self._levels > MAX_DEPTH:
            raise UndecodableError(f"types are nested deeper than {MAX_DEPTH} levels")
        try:
            if isinstance(schema, list):
                return _union([self._reader(one, namespace) for one in schema])
            if isinstance(schema, str):
                return _PRIMITIVE.get(schema) or self._of_name(schema, namespace)
            kind = schema["type"]
            if not isinstance(kind, str):  # a type nested in a type, as some writers produce it
                return self._reader(kind, namespace)
            if kind == "array":
                return _array(self._reader(schema["items"], namespace))
            if kind == "map":
                return _map(self._reader(schema["values"], namespace))
            if kind in ("record", "error", "enum", "fixed"):
                return self._defined(schema, kind, namespace)
            return _logical(schema, self._reader(kind, namespace))
        finally:
            self._levels -= 1

    def _of_name(self, name: str, namespace: str) -> _Reader:
        place = self._named.get(full_name(name, namespace), self._named.get(name))
        if place is None:
            raise UndecodableError(f"the schema uses {name!r}, which it does not define")
        return lambda source: place[0](source)

    def _defined(self, schema: dict[str, Any], kind: str, namespace: str) -> _Reader:
        full = full_name(schema["name"], schema.get("namespace", namespace))
        place = self._named[full] = []  # a record may contain itself
        if kind == "enum":
            reader = _enum([str(symbol) for symbol in schema["symbols"]])
        elif kind == "fixed":
            size = int(schema["size"])
            reader = _logical(schema, lambda source: source.take(size).decode("latin-1"))
        else:
            inside = full.rpartition(".")[0]
            reader = _record([(str(one["name"]), self._reader(one["type"], inside)) for one in schema["fields"]])
        place.append(reader)
        return reader


def full_name(name: str, namespace: str) -> str:
    """Return the name of a type with its namespace."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _boolean(source: _Input) -> bool:
    return source.take(1) != b"\0"


def _float(source: _Input) -> Any:
    return float_value(short_float(struct.unpack("<f", source.take(4))[0]))


def _double(source: _Input) -> Any:
    return float_value(struct.unpack("<d", source.take(8))[0])


def _string(source: _Input) -> str:
    return source.take(source.varint()).decode("utf-8", "replace")


def _bytes(source: _Input) -> str:
    return source.take(source.varint()).decode("latin-1")  # the JSON form of Avro


_PRIMITIVE: dict[str, _Reader] = {
    "null": lambda source: None,
    "boolean": _boolean,
    "int": lambda source: source.varint(32),
    "long": _Input.varint,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _enum(symbols: list[str]) -> _Reader:
    def read(source: _Input) -> str:
        number = source.varint()
        if not 0 <= number < len(symbols):
            raise UndecodableError(f"expected a symbol from 0 to {len(symbols) - 1}, got {number}")
        source.spell(len(symbols[number]))
        return symbols[number]

    return read


def _union(branches: list[_Reader]) -> _Reader:
    def read(source: _Input) -> Any:
        number = source.varint()
        if not 0 <= number < len(branches):
            raise UndecodableError(f"expected a branch of a union from 0 to {len(branches) - 1}, got {number}")
        return branches[number](source)

    return read


def _record(members: list[tuple[str, _Reader]]) -> _Reader:
    def read(source: _Input) -> dict[str, Any]:
        source.enter()
        found = {}
        for name, reader in members:
            source.count()
            source.spell(len(name))
            found[name] = reader(source)
        source.depth -= 1
        return found

    return read


def _blocks(source: _Input) -> int:
    """Return the number of elements in the next block, 0 after the last one."""
    count = source.varint()
    if count < 0:
        source.varint()  # the size of the block
    return abs(count)


def _array(item: _Reader) -> _Reader:
    def read(source: _Input) -> list[Any]:
        source.enter()
        found = []
        while count := _blocks(source):
            for _ in range(count):
                source.count()
                found.append(item(source))
        source.depth -= 1
        return found

    return read


def _map(value: _Reader) -> _Reader:
    def read(source: _Input) -> dict[str, Any]:
        source.enter()
        found = {}
        while count := _blocks(source):
            for _ in range(count):
                source.count()
                name = _string(source)
                found[name] = value(source)
        source.depth -= 1
        return found

    return read


# ---- logical types: dates and times as ISO 8601, decimals as text with all digits


def _logical(schema: dict[str, Any], plain: _Reader) -> _Reader:
    kind = schema.get("logicalType")
    if kind == "decimal" and schema["type"] in ("bytes", "fixed"):
        scale = int(schema.get("scale", 0))
        return lambda source: _decimal(source, plain(source), scale)
    shown = _TIMES.get(kind) if isinstance(kind, str) else None
    if shown is None or schema["type"] not in ("int", "long"):
        return plain

    def read(source: _Input) -> Any:
        number = plain(source)
        try:
            return shown(number)
        except OverflowError:
            return number

    return read


def _decimal(source: _Input, text: str, scale: int) -> str:
    data = text.encode("latin-1")
    source.spell(max(scale, 0))
    if len(data) > _MAX_DECIMAL_BYTES or not 0 <= scale <= _MAX_DECIMAL_BYTES:
        raise UndecodableError(f"a decimal of {len(data)} bytes with scale {scale} is too long")
    number = int.from_bytes(data, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _moment(microseconds: int, zone: str) -> str:
    moment = EPOCH + timedelta(microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="auto") + zone


def _time_of_day(microseconds: int) -> str:
    if not 0 <= microseconds < 86_400_000_000:
        raise OverflowError
    return (datetime.combine(date(1970, 1, 1), time()) + timedelta(microseconds=microseconds)).time().isoformat()


_TIMES: dict[str, Callable[[int], str]] = {
    "date": lambda days: (EPOCH + timedelta(days=days)).date().isoformat(),
    "time-millis": lambda ms: _time_of_day(1000 * ms),
    "time-micros": _time_of_day,
    "timestamp-millis": lambda ms: _moment(1000 * ms, "Z"),
    "timestamp-micros": lambda us: _moment(us, "Z"),
    "timestamp-nanos": lambda ns: f"{_moment(ns // 1_000_000_000 * 1_000_000, '')}.{ns % 1_000_000_000:09d}Z",
    "local-timestamp-millis": lambda ms: _moment(1000 * ms, ""),
    "local-timestamp-micros": lambda us: _moment(us, ""),
}
