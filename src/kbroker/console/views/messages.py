"""Messages of a topic: searched, followed, one alone, and saved as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from kbroker.client.cluster import TopicMetadata
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.console.record_download import KINDS, file_of
from kbroker.console.record_reader import MOST, WHOLE, LogRecord, first_offset, read_records
from kbroker.console.record_scan import DECODED_BYTES, Filters, Match, Scan, Step, decoded_record
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Download, Json, Site, View, address
from kbroker.console.views.topics import found_topic, topics
from kbroker.console.wire_partition import WirePartition, read_ahead, wire_partitions
from kbroker.decoders.by_schema import BY_SCHEMA
from kbroker.decoders.decoded import Decoded, MissingPackageError
from kbroker.decoders.decoders import AUTO, NAMES, Decoders
from kbroker.decoders.expression import Expression, ExpressionError
from kbroker.decoders.kafka_records import TOPICS as KAFKA_TOPICS
from kbroker.decoders.record_text import LIST_BYTES, WHOLE_BYTES, Shown, safe_text, shown, shown_text

HEADER_NAME_CHARACTERS, HEADER_VALUE_BYTES = 200, 200
#: Limits for all headers of a record, in a list and alone: the header that exceeds it is the last.
LIST_HEADERS_CHARACTERS, WHOLE_HEADERS_CHARACTERS = 2000, 64 << 10
MAX_PARTITIONS = 100  # partitions examined together; of a larger topic, the page shows only one
DOWNLOADED = 5000  # maximum number of records in a file
REGISTRY_WAIT_S = 3.0  # time that a page waits for the Schema Registry; few pages are made at a time
_KEPT = ("topic", "partition", "count", "key", "value", "header", "filter", "until", "kd", "vd")
_AS_THEY_ARE = ("json", "text", "hex")  # formats that need no decoder; hexadecimal is shown as a dump


class ShownRecord(NamedTuple):
    """A record as the page shows it. ``problems``: why a decoder was not used."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: list[tuple[str, str]]
    more_headers: int
    problems: list[str]
    href: str


class _Search(NamedTuple):
    """A search as the parameters describe it. ``errors``: sentences about partitions that cannot be read."""

    topic: TopicMetadata
    number: int | None
    partitions: Mapping[int, WirePartition]
    errors: list[str]
    filters: Filters
    decoders: Decoders | None
    scan: Scan


class _Result(NamedTuple):
    """A step, the positions of the steps before and after it (None: no records there), and its direction."""

    step: Step
    older: dict[int, int] | None
    newer: dict[int, int] | None
    is_forward: bool


def messages(site: Site, query: Query) -> View:
    """Return records of a topic from an offset, from a time, or the latest; with filters, the matches, in steps.

    Without a topic, return the topics to choose from.
    """
    if not query.text("topic"):
        return topics(site, query, "messages")
    count = query.integer("count", 20, 1, MOST)
    with _reading(site, query):
        search = _search(site, query)
        result = _looked(query, search, count)
    step, is_live = result.step, query.text("live") == "1"
    kept = {name: query.text(name) for name in _KEPT}
    place = {name: query.text(name) for name in ("offset", "time", "at", "before")}
    older = None if result.older is None else address("messages", **kept, before=_mark_text(result.older))
    newer = None if result.newer is None else address("messages", **kept, at=_mark_text(result.newer))
    marks = step.marks if result.is_forward else {p: one.high_watermark for p, one in search.partitions.items()}
    more = None
    if is_live:
        more = address("messages", **kept, live=1, at=_mark_text(marks))
    elif search.filters.are_set and not step.is_complete and len(step.found) < count:
        more = newer if result.is_forward else older
    values = {
        "topic": search.topic,
        "partition": "" if search.number is None else search.number,
        "has_all": len(search.topic.partitions) <= MAX_PARTITIONS,
        "count": count,
        "fields": query,
        "is_live": is_live,
        "records": [_shown_record(query, search, match) for match in step.found],
        "problem": " ".join([*search.errors, *step.problems]),
        "older": older,
        "newer": newer,
        "latest": address("messages", **kept),
        "more": more,
        "is_forward": result.is_forward,
        "looked": step.looked,
        "where": _where(search, result),
        "is_searching": search.filters.are_set or is_live,
        "start": min((one.log_start_offset for one in search.partitions.values()), default=0),
        "end": max((one.high_watermark for one in search.partitions.values()), default=0),
        "is_empty": all(one.log_start_offset >= one.high_watermark for one in search.partitions.values()),
        "files": {kind: address("records", **kept, **place, form=kind) for kind in KINDS},
        "downloaded": DOWNLOADED,
        "decoders": [name for name in NAMES if site.parts.registry is not None or name not in BY_SCHEMA],
    }
    return View("Messages", "messages.html", values)


