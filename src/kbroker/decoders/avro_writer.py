"""Binary Avro from JSON, in the form in which `avro` shows it. Source: Avro 1.12, specification."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from math import isinf
from typing import Any

from kbroker.decoders.avro import EPOCH, full_name
from kbroker.decoders.decoded import UnencodableError

_INT, _LONG = 1 << 31, 1 << 63
_MICROSECOND = timedelta(microseconds=1)
_FINER = re.compile(r"[.,]\d{6}0*[1-9]")  # a fraction of a second with digits after the microseconds
_SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")
_SPARE_STEPS, _STEPS = 10_000, 50  # attempts to write a value: for each text, plus for each of its characters
_MAX_ERROR = 300  # characters of an error's text
_MAX_DIGITS = 2465  # maximum digits of a decimal; more cannot be decoded
_EXACT = Context(prec=_MAX_DIGITS, Emin=-_MAX_DIGITS, Emax=_MAX_DIGITS, traps=[Inexact, InvalidOperation, Overflow])
_JSON = json.JSONEncoder(ensure_ascii=False)


class _Number(float):
    """A number with a fraction or an exponent, and all of its digits for a decimal."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Output(bytearray):
    """The bytes so far.

    ``steps_left``: a union within unions multiplies the attempts to write its values. ``is_default``: whether the value
    is the default of a schema, which has the form of its Avro type, not that of its logical type.
    """

    steps_left = 0
    is_default = False


class AvroWriter:
    """The encoder of a schema.

    Args: ``text``: the schema as JSON; ``references``: schemas whose named types it uses, each before its users.
    Raises: UnencodableError for a text that is not a schema.
    Threads: any.
    """

    def __init__(self, text: str, references: tuple[str, ...] = ()) -> None:
        self._named: dict[str, tuple[Any, str]] = {}  # schema and namespace by full name
        try:
            for one in references:
                self._collect(json.loads(one), "")
            self._schema = json.loads(text)
            self._collect(self._schema, "")
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise UnencodableError(f"not an Avro schema: {type(error).__name__} {error}") from None

    def encode(self, text: str) -> bytes:
        """Return the bytes of a JSON text.

        Raises: UnencodableError that names the member that does not fit; another ValueError if it is not JSON.
        """
        out = _Output()
        out.steps_left = _SPARE_STEPS + _STEPS * len(text)
        value = json.loads(text, parse_float=_Number)
        try:
            self._write(self._schema, "", value, out, "the value")
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UnencodableError(f"the schema cannot be used: {type(error).__name__} {error}") from None
        return bytes(out)

    def _collect(self, schema: Any, namespace: str) -> None:
        """Collect the named types of a schema."""
        if isinstance(schema, list):
            for one in schema:
                self._collect(one, namespace)
        elif isinstance(schema, dict):
            if schema["type"] in ("record", "error", "enum", "fixed"):
                full = full_name(schema["name"], schema.get("namespace", namespace))
                namespace = full.rpartition(".")[0]
                self._named[full] = schema, namespace
            for one in (*schema.get("fields", ()), schema):
                for part in ("type", "items", "values"):
                    if isinstance(one.get(part), dict | list):
                        self._collect(one[part], namespace)

    def _write(self, schema: Any, namespace: str, value: Any, out: _Output, where: str) -> None:
        out.steps_left -= 1
        if out.steps_left < 0:
            raise UnencodableError("the schema has too many ways to write the value")
        if isinstance(schema, list):
            self._write_union(schema, namespace, value, out, where)
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            self._write(kind, namespace, value, out, where)
        elif kind in _PRIMITIVE:
            logical = schema.get("logicalType") if isinstance(schema, dict) and not out.is_default else None
            try:
                _PRIMITIVE[kind](_of_logical(schema, kind, logical, value), out)
            except (ValueError, ArithmeticError, struct.error):
                raise UnencodableError(f"{where}: expected {logical or kind}, got {_short(value)}") from None
        elif kind == "array":
            _expect(isinstance(value, list), "an array", value, where)
            for number, one in enumerate(value):
                if not number:
                    _long(len(value), out)
                self._write(schema["items"], namespace, one, out, f"{where}[{number}]")
            out.append(0)
        elif kind == "map":
            _expect(isinstance(value, dict), "an object", value, where)
            for number, (name, one) in enumerate(value.items()):
                if not number:
                    _long(len(value), out)
                _string(name, out)
                self._write(schema["values"], namespace, one, out, f"{where}.{name}")
            out.append(0)
        elif isinstance(schema, str):
            found = self._named.get(full_name(schema, namespace)) or self._named.get(schema)
            if found is None:
                raise UnencodableError(f"the schema uses {schema!r}, which it does not define")
            self._write_named(*found, value, out, where)
        else:
            inside = full_name(schema["name"], schema.get("namespace", namespace)).rpartition(".")[0]
            self._write_named(schema, inside, value, out, where)

    def _write_named(self, schema: Any, namespace: str, value: Any, out: _Output, where: str) -> None:
        kind = schema["type"]
        if kind == "enum":
            _expect(value in schema["symbols"], f"one of {', '.join(schema['symbols'])}", value, where)
            _long(schema["symbols"].index(value), out)
        elif kind == "fixed":
            try:
                data = value if out.is_default else _of_logical(schema, kind, schema.get("logicalType"), value)
            except (ValueError, ArithmeticError):
                raise UnencodableError(f"{where}: expected decimal, got {_short(value)}") from None
            fits = isinstance(data, str) and len(data) == schema["size"] and all(c <= "\xff" for c in data)
            _expect(fits, f"{schema['size']} bytes", value, where)
            out += data.encode("latin-1")
        else:
            _expect(isinstance(value, dict), "an object", value, where)
            fields = {field["name"]: field for field in schema["fields"]}
            for name in value:
                _expect(name in fields, f"one of {', '.join(fields)}", name, where)
            for name, field in fields.items():
                if name not in value and "default" not in field:
                    raise UnencodableError(f"{where}: the member {name} is missing")
                if name in value:
                    self._write(field["type"], namespace, value[name], out, f"{where}.{name}")
                else:
                    self._write_default(field, namespace, out, f"{where}.{name}")

    def _write_default(self, field: Any, namespace: str, out: _Output, where: str) -> None:
        before, out.is_default = out.is_default, True
        try:
            self._write(field["type"], namespace, field["default"], out, where)
        finally:
            out.is_default = before

    def _write_union(self, branches: list[Any], namespace: str, value: Any, out: _Output, where: str) -> None:
        """Write the first branch that fits the value. Raises: UnencodableError if none does."""
        problems = []
        start = len(out)
        for number, branch in enumerate(branches):
            _long(number, out)
            try:
                self._write(branch, namespace, value, out, where)
            except UnencodableError as error:
                problems.append(str(error))
                del out[start:]
            else:
                return
        raise UnencodableError("; ".join(problems)[:_MAX_ERROR] or f"{where}: the union is empty")


