"""Formats that need no schema: JSON, text, numbers, UUIDs, hexadecimal, MessagePack."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kbroker.decoders.decoded import Decoded, MissingPackageError, UndecodableError, json_text

_FLOAT_DIGITS = range(6, 10)  # a 32-bit float is exact with nine
WIDTHS = {"int16": ">h", "int32": ">i", "int64": ">q", "float": ">f", "double": ">d"}  # Kafka's serializers


def json_document(data: bytes) -> Decoded:
    """Return a JSON document as it is; NaN and Infinity are not JSON. Raises: UndecodableError."""
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"not JSON: {error}") from None
    return Decoded("json", text.strip(), is_json=True, parsed=value)


def no_constant(name: str) -> Any:
    """Refuse NaN and the infinities, for `json.loads`. Raises: ValueError."""
    raise ValueError(f"{name} is not a number of JSON")


def text(data: bytes) -> Decoded:
    """Return bytes in UTF-8 as text. Raises: UndecodableError."""
    try:
        return Decoded("text", data.decode())
    except UnicodeDecodeError as error:
        raise UndecodableError(f"not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None


def hexadecimal(data: bytes) -> Decoded:
    """Return the bytes as hexadecimal digits."""
    return Decoded("hex", data.hex())


def boolean(data: bytes) -> Decoded:
    """Return the one byte of Kafka's BooleanSerializer. Raises: UndecodableError."""
    if data not in (b"\0", b"\1"):
        raise UndecodableError(f"expected one byte, 0 or 1, for a boolean, got {_size(data)}")
    return Decoded("boolean", "true" if data == b"\1" else "false", is_json=True)


def uuid(data: bytes) -> Decoded:
    """Return a UUID, from its text as Kafka's UUIDSerializer writes it, or from 16 bytes. Raises: UndecodableError."""
    try:
        found = UUID(bytes=data) if len(data) == 16 else UUID(data.decode("ascii"))
    except ValueError:
        raise UndecodableError(f"expected a UUID of 36 characters or 16 bytes, got {_size(data)}") from None
    return Decoded("uuid", str(found))


def _number(name: str) -> Callable[[bytes], Decoded]:
    form = struct.Struct(WIDTHS[name])

    def decode(data: bytes) -> Decoded:
        if len(data) != form.size:
            raise UndecodableError(f"expected {form.size} bytes for {name}, got {_size(data)}")
        (value,) = form.unpack(data)
        if isinstance(value, float) and not math.isfinite(value):
            return Decoded(name, float_value(value))
        return Decoded(name, repr(short_float(value) if name == "float" else value), is_json=True)

    return decode


NUMBERS = {name: _number(name) for name in WIDTHS}


def short_float(value: float) -> float:
    """Return the number with the fewest digits that is the same 32-bit float."""
    if not math.isfinite(value):
        return value
    bits = struct.pack(">f", value)
    for digits in _FLOAT_DIGITS:
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack(">f", short) == bits:
                return short
        except OverflowError:  # the largest float, rounded up
            continue
    return value


def float_value(value: float) -> Any:
    """Return the float, or its name if JSON has no number for it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def message_pack(data: bytes) -> Decoded:
    """Return MessagePack as JSON; bytes are base64. Raises: UndecodableError, MissingPackageError."""
    return Decoded("msgpack", json_text(_unpacked(data)), is_json=True)


def message_pack_container(data: bytes) -> Decoded:
    """Return MessagePack whose outermost value is a map or an array with elements.

    Shorter values may be MessagePack by chance. Raises: as message_pack.
    """
    if not data or not (0x81 <= data[0] <= 0x8F or 0x91 <= data[0] <= 0x9F or 0xDC <= data[0] <= 0xDF):
        raise UndecodableError("neither a map nor an array of MessagePack")
    return message_pack(data)


def _unpacked(data: bytes) -> Any:
    try:
        import msgpack
    except ModuleNotFoundError as error:
        raise MissingPackageError("MessagePack", error.name) from None
    try:
        return _jsonable(msgpack.unpackb(data, strict_map_key=False, timestamp=0, unicode_errors="replace"))
    except Exception as error:  # its own errors, ValueError, TypeError for a map as key, RecursionError
        raise UndecodableError(f"not MessagePack: {str(error) or type(error).__name__}") from None


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): _jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        if hasattr(value, "code"):  # ExtType
            return {"type": value.code, "data": base64.b64encode(value.data).decode()}  # type: ignore[union-attr]
        return [_jsonable(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return float_value(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return _seconds(value.to_unix_nano()) if hasattr(value, "to_unix_nano") else str(value)


def _seconds(ns: int) -> str:
    """Return nanoseconds as seconds with all digits."""
    seconds, fraction = divmod(abs(ns), 1_000_000_000)
    return f"{'-' if ns < 0 else ''}{seconds}.{fraction:09d}"


def _key(key: Any) -> str:
    found = _jsonable(key)
    return found if isinstance(found, str) else json.dumps(found)


def _size(data: bytes) -> str:
    return "1 byte" if len(data) == 1 else f"{len(data)} bytes"