def records(site: Site, query: Query) -> Download | Json:
    """Return the records of one step as a file; with ``part``, as text with the address of the next step."""
    form = query.choice("form", KINDS, "jsonl")
    with _reading(site, query):
        search = _search(site, query, WHOLE)
        result = _looked(query, search, DOWNLOADED)
    step, name = result.step, f"{_file_name(search.topic.name)}.{form}"
    data = file_of(form, search.topic.name, step.found)
    if not query.text("part"):
        return Download(data, name)
    kept = {field: query.text(field) for field in (*_KEPT, "form", "part")}
    more = None
    if not step.is_complete:
        more = address("records", **kept, **{"at" if result.is_forward else "before": _mark_text(step.marks)})
    return Json(
        {
            "text": data.decode("utf-8", "replace"),
            "records": len(step.found),
            "is_forward": result.is_forward,
            "where": _where(search, result),
            "more": more,
            "name": name,
        }
    )


def message(site: Site, query: Query) -> View:
    """Return one record, with more of its key and value than in a list."""
    with _reading(site, query):
        search = _search(site, query)
        record, number = _record(search, query)
    decoded = None
    if search.decoders is not None and max(record.key_bytes, record.value_bytes) <= DECODED_BYTES:
        decoded = decoded_record(search.decoders, search.topic.name, number, record)
    one = _shown_record(query, search, Match(number, record, decoded), is_alone=True)
    kept = {name: query.text(name) for name in ("kd", "vd") if query.text(name)}
    return View("Message", "message.html", {"topic": search.topic, "partition": number, "record": one, "kept": kept})


def value(site: Site, query: Query) -> Download:
    """Return the bytes of a record's key or value as a download."""
    with _reading(site, query):
        search = _search(site, query)
        record, number = _record(search, query)
    part = query.choice("part", ("key", "value"), "value")
    data = record.key if part == "key" else record.value
    return Download(data or b"", f"{_file_name(search.topic.name)}-{number}-{record.offset}.{part}")


# ---------------------------------------------------------------- the search


@contextmanager
def _reading(site: Site, query: Query) -> Iterator[None]:
    """Turn errors of the cluster, of filters and of decoders into pages."""
    try:
        with site.needs(Operation.READ, ResourceType.TOPIC, query.needed("topic")):
            yield
    except ExpressionError as error:
        raise PageError(400, f"The filter cannot be used: {error}.") from None
    except MissingPackageError as error:
        raise PageError(503, f"This broker cannot do that: {error}.") from None
    except KafkaError as error:
        if error.error is Errors.OFFSET_OUT_OF_RANGE:  # retention may have removed a segment
            raise PageError(503, f"These records cannot be read: {error}. Try again.") from None
        raise


