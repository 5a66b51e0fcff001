"""The form that produces records to a topic."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.client.producer import Producer
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.common.units import counted, rounded_bytes
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed
from kbroker.console.requests import Fields, PageError, Query
from kbroker.console.site import Site, View, address
from kbroker.console.views.messages import REGISTRY_WAIT_S
from kbroker.console.views.topics import found_topic
from kbroker.decoders.by_schema import BY_SCHEMA
from kbroker.decoders.decoded import MissingPackageError, Place, UnencodableError
from kbroker.decoders.encoders import NAMES, Encoders

MAX_REPEAT, MAX_HEADERS, MAX_RECORDS = 1000, 50, 10_000
MAX_BYTES = 4 << 20  # maximum size of all records of one form
_SHOWN = 60  # characters of a key or value in the difference


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None


def form(site: Site, query: Query) -> View:
    """Return the form for a topic."""
    topic = found_topic(site, query)
    encodings = [name for name in NAMES if site.parts.registry is not None or name not in BY_SCHEMA]
    values = {"topic": topic, "encodings": encodings, "fields": Fields(query.values)}
    return View("Produce", "produce.html", values, entry="topics")


def produce(site: Site, form: Query) -> Change:
    """Return the change that produces the records of a form. Raises: PageError 400."""
    topic = found_topic(site, form)
    total = len(topic.partitions)
    number = form.integer("partition", -1, 0, total - 1)
    partition = None if number < 0 else number
    repeat = form.integer("repeat", 1, 1, MAX_REPEAT)
    records = _records(site, form)
    headers = _headers(form.text("headers"))
    count = repeat * len(records)
    if count > MAX_RECORDS:
        raise PageError(400, f"These are {count:,} records; expected at most {MAX_RECORDS:,}.")
    header_size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    size = count * header_size + repeat * sum(len(one.key or b"") + len(one.value or b"") for one in records)
    if size > MAX_BYTES:
        raise PageError(400, f"These records have {rounded_bytes(size)}; expected at most {rounded_bytes(MAX_BYTES)}.")
    lines = [
        Difference("records", None, f"{count:,}"),
        Difference("partition", None, str(partition) if partition is not None else "by key, else the next one"),
        Difference("key", None, _shown(records[0].key), is_private=True),
        Difference("value" if len(records) == 1 else "first value", None, _shown(records[0].value), is_private=True),
        *(Difference(f"header {name}", None, _shown(value), is_private=True) for name, value in headers),
        Difference("bytes of keys, values and headers", None, f"{size:,}"),
    ]

    def apply() -> None:
        with Producer(site.cluster, wall_clock=lambda: site.clock.wall_ms() / 1000) as producer:
            for one in records * repeat:
                producer.send(topic.name, one.value, one.key, partition=partition, headers=headers)

    title = f"Produce {counted(count, 'record')} to {topic.name}"
    page, back = address("messages", topic=topic.name, partition=partition), address("produce", topic=topic.name)
    needed = Needed(Operation.WRITE, ResourceType.TOPIC, topic.name)
    return Change(title, lines, apply, page, state=str(topic.topic_id), back=back, needs=needed)


def _records(site: Site, form: Query) -> list[_Record]:
    """Return the records, each once. Raises: PageError 400."""
    registry = None if site.parts.registry is None else site.parts.registry.within(REGISTRY_WAIT_S)
    encoders = Encoders(registry)

    def encoded(part: str, text: str) -> bytes:
        try:
            place = Place(form.needed("topic"), part == "key")
            return encoders.encode(form.text(f"{part}_as") or "text", text, place)
        except (UnencodableError, MissingPackageError) as error:
            raise PageError(400, f"The {part}: {str(error).rstrip('.')}.") from None

    is_null = {part: form.text(f"{part}_null") == "1" for part in ("key", "value")}
    for part in is_null:
        if is_null[part] and form.text(part):
            raise PageError(400, f"The {part} has text, and null is checked; expected one of them.")
    key = None if is_null["key"] else encoded("key", form.text("key"))
    if is_null["value"]:
        return [_Record(key, None)]
    text = form.text("value").replace("\r\n", "\n")  # browsers send line ends in this form
    if form.text("lines") != "1":
        return [_Record(key, encoded("value", text))]
    lines = [line for line in text.split("\n") if line]
    if not lines:
        raise PageError(400, "The value has no lines that could be records.")
    return [_Record(key, encoded("value", line)) for line in lines]


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """Return the headers of lines NAME=VALUE; a line without = has a null value. Raises: PageError 400."""
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            found.append((name.strip(), value.encode() if equals else None))
    if len(found) > MAX_HEADERS:
        raise PageError(400, f"Expected at most {MAX_HEADERS} headers, got {len(found)}.")
    return found


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return "null"
    text = data.decode("utf-8", "backslashreplace")
    return f"{text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''} ({len(data):,} bytes)"
