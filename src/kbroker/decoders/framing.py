"""The id of a schema in front of a key or value, or in a header: wire formats of Confluent and Apicurio.

- Confluent: 0 and a 4-byte id; for Protobuf then the indexes of the message. From version 8 on also a header
  ``__value_schema_id`` with 1 and a 16-byte GUID.
- Apicurio: 0 and an 8-byte id (version 2) or a 4-byte id (version 3), or the headers ``apicurio.value.globalId`` and
  ``apicurio.value.contentId``; for Protobuf then a length and a message ``Ref`` with the name of the type. Ids begin
  at 1 and are small: four zero bytes are the beginning of an 8-byte id.

Source: ``SchemaId`` of confluent-kafka, ``OptimisticFallbackIdHandler`` and ``DefaultHeadersHandler`` of Apicurio.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kbroker.client.schema_registry import CONTENT_ID, GLOBAL_ID, GUID, ID, SchemaId
from kbroker.decoders.decoded import Place, UndecodableError

_MAX_INDEXES = 100
_REF_FIELD = 0x0A  # the tag of the name in a Ref


class Framed(NamedTuple):
    """A schema's id and the bytes after it.

    ``indexes``: bytes of message indexes in the header; ``type_name``: a Protobuf message type, from a header;
    ``is_json``: whether a header marks Avro as encoded in JSON.
    """

    schema_id: SchemaId
    payload: bytes
    indexes: bytes | None = None
    type_name: str | None = None
    is_json: bool = False


def framed(data: bytes, place: Place) -> Framed | None:
    """Return the schema's id and the rest, None if there is no id."""
    return _in_headers(data, place) or _in_front(data)


def _in_front(data: bytes) -> Framed | None:
    if data[:1] == b"\x01" and len(data) >= 17:
        return Framed(SchemaId(GUID, str(UUID(bytes=data[1:17]))), data[17:])
    if data[:1] != b"\0" or len(data) < 5:
        return None
    number = int.from_bytes(data[1:5], "big")
    if number:
        return Framed(SchemaId(ID, str(number)), data[5:])
    number = int.from_bytes(data[5:9], "big")
    return Framed(SchemaId(GLOBAL_ID, str(number)), data[9:]) if number and len(data) >= 9 else None


def _in_headers(data: bytes, place: Place) -> Framed | None:
    if not place.headers:
        return None
    part = "key" if place.is_key else "value"
    found = {name: value for name, value in place.headers if value is not None}
    guid = found.get(f"__{part}_schema_id", b"")
    if guid[:1] == b"\x01" and len(guid) >= 17:
        return Framed(SchemaId(GUID, str(UUID(bytes=guid[1:17]))), data, guid[17:] or None)
    if guid[:1] == b"\0" and len(guid) >= 5:
        return Framed(SchemaId(ID, str(int.from_bytes(guid[1:5], "big"))), data, guid[5:] or None)
    for kind in (GLOBAL_ID, CONTENT_ID):
        value = found.get(f"apicurio.{part}.{kind}", b"")
        if len(value) == 8:
            name = found.get("apicurio.protobuf.type" + (".key" if place.is_key else ""))
            return Framed(
                SchemaId(kind, str(int.from_bytes(value, "big"))),
                data,
                type_name=None if name is None else name.decode("utf-8", "replace"),
                is_json=found.get(f"apicurio.{part}.encoding") == b"JSON",
            )
    return None


def reference(payload: bytes) -> tuple[str, bytes] | None:
    """Return the name in an Apicurio Ref and the bytes after it; None if the payload does not begin with one."""
    try:
        size, at = _varint(payload, 0)
        if size < 2 or at + size > len(payload) or payload[at] != _REF_FIELD:
            return None
        length, start = _varint(payload, at + 1)
        end = at + size
        return (payload[start:end].decode("ascii"), payload[end:]) if start + length == end else None
    except (UndecodableError, UnicodeDecodeError):
        return None


def message_indexes(payload: bytes) -> tuple[list[int], bytes]:
    """Return Confluent's indexes of a message and the bytes after them. Raises: UndecodableError."""
    count, at = _varint(payload, 0)
    count = count >> 1 ^ -(count & 1)
    if count == 0:
        return [0], payload[at:]
    if not 0 < count <= _MAX_INDEXES:
        raise UndecodableError(f"expected at most {_MAX_INDEXES} message indexes, got {count}")
    found = []
    for _ in range(count):
        number, at = _varint(payload, at)
        found.append(number >> 1 ^ -(number & 1))
    return found, payload[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise UndecodableError("expected the index of a message, got the end of the record or a longer number")