def _search(site: Site, query: Query, value_bytes: int = DECODED_BYTES) -> _Search:
    """Return the search. Args: ``value_bytes``: as in Scan. Raises: PageError, KafkaError, ExpressionError."""
    topic = found_topic(site, query)
    total = len(topic.partitions)
    number: int | None = query.integer("partition", -1, 0, 2**31 - 1)
    if number == -1:
        number = None if total <= MAX_PARTITIONS and not query.text("offset") else 0
    if number is not None and number >= total:
        raise PageError(404, f"The topic has partitions 0 to {total - 1}; there is no {number:,}.")
    chosen = [one.partition for one in topic.partitions] if number is None else [number]
    found, errors = wire_partitions(site.cluster, topic.name, chosen)
    if not found:
        partition, error = next(iter(errors.items()))
        if error.error in (Errors.TOPIC_AUTHORIZATION_FAILED, Errors.UNKNOWN_TOPIC_OR_PARTITION):
            raise error
        raise PageError(503, f"Partition {partition} is offline: {error.message}")
    if all(one.log_start_offset >= one.high_watermark for one in found.values()):
        one = next(iter(found.values()))
        one.read(one.high_watermark, 1, min_one=False)  # the cluster checks the user's ACLs for an empty topic too
    filters = Filters(
        query.text("key"),
        query.text("value"),
        query.text("header"),
        Expression(query.text("filter")) if query.text("filter").strip() else None,
        query.time_ms("until"),
    )
    decoders = _decoders(site, query, topic.name)
    sentences = [f"Partition {p} is not shown: {error.message}" for p, error in errors.items()]
    several = partial(read_ahead, site.cluster, topic.name, found)
    scan = Scan(topic.name, found, site.clock, filters, decoders, several, value_bytes)
    return _Search(topic, number, found, sentences, filters, decoders, scan)


def _decoders(site: Site, query: Query, topic: str) -> Decoders | None:
    """Return the chosen decoders; None if the page needs none. Raises: PageError 400."""
    key, value_ = query.text("kd") or AUTO, query.text("vd") or AUTO
    registry = None if site.parts.registry is None else site.parts.registry.within(REGISTRY_WAIT_S)
    if key == value_ == AUTO and registry is None and topic not in KAFKA_TOPICS:
        return Decoders() if query.text("filter").strip() else None
    try:
        return Decoders(key, value_, registry)
    except ValueError as error:
        raise PageError(400, f"These decoders cannot be used: {error}.") from None


def _looked(query: Query, search: _Search, count: int) -> _Result:
    """Make one step from the place that the parameters name."""
    partitions, scan = search.partitions, search.scan
    before, at = _marks(query, "before", partitions), _marks(query, "at", partitions)
    offset = query.integer("offset", -1, -1, 2**63 - 1)
    time_ms = query.time_ms("time")
    if before is None and at is None and (offset >= 0 or time_ms is not None):
        wanted = None if offset < 0 else offset
        at = {p: first_offset(one, wanted, time_ms or 0) for p, one in partitions.items()}
    if at is not None:
        step = scan.forward(at, count)
        is_first = all(one <= partitions[p].log_start_offset for p, one in at.items())
        return _Result(step, None if is_first else at, None if step.is_complete else step.marks, is_forward=True)
    ends = before if before is not None else {p: one.high_watermark for p, one in partitions.items()}
    step = scan.backward(ends, count)
    is_last = all(one >= partitions[p].high_watermark for p, one in ends.items())
    return _Result(step, None if step.is_complete else step.marks, None if is_last else ends, is_forward=False)


def _marks(query: Query, name: str, partitions: Mapping[int, WirePartition]) -> dict[int, int] | None:
    """Return the positions of a parameter such as 0-120.1-7, or None without it; other partitions are at their start.

    Raises: PageError 400.
    """
    text = query.text(name)
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,10}-[0-9]{1,19}(\.[0-9]{1,10}-[0-9]{1,19}){0,99}", text) is None:
        raise PageError(400, f"{name} is {text[:40]!r}; expected PARTITION-OFFSET, separated by full stops.")
    found = {int(p): int(offset) for p, offset in (pair.split("-") for pair in text.split("."))}
    return {p: found.get(p, one.log_start_offset) for p, one in partitions.items()}


def _mark_text(marks: Mapping[int, int]) -> str:
    return ".".join(f"{p}-{offset}" for p, offset in sorted(marks.items()))


