"""The decoders by name, and the choice among them for a key or value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.client.schema_registry import SchemaRegistry
from kbroker.decoders import by_schema, kafka_records, plain
from kbroker.decoders.decoded import Decoded, Headers, MissingPackageError, Place, UndecodableError
from kbroker.decoders.framing import framed

AUTO = "auto"
MAX_MISSES = 20  # in sequence; each may be a request to the registry, since numbers may look like ids of schemas
_PLAIN: Mapping[str, Callable[[bytes], Decoded]] = {
    "json": plain.json_document,
    "text": plain.text,
    "hex": plain.hexadecimal,
    "boolean": plain.boolean,
    **plain.NUMBERS,
    "uuid": plain.uuid,
    "msgpack": plain.message_pack,
}
#: Names of all decoders.
NAMES = (AUTO, *_PLAIN, *by_schema.BY_SCHEMA, kafka_records.FORMAT)


class DecodedRecord(NamedTuple):
    """A record with its key and value decoded; None where the record has null."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Decoded | None
    value: Decoded | None
    headers: Headers


class Decoders:
    """The decoders of keys and values.

    Args: ``key``, ``value``: decoder names from NAMES; ``registry``: for decoders that need a schema.
    Raises: ValueError for an unknown name, or for a decoder that needs a schema if there is no registry.
    Threads: any.
    """

    def __init__(self, key: str = AUTO, value: str = AUTO, registry: SchemaRegistry | None = None) -> None:
        for name in (key, value):
            if name not in NAMES:
                raise ValueError(f"expected a decoder of {', '.join(NAMES)}, got {name!r}")
            if name in by_schema.BY_SCHEMA and registry is None:
                raise ValueError(f"the decoder {name} needs a Schema Registry")
        self._key, self._value, self._registry = key, value, registry
        self._misses = 0  # the registry's client itself limits the requests while the registry does not respond

    def record(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> DecodedRecord:
        """Return a record with its key and value decoded.

        Where the chosen decoder fails, the result is that of AUTO, with the reason as its ``problem``.
        Raises: MissingPackageError if the chosen decoder needs a package; AUTO does without.
        """
        own, problem = None, ""
        if kafka_records.FORMAT in (self._key, self._value) or topic in kafka_records.TOPICS:
            try:
                own = kafka_records.record(topic, offset, key, value)
            except Exception as error:  # one record must not make the page fail
                problem = _problem(error)
        parts: list[Decoded | None] = []
        for number, (data, name) in enumerate(((key, self._key), (value, self._value))):
            place = Place(topic, number == 0, headers)
            if data is None:
                parts.append(None)
            elif name == kafka_records.FORMAT or (name == AUTO and topic in kafka_records.TOPICS):
                found = None if own is None else own[number]
                parts.append(found or self.detected(data, place)._replace(problem=problem))
            else:
                parts.append(self.part(name, data, place))
        return DecodedRecord(topic, partition, offset, timestamp_ms, parts[0], parts[1], headers)

    def part(self, name: str, data: bytes, place: Place) -> Decoded:
        """Decode a key or value with the named decoder; if it fails, by detection without schemas, with a ``problem``.

        Raises: MissingPackageError.
        """
        if name == AUTO:
            return self.detected(data, place)
        try:
            if name in by_schema.BY_SCHEMA and self._registry is not None:
                return by_schema.decode(self._registry, data, place, by_schema.BY_SCHEMA[name])
            return _PLAIN[name](data)
        except MissingPackageError:
            raise
        except Exception as error:
            return self.detected(data, place, with_schema=False)._replace(problem=_problem(error))

    def detected(self, data: bytes, place: Place, *, with_schema: bool = True) -> Decoded:
        """Return bytes in the most precise format that they have: by a schema, JSON, text, MessagePack, hexadecimal.

        Numbers are not detected, since any bytes may be numbers.
        """
        problem = ""
        if self._registry is not None and with_schema and self._misses < MAX_MISSES and framed(data, place):
            try:
                found = by_schema.decode(self._registry, data, place)
                self._misses = 0
                return found
            except Exception as error:
                problem = _problem(error)
                self._misses += not isinstance(error, by_schema.NoResponseError)
        if data[:1] in (b"{", b"["):
            try:
                return plain.json_document(data)._replace(problem=problem)
            except UndecodableError:
                pass
        try:
            found = plain.text(data)
            if not any(c < " " and c not in "\n\t\r" for c in found.text):
                return found._replace(problem=problem)
        except UndecodableError:
            pass
        try:
            return plain.message_pack_container(data)._replace(problem=problem)
        except (UndecodableError, MissingPackageError):
            return plain.hexadecimal(data)._replace(problem=problem)


def _problem(error: Exception) -> str:
    """Return the message of an error, after the type of an unexpected error."""
    is_expected = isinstance(error, UndecodableError | MissingPackageError)
    return str(error) if is_expected else f"{type(error).__name__}: {error}"
