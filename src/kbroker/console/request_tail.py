"""The latest records of the request log, from its topic or its newest file, limited in number and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.client.request_records import Row, arrow_records, parse_line
from kbroker.common.errors import KafkaError
from kbroker.common.request_log import COLUMNS
from kbroker.common.request_log_names import JSON_SUFFIX, is_file_name
from kbroker.console.record_reader import read_records
from kbroker.console.site import Site

RECORDS = 5000  # maximum number of records from all partitions of the topic
STEP = 500
TAIL_BYTES = 4 << 20  # maximum number of bytes read at the end of a file
ARROW_BATCHES = 8  # maximum number of batches of each partition; each contains many requests
#: Columns of the log in the order of a LoggedRequest's fields.
_TEXTS = ("client_id", "principal", "address", "connection")
_TIMES = (
    *("request_queue_time_us", "local_time_us", "remote_time_us", "throttle_time_ms"),
    *("response_queue_time_us", "send_time_us"),
)
_NUMBERS = ("request_bytes", "response_bytes", "error_code")
_NAMES = ("time", "api_key", "api_name", *_TEXTS, *_TIMES, *_NUMBERS)
_COLUMNS = [column for column in COLUMNS if column.name in _NAMES]


class LoggedRequest(NamedTuple):
    """A finished request; times in milliseconds, in the order in which they passed."""

    time_ms: float
    api: str
    client_id: str
    principal: str
    address: str
    connection: str
    queue_ms: float
    local_ms: float
    remote_ms: float
    throttle_ms: float
    response_queue_ms: float
    send_ms: float
    request_bytes: int
    response_bytes: int
    error_code: int

    @property
    def total_ms(self) -> float:
        """Time from the last byte of the request to that of the response, plus the throttle time of quotas."""
        return self.work_ms + self.remote_ms + self.throttle_ms

    @property
    def work_ms(self) -> float:
        """Time without intended waits: for records, a flush, or a quota."""
        return self.queue_ms + self.local_ms + self.response_queue_ms + self.send_ms


class Tail(NamedTuple):
    """Latest requests. ``problem``: reason for an empty list, for people."""

    requests: list[LoggedRequest]
    source: str = ""
    problem: str = ""


def latest_requests(site: Site) -> Tail:
    """Return the latest records of the request log. Holds no lock of it."""
    settings = site.broker.request_log.settings
    if not settings.is_on:
        return Tail(_of_xray(site), "the slowest of the last minutes, which the broker keeps at all times")
    if settings.topic:
        view = site.context.topics.get(settings.topic)
        logs = [log for log in (() if view is None else view.partitions) if log is not None]
        count = ARROW_BATCHES if settings.is_arrow else RECORDS // max(1, len(logs))
        values = (value for log in logs for value in _values(log, count))
        return Tail(
            list(_requests(values, settings.is_arrow)), f"the latest of the request log, topic {settings.topic}"
        )
    if settings.is_arrow:
        return Tail([], problem="arrow-files")
    return Tail(
        list(_requests(_last_lines(Path(settings.folder)), is_arrow=False)),
        f"the latest of the request log, folder {settings.folder}",
    )


def _of_xray(site: Site) -> list[LoggedRequest]:
    """Return the slowest requests of the X-ray, which needs no request log."""
    found = site.broker.xray(limit=1000)
    principals = {one["connection"]: one for one in found["connections"]["shown"]}
    rows = []
    for one in found["requests"]["slowest"]:
        connection = principals.get(one["connection"], {})
        times = ("request_queue_ms", "local_ms", "remote_ms", "throttle_ms", "response_queue_ms", "send_ms")
        rows.append(
            LoggedRequest._make(
                [
                    found["time_ms"] - one["age_ms"],
                    one["api"],
                    one["client_id"] or "",
                    connection.get("principal") or "",
                    connection.get("address") or "",
                    one["connection"] or "",
                    *(one[name] for name in (*times, "request_bytes", "response_bytes")),
                    one["error_code"] or 0,
                ]
            )
        )
    return rows


def _values(log: Any, count: int) -> Iterator[bytes]:
    end = log.high_watermark
    offset = max(log.log_start_offset, end - count)
    while offset < end:
        try:
            found = read_records(log, offset, STEP)
        except (KafkaError, OSError):  # removed by retention
            return
        yield from (record.value for record in found.records if record.value is not None)
        if found.next_offset <= offset:
            return
        offset = found.next_offset


def _last_lines(folder: Path) -> list[bytes]:
    try:
        names = sorted((path for path in folder.iterdir() if is_file_name(path.name, JSON_SUFFIX)), reverse=True)
        if not names:
            return []
        with names[0].open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).split(b"\n")
    except FileNotFoundError:  # a deleted folder or file is created again with the next records
        return []
    return lines[1:-1] if size > TAIL_BYTES else lines[:-1]  # the first may be cut, the last is unfinished


def _requests(values: Iterable[bytes], is_arrow: bool) -> Iterator[LoggedRequest]:
    """Yield the requests in values of the topic or lines of a file; skip refusals, and verdicts without a request."""
    for value in values:
        rows = arrow_records(value, _COLUMNS, RECORDS // ARROW_BATCHES) if is_arrow else [parse_line(value, _COLUMNS)]
        yield from (_request(row) for row in rows if row is not None and row["api_key"] is not None)


def _request(row: Row) -> LoggedRequest:
    times = (max(0, row[name] or 0) / (1 if name.endswith("_ms") else 1000) for name in _TIMES)
    texts = (row["api_name"] or str(row["api_key"]), *(row[name] or "" for name in _TEXTS))
    return LoggedRequest._make(((row["time"] or 0) / 1000, *texts, *times, *(row[name] or 0 for name in _NUMBERS)))