def _expect(fits: bool, what: str, value: Any, where: str) -> None:
    if not fits:
        raise UnencodableError(f"{where}: expected {what}, got {_short(value)}")


def _short(value: Any) -> str:
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > 40:
            return f"{text[:40]}..."
    return text


def _long(value: Any, out: bytearray, limit: int = _LONG) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
        raise ValueError
    number = ~(value << 1) if value < 0 else value << 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _null(value: Any, out: bytearray) -> None:
    if value is not None:
        raise ValueError


def _boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise ValueError
    out.append(value)


def _real(form: str) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        if isinstance(value, bool) or (not isinstance(value, int | float) and value not in _SPECIAL_FLOATS):
            raise ValueError
        if isinstance(value, _Number) and isinf(value):  # too large for a float, as an integer may be
            raise ValueError
        out += struct.pack(form, float(value))

    return write


def _text(encoding: str) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, str):
            raise ValueError
        data = value.encode(encoding)
        _long(len(data), out)
        out += data

    return write


_string = _text("utf-8")
_PRIMITIVE: dict[str, Callable[[Any, bytearray], None]] = {
    "null": _null,
    "boolean": _boolean,
    "int": lambda value, out: _long(value, out, _INT),
    "long": _long,
    "float": _real("<f"),
    "double": _real("<d"),
    "bytes": _text("latin-1"),  # the JSON form of Avro
    "string": _string,
}


# ---- logical types: dates and times of ISO 8601, decimals as text or number


def _of_logical(schema: Any, kind: str, logical: Any, value: Any) -> Any:
    """Return a value of a logical type as a value of its Avro type; a logical type unfit for the Avro type is ignored.

    Raises: ValueError, ArithmeticError.
    """
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, value)
    if kind in ("int", "long") and isinstance(logical, str) and logical in _TIMES and isinstance(value, str):
        return _TIMES[logical](value)
    return value


def _decimal(schema: dict[str, Any], value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    exact = Decimal(value.text if isinstance(value, _Number) else value)
    number = int(exact.scaleb(int(schema.get("scale", 0)), _EXACT).to_integral_exact(context=_EXACT))
    if len(str(abs(number))) > int(schema.get("precision", _MAX_DIGITS)):
        raise ValueError
    size = (
        int(schema["size"]) if schema["type"] == "fixed" else (number if number >= 0 else ~number).bit_length() // 8 + 1
    )
    return number.to_bytes(size, "big", signed=True).decode("latin-1")


def _exact(number: int, unit: int) -> int:
    """Return the number of units in a number. Raises: ValueError if the number has a fraction of a unit."""
    units, rest = divmod(number, unit)
    if rest:
        raise ValueError
    return units


def _microseconds(since: timedelta, text: str) -> int:
    """Return the microseconds of a parsed text. Raises: ValueError for a text with digits that the parser ignores."""
    if _FINER.search(text):
        raise ValueError
    return since // _MICROSECOND


def _moment(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return _microseconds(moment.replace(tzinfo=moment.tzinfo or timezone.utc) - EPOCH, text)


def _local_moment(text: str) -> int:
    if datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None:
        raise ValueError
    return _moment(text)


def _nanoseconds(text: str) -> int:
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    if fraction and not (fraction.isdecimal() and len(fraction) <= 9):
        raise ValueError
    return _moment(seconds) * 1000 + int(fraction.ljust(9, "0") or 0)


def _time_of_day(text: str) -> int:
    found = time.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError
    return _microseconds(datetime.combine(EPOCH, found, timezone.utc) - EPOCH, text)


_TIMES: dict[str, Callable[[str], int]] = {
    "date": lambda text: (date.fromisoformat(text) - EPOCH.date()).days,
    "time-millis": lambda text: _exact(_time_of_day(text), 1000),
    "time-micros": _time_of_day,
    "timestamp-millis": lambda text: _exact(_moment(text), 1000),
    "timestamp-micros": _moment,
    "timestamp-nanos": _nanoseconds,
    "local-timestamp-millis": lambda text: _exact(_local_moment(text), 1000),
    "local-timestamp-micros": _local_moment,
}
