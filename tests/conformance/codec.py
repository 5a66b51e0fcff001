"""Codec of messages of any API and version as dicts, by Kafka's tables, independent of the broker's codec.

A field that a body lacks has the table's default. A field that the version lacks is left out, so that one body is valid
for all versions. A field that no version has is an error.
"""

import functools
import struct
import uuid
from typing import Any, NamedTuple

from kbroker.protocol.schema import api_by_name
from tests.support.wire import header, uvarint
from tests.support.wire_bodies import message_of, within

Body = dict[str, Any]
NUMBERS = {"bool": ">?", "int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d"}
STRUCTS = {form: struct.Struct(form) for form in NUMBERS.values()}
ZERO_ID = uuid.UUID(int=0)


class Unreadable(Exception):
    """Exception for bytes that are not a message of the expected kind."""


class Field(NamedTuple):
    """Field in one version of a message.

    ``kind``: name of a number type, uuid, string, bytes, records or struct; ``tag``: None for an untagged field.
    """

    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any
    members: tuple["Field", ...]


class Message(NamedTuple):
    fields: tuple[Field, ...]
    known: frozenset[str]  # field names in any version
    flexible: bool


def _default(row: dict[str, Any], kind: str, is_array: bool, members: tuple[Field, ...]) -> Any:
    if "default" in row:
        return row["default"]
    if is_array:
        return []
    if kind == "struct":
        return {member.name: member.default for member in members}
    return {"string": "", "bytes": b"", "records": b"", "uuid": ZERO_ID, "bool": False}.get(kind, 0)


def _field(row: dict[str, Any], structs: dict[str, Any], version: int) -> Field:
    kind = row["type"].removeprefix("[]")
    is_array = row["type"] != kind
    members: tuple[Field, ...] = ()
    if kind not in NUMBERS and kind not in ("uuid", "string", "bytes", "records"):
        rows = row.get("fields") or structs[kind]["fields"]
        members = tuple(_field(each, structs, version) for each in rows if within(version, each["versions"]))
        kind = "struct"
    nullable = within(version, row.get("nullable"))
    return Field(row["name"], kind, is_array, nullable, row.get("tag"), _default(row, kind, is_array, members), members)


def _names(rows: list[dict[str, Any]], structs: dict[str, Any], seen: tuple[str, ...] = ()) -> set[str]:
    found = set()
    for row in rows:
        kind = row["type"].removeprefix("[]")
        found.add(row["name"])
        inner = row.get("fields") or structs.get(kind, {}).get("fields", [])
        if kind not in seen:
            found |= _names(inner, structs, (*seen, kind))
    return found


@functools.cache
def message(api: str, side: str, version: int) -> Message:
    """Return the table of a request or response in one version."""
    table = message_of(api_by_name(api), side)
    structs = table.get("structs", {})
    fields = tuple(_field(row, structs, version) for row in table["fields"] if within(version, row["versions"]))
    known = frozenset(_names(table["fields"], structs))
    return Message(fields, known, within(version, table["flexible"]))


# ---- writing


def _size(length: int, kind: str, flexible: bool) -> bytes:
    """Return the length prefix of a string, bytes or an array; -1 represents null."""
    if flexible:
        return uvarint(length + 1)
    return struct.pack(">h" if kind == "string" else ">i", length)


def _written(field: Field, value: Any, flexible: bool, known: frozenset[str]) -> bytes:
    if field.is_array:
        if value is None:
            return _size(-1, "array", flexible)
        one = field._replace(is_array=False, is_nullable=False)
        return _size(len(value), "array", flexible) + b"".join(_written(one, each, flexible, known) for each in value)
    if field.kind == "struct":
        mark = b"" if not field.is_nullable or field.tag is not None else b"\xff" if value is None else b"\x01"
        return mark if value is None else mark + _struct(field.members, value, flexible, known)
    if field.kind in ("string", "bytes", "records"):
        if value is None:
            return _size(-1, field.kind, flexible)
        data = value.encode() if isinstance(value, str) else value
        return _size(len(data), field.kind, flexible) + data
    if field.kind == "uuid":
        return bytes(value.bytes)
    return struct.pack(NUMBERS[field.kind], value)


