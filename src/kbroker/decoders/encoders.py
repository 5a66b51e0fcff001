"""Keys and values from text, the inverse of `decoders`."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from uuid import UUID

from kbroker.client.schema_registry import RegistryError, SchemaRegistry, SchemaVersion
from kbroker.decoders import by_schema
from kbroker.decoders.decoded import MissingPackageError, Place, UnencodableError
from kbroker.decoders.plain import WIDTHS, no_constant


def _json(text: str) -> bytes:
    json.loads(text, parse_constant=no_constant)
    return text.encode()


def _packed(form: str) -> Callable[[str], bytes]:
    convert = float if form in (">f", ">d") else int
    return lambda text: struct.pack(form, convert(text))


def _boolean(text: str) -> bytes:
    return {"true": b"\1", "false": b"\0"}[text]


def _message_pack(text: str) -> bytes:
    try:
        import msgpack
    except ModuleNotFoundError as error:
        raise MissingPackageError("MessagePack", error.name) from None
    packed: bytes = msgpack.packb(json.loads(text))
    return packed


_PLAIN: Mapping[str, Callable[[str], bytes]] = {
    "text": str.encode,
    "json": _json,
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
    "boolean": _boolean,
    **{name: _packed(form) for name, form in WIDTHS.items()},
    "uuid": lambda text: str(UUID(text)).encode(),
    "msgpack": _message_pack,
}
#: Names of all encoders.
NAMES = (*_PLAIN, *by_schema.BY_SCHEMA)


class Encoders:
    """The encoders of keys and values.

    The encoders by schema use the latest schema of the subject TOPIC-key or TOPIC-value, which is read once, and write
    the wire format of Confluent; the encoder `registry` selects the kind of that schema.
    Threads: one at a time.
    """

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registry = registry
        self._versions: dict[str, SchemaVersion] = {}

    def encode(self, name: str, text: str, place: Place) -> bytes:
        """Return the bytes of a text. Raises: UnencodableError, MissingPackageError."""
        try:
            if name in _PLAIN:
                return _PLAIN[name](text)
            return by_schema.encode(self._version(name, place), text)
        except (ValueError, KeyError, struct.error, OverflowError, RecursionError) as error:
            if isinstance(error, UnencodableError):
                raise
            raise UnencodableError(f"{text[:40]!r} is not {name}: {error}") from None

    def _version(self, name: str, place: Place) -> SchemaVersion:
        if name not in by_schema.BY_SCHEMA:
            raise UnencodableError(f"expected an encoder of {', '.join(NAMES)}, got {name[:40]!r}")
        if self._registry is None:
            raise UnencodableError(f"the encoder {name} needs a Schema Registry")
        subject = f"{place.topic}-{'key' if place.is_key else 'value'}"
        if subject not in self._versions:
            try:
                self._versions[subject] = self._registry.version(subject)
            except RegistryError as error:
                raise UnencodableError(f"the subject {subject}: {error}") from None
        found, kind = self._versions[subject], by_schema.BY_SCHEMA[name]
        if kind not in (None, found.schema.kind):
            raise UnencodableError(f"the schema of the subject {subject} is of {found.schema.kind}, expected {kind}")
        return found
