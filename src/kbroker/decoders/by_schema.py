"""Keys and values that were serialized with a schema of a Schema Registry."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.client.schema_registry import (
    AVRO,
    JSON_SCHEMA,
    PROTOBUF,
    RegistryError,
    Schema,
    SchemaRegistry,
    SchemaVersion,
)
from kbroker.decoders.avro import AvroSchema
from kbroker.decoders.avro_writer import AvroWriter
from kbroker.decoders.decoded import Decoded, Place, UndecodableError, UnencodableError
from kbroker.decoders.framing import Framed, framed, message_indexes, reference
from kbroker.decoders.plain import json_document
from kbroker.decoders.protobuf import ProtobufSchema, UnfinishedError

REGISTRY = "registry"
#: The kind of schema of each decoder and encoder; REGISTRY accepts any kind.
BY_SCHEMA = {AVRO: AVRO, PROTOBUF: PROTOBUF, JSON_SCHEMA: JSON_SCHEMA, REGISTRY: None}
_SCHEMAS = 200  # results of compilers that are kept
_UNFINISHED_KEPT_MS = 60_000  # a compilation that did not end in time is not repeated for each record


class NoResponseError(UndecodableError):
    """Failure of the registry, after which it is unknown whether the bytes name a schema."""


_Compiled = TypeVar("_Compiled", AvroSchema, ProtobufSchema)


def _kept(compiled: Callable[[Schema], _Compiled], clock: BaseClock | None = None) -> Callable[[Schema], _Compiled]:
    """Return a function that compiles each schema once and raises UndecodableError, each time, for a refused schema."""
    now_ms = (SystemClock() if clock is None else clock).now_ms

    @lru_cache(_SCHEMAS)
    def result(schema: Schema) -> tuple[_Compiled | UndecodableError, float]:
        try:
            return compiled(schema), math.inf
        except UnfinishedError as error:
            return error, now_ms() + _UNFINISHED_KEPT_MS
        except UndecodableError as error:
            return error, math.inf

    def compile_once(schema: Schema) -> _Compiled:
        found, until_ms = result(schema)
        if now_ms() >= until_ms:
            result.cache_clear()  # a single result cannot be removed
            found, _ = result(schema)
        if isinstance(found, UndecodableError):
            raise UndecodableError(str(found))
        return found

    return compile_once


_avro = _kept(lambda schema: AvroSchema(schema.text, tuple(text for _, text in schema.references)))
_avro_writer = lru_cache(_SCHEMAS)(lambda schema: AvroWriter(schema.text, tuple(text for _, text in schema.references)))
_protobuf = _kept(lambda schema: ProtobufSchema(schema.text, dict(schema.references)))


def decode(registry: SchemaRegistry, data: bytes, place: Place, kind: str | None = None) -> Decoded:
    """Return a key or value by the schema that it names.

    Args: ``kind``: required kind of the schema, None for any.
    Raises: UndecodableError if it names no schema, the registry does not have it, or the bytes do not fit;
        MissingPackageError.
    """
    found = framed(data, place)
    if found is None:
        raise UndecodableError("no id of a schema in front of the bytes or in the headers")
    try:
        schema = registry.schema(found.schema_id)
    except RegistryError as error:
        failure = NoResponseError if error.status is None or error.status >= 500 else UndecodableError
        raise failure(f"schema {found.schema_id}: {error}") from None
    if kind is not None and schema.kind != kind:
        raise UndecodableError(f"schema {found.schema_id} is of {schema.kind}, expected {kind}")
    try:
        decoded = _decoded(schema, found)
    except UndecodableError as error:
        raise UndecodableError(f"schema {found.schema_id}: {error}") from None
    return decoded._replace(format=schema.kind, schema=f"{decoded.schema}, {found.schema_id}".removeprefix(", "))


def _decoded(schema: Schema, found: Framed) -> Decoded:
    if schema.kind == JSON_SCHEMA or found.is_json:
        return json_document(found.payload)
    if schema.kind == AVRO:
        avro = _avro(schema)
        return avro.decode(found.payload)._replace(schema=avro.name)
    messages = _protobuf(schema)
    if found.type_name is not None:
        return messages.decode(found.payload, name=found.type_name)
    named = reference(found.payload)
    if named is not None and messages.named(named[0]):  # Apicurio writes the name, Confluent the position
        return messages.decode(named[1], name=named[0])
    if found.indexes is not None:
        return messages.decode(found.payload, indexes=message_indexes(found.indexes)[0])
    indexes, payload = message_indexes(found.payload)
    return messages.decode(payload, indexes=indexes)


def encode(version: SchemaVersion, text: str) -> bytes:
    """Return a JSON text encoded by a schema, after its id in the wire format of Confluent.

    With Protobuf the text is a value of the schema's first message. JSON Schema is not validated, but the text must be
    JSON. Raises: UnencodableError, MissingPackageError.
    """
    schema = version.schema
    try:
        if schema.kind == PROTOBUF:
            payload = b"\0" + _protobuf(schema).encode(text)  # the index of the first message
        elif schema.kind == AVRO:
            payload = _avro_writer(schema).encode(text)
        else:
            payload = text.encode()
            json_document(payload)
    except (ValueError, RecursionError) as error:
        what = "" if isinstance(error, UnencodableError | UndecodableError) else "not JSON: "
        raise UnencodableError(f"{version.subject} version {version.version}: {what}{error}") from None
    return b"\0" + version.id.to_bytes(4, "big") + payload