def _struct(fields: tuple[Field, ...], body: Body, flexible: bool, known: frozenset[str]) -> bytes:
    if unknown := body.keys() - known:
        raise KeyError(f"no version has the fields {sorted(unknown)}")
    out, tagged = [], {}
    for field in fields:
        value = body.get(field.name, field.default)
        if field.tag is None:
            out.append(_written(field, value, flexible, known))
        elif value != field.default:
            tagged[field.tag] = _written(field, value, True, known)
    if flexible:
        out.append(uvarint(len(tagged)))
        out += [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tagged.items())]
    return b"".join(out)


def encoded(api: str, version: int, body: Body) -> bytes:
    """Return a request body."""
    table = message(api, "request", version)
    return _struct(table.fields, body, table.flexible, table.known)


def request(
    api: str, version: int, body: Body, correlation_id: int = 1, client_id: str | None = "conformance"
) -> bytes:
    """Return a request with its header, without its length prefix."""
    flexible = message(api, "request", version).flexible
    return header(api_by_name(api).key, version, correlation_id, client_id, flexible=flexible) + encoded(
        api, version, body
    )


# ---- reading


class Reader:
    """Reader of values from bytes, which never reads past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise Unreadable(f"{count} bytes are announced at {self._at}, {self.left} are there")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, form: str) -> Any:
        number = STRUCTS[form]
        return number.unpack(self.take(number.size))[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise Unreadable("a varint of more than ten bytes")

    def varint(self) -> int:
        value = self.uvarint()
        return value >> 1 ^ -(value & 1)

    def size(self, kind: str, flexible: bool) -> int:
        """Return a length; -1 represents null."""
        return self.uvarint() - 1 if flexible else int(self.number(">h" if kind == "string" else ">i"))


def _read(reader: Reader, field: Field, flexible: bool) -> Any:
    if field.is_array:
        count = reader.size("array", flexible)
        if count < 0:
            return _null(field)
        if count > reader.left:
            raise Unreadable(f"{field.name} announces {count} elements, {reader.left} bytes are left")
        if field.kind == "struct":
            return [_read_struct(reader, field.members, flexible) for _ in range(count)]
        one = field._replace(is_array=False, is_nullable=False)
        return [_read(reader, one, flexible) for _ in range(count)]
    if field.kind == "struct":
        if field.is_nullable and field.tag is None and reader.number(">b") < 0:
            return None
        return _read_struct(reader, field.members, flexible)
    if field.kind in ("string", "bytes", "records"):
        size = reader.size(field.kind, flexible)
        if size < 0:
            return None if field.kind == "records" else _null(field)
        data = reader.take(size)
        try:
            return data.decode() if field.kind == "string" else data
        except UnicodeDecodeError as error:
            raise Unreadable(f"{field.name}: {error}") from None
    if field.kind == "uuid":
        return uuid.UUID(bytes=reader.take(16))
    return reader.number(NUMBERS[field.kind])


def _null(field: Field) -> None:
    if not field.is_nullable:
        raise Unreadable(f"{field.name} is null and may not be")


def _read_struct(reader: Reader, fields: tuple[Field, ...], flexible: bool) -> Body:
    found = {field.name: _read(reader, field, flexible) for field in fields if field.tag is None}
    by_tag = {field.tag: field for field in fields if field.tag is not None}
    found |= {field.name: field.default for field in by_tag.values()}
    if flexible:
        for _ in range(reader.uvarint()):
            tag, data = reader.uvarint(), Reader(reader.take(reader.uvarint()))
            if tag in by_tag:
                found[by_tag[tag].name] = _read(data, by_tag[tag], True)
                if data.left:
                    raise Unreadable(f"{data.left} bytes too many in tagged field {tag}")
            else:
                found[f"Tag{tag}"] = data.take(data.left)
    return found


def response(api: str, version: int, frame: bytes) -> tuple[int, Body]:
    """Return the correlation id and body of a response. Raises: Unreadable."""
    reader = Reader(frame)
    correlation_id = int(reader.number(">i"))
    table = message(api, "response", version)
    if table.flexible and api != "ApiVersions":  # its header stays the old one, for clients without the version
        for _ in range(reader.uvarint()):
            reader.uvarint()
            reader.take(reader.uvarint())
    body = _read_struct(reader, table.fields, table.flexible)
    if reader.left:
        raise Unreadable(f"{reader.left} bytes behind the end")
    return correlation_id, body