def _where(search: _Search, result: _Result) -> str:
    """Return how far the step has searched, as a part of a sentence."""
    marks, partitions = result.step.marks, search.partitions
    total = sum(one.high_watermark - one.log_start_offset for one in partitions.values())
    if result.is_forward:
        done = sum(max(0, marks[p] - one.log_start_offset) for p, one in partitions.items())
    else:
        done = sum(max(0, one.high_watermark - marks[p]) for p, one in partitions.items())
    if result.step.is_complete:
        return "up to the end" if result.is_forward else "back to the beginning"
    part = f"{100 * done / total:.0f} % of the topic" if total else "nothing"
    if search.number is not None:
        direction = "up to" if result.is_forward else "back to"
        return f"{direction} offset {marks[search.number]:,}, {part}"
    return f"{'from the beginning' if result.is_forward else 'from the end'} {part}"


def _record(search: _Search, query: Query) -> tuple[LogRecord, int]:
    """Return one record, whole. Raises: PageError 404; 400 without its offset."""
    query.needed("offset")
    offset = query.integer("offset", -1, 0, 2**63 - 1)
    number = search.number or 0
    try:
        found = read_records(search.partitions[number], offset, 1, WHOLE)
    except KafkaError as error:
        raise PageError(404, f"The record at offset {offset:,} cannot be read: {error}.") from None
    if not found.records or found.records[0].offset != offset:
        why = found.problem or f"There is no record at offset {offset:,}: it was deleted, compacted, or is a marker."
        raise PageError(404, why)
    return found.records[0], number


# ---------------------------------------------------------------- display


def _shown_record(query: Query, search: _Search, match: Match, is_alone: bool = False) -> ShownRecord:
    """Return a record as shown in a list, or, with more detail, alone on its page."""
    record, decoded = match.record, match.decoded
    limit_bytes = WHOLE_BYTES if is_alone else LIST_BYTES
    headers, more = _headers(record, is_alone)
    problems = []
    parts = []
    for name, chosen, data, size, one in (
        ("key", query.text("kd"), record.key, record.key_bytes, None if decoded is None else decoded.key),
        ("value", query.text("vd"), record.value, record.value_bytes, None if decoded is None else decoded.value),
    ):
        if one is not None and one.problem and (chosen not in ("", AUTO) or search.decoders is not None):
            problems.append(f"The {name} is shown as it is: {safe_text(one.problem)[:500]}")
        parts.append(_part(one, data, size, limit_bytes, is_chosen=chosen not in ("", AUTO)))
    kept = {name: query.text(name) for name in ("kd", "vd")}
    href = address("message", topic=search.topic.name, partition=match.partition, offset=record.offset, **kept)
    key, value_ = parts
    return ShownRecord(match.partition, record.offset, record.timestamp_ms, key, value_, headers, more, problems, href)


def _part(decoded: Decoded | None, data: bytes | None, size: int, limit_bytes: int, is_chosen: bool) -> Shown:
    if decoded is None or data is None or size > DECODED_BYTES or decoded.problem:
        return shown(data, limit_bytes, size)
    if decoded.format in _AS_THEY_ARE and not decoded.schema and not is_chosen:
        return shown(data, limit_bytes, size)
    kind = f"{decoded.format}, {safe_text(decoded.schema)[:200]}" if decoded.schema else decoded.format
    return shown_text(kind, decoded.text, size, limit_bytes)


def _headers(record: LogRecord, is_alone: bool) -> tuple[list[tuple[str, str]], int]:
    found: list[tuple[str, str]] = []
    left = WHOLE_HEADERS_CHARACTERS if is_alone else LIST_HEADERS_CHARACTERS
    for name, data in record.headers:
        if left <= 0:
            break
        text = "null" if data is None else shown(data, HEADER_VALUE_BYTES).text
        found.append((_header_name(name), text))
        left -= len(found[-1][0]) + len(text)
    return found, record.header_count - len(found)


def _header_name(name: bytes) -> str:
    text = name[: 4 * HEADER_NAME_CHARACTERS].decode("utf-8", "replace")[:HEADER_NAME_CHARACTERS]
    return safe_text(text)[:HEADER_NAME_CHARACTERS]


def _file_name(topic: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", topic)
