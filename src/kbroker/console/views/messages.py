"""Messages of a partition."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kbroker.common.errors import KafkaError
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.console.record_reader import MOST, WHOLE, LogRecord, first_offset, read_records
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Download, Site, View, address
from kbroker.decoders.record_text import LIST_BYTES, NEEDED_BEHIND, WHOLE_BYTES, Shown, safe_text, shown
from kbroker.metadata.topics import TopicView

HEADER_NAME_CHARACTERS, HEADER_VALUE_BYTES = 200, 200
#: Limits for all headers of a record, in a list and alone: the header that exceeds it is the last.
LIST_HEADERS_CHARACTERS, WHOLE_HEADERS_CHARACTERS = 2000, 64 << 10


class ShownRecord(NamedTuple):
    """A record as the page shows it."""

    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: list[tuple[str, str]]
    more_headers: int


def messages(site: Site, query: Query) -> View:
    """Return records of one partition from an offset, from a time, or the latest."""
    view = _found(site, query)
    site.require(Operation.READ, ResourceType.TOPIC, view.name)
    log, number = _log(view, query)
    count = query.integer("count", 20, 1, MOST)
    offset = query.integer("offset", -1, -1, 2**63 - 1)
    time_ms = query.time_ms("time")
    problem = ""
    try:
        first = first_offset(log, offset=None if offset < 0 else offset, time_ms=time_ms, count=count)
        found = read_records(log, first, count, LIST_BYTES + NEEDED_BEHIND)
        problem = found.problem
    except (KafkaError, OSError) as error:  # retention may have removed a segment
        raise PageError(503, f"These records cannot be read: {error}. Try again.") from None
    start, end, behind = log.log_start_offset, log.high_watermark, found.next_offset
    here = {"topic": view.name, "partition": number, "count": count}
    values = {
        "topic": view,
        "partition": number,
        "count": count,
        "offset": "" if offset < 0 else offset,
        "time": query.text("time"),
        "records": [_shown_record(record) for record in found.records],
        "start": start,
        "end": end,
        "first": first,
        "problem": problem,
        "older": address("messages", **here, offset=max(start, first - count)) if first > start else None,
        "newer": address("messages", **here, offset=behind) if first < behind < end else None,
        "latest": address("messages", **here),
    }
    return View("Messages", "messages.html", values)


def _shown_record(record: LogRecord, is_alone: bool = False) -> ShownRecord:
    """Return a record as shown in a list, or, with more detail, alone on its page."""
    headers: list[tuple[str, str]] = []
    limit_bytes = WHOLE_BYTES if is_alone else LIST_BYTES
    left = WHOLE_HEADERS_CHARACTERS if is_alone else LIST_HEADERS_CHARACTERS
    for name, data in record.headers:
        if left <= 0:
            break
        text = "null" if data is None else shown(data, HEADER_VALUE_BYTES).text
        headers.append((_header_name(name), text))
        left -= len(headers[-1][0]) + len(text)
    more = record.header_count - len(headers)
    key = shown(record.key, limit_bytes, record.key_bytes)
    value = shown(record.value, limit_bytes, record.value_bytes)
    return ShownRecord(record.offset, record.timestamp_ms, key, value, headers, more)


def _header_name(name: bytes) -> str:
    text = name[: 4 * HEADER_NAME_CHARACTERS].decode("utf-8", "replace")[:HEADER_NAME_CHARACTERS]
    return safe_text(text)[:HEADER_NAME_CHARACTERS]


def message(site: Site, query: Query) -> View:
    """Return one record, with more of its key and value than in a list."""
    view = _found(site, query)
    site.require(Operation.READ, ResourceType.TOPIC, view.name)
    record, number = _record(view, query, WHOLE_BYTES + NEEDED_BEHIND)
    values = {"topic": view, "partition": number, "record": _shown_record(record, is_alone=True)}
    return View("Message", "message.html", values)


def value(site: Site, query: Query) -> Download:
    """Return the bytes of a record's key or value as a download."""
    view = _found(site, query)
    site.require(Operation.READ, ResourceType.TOPIC, view.name)
    record, number = _record(view, query, WHOLE)
    part = query.text("part", "value")
    if part not in ("key", "value"):
        raise PageError(400, f"part is {part[:40]!r}; expected key or value.")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", view.name)
    return Download(
        record.key or b"" if part == "key" else record.value or b"", f"{name}-{number}-{record.offset}.{part}"
    )


def _record(view: TopicView, query: Query, value_bytes: int) -> tuple[LogRecord, int]:
    log, number = _log(view, query)
    offset = query.integer("offset", -1, 0, 2**63 - 1)
    try:
        found = read_records(log, offset, 1, value_bytes)
    except (KafkaError, OSError) as error:
        raise PageError(404, f"The record at offset {offset:,} cannot be read: {error}.") from None
    if not found.records or found.records[0].offset != offset:
        why = found.problem or f"There is no record at offset {offset:,}: it was deleted, compacted, or is a marker."
        raise PageError(404, why)
    return found.records[0], number


def _found(site: Site, query: Query) -> TopicView:
    name = query.needed("topic")
    view = site.context.topics.get(name)
    if view is None:
        raise PageError(404, f"Topic {name[:249]!r} does not exist; it may have been deleted.")
    return view


def _log(view: TopicView, query: Query) -> tuple[Any, int]:
    number = query.integer("partition", 0, 0, 2**31 - 1)
    if number >= len(view.partitions):
        raise PageError(404, f"The topic has partitions 0 to {len(view.partitions) - 1}; there is no {number:,}.")
    log = view.partitions[number]
    if log is None:
        raise PageError(503, f"Partition {number} is offline: its log could not be opened. The broker's log says why.")
    return log, number
