"""The latest records of the request log, from its topic or its newest file, limited in number and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.common.errors import KafkaError
from kbroker.common.request_log_names import JSON_SUFFIX, is_file_name
from kbroker.console.record_reader import read_records
from kbroker.console.site import Site

RECORDS = 5000  # of the topic's partitions together
STEP = 500
TAIL_BYTES = 4 << 20  # of a file
ARROW_BATCHES = 8  # of each partition; one holds many requests
_LARGEST = 1e15


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
            list(_arrow(values) if settings.is_arrow else _json(values)),
            f"the latest of the request log, topic {settings.topic}",
        )
    if settings.is_arrow:
        return Tail([], problem="arrow-files")
    return Tail(
        list(_json(_last_lines(Path(settings.folder)))), f"the latest of the request log, folder {settings.folder}"
    )


def _of_xray(site: Site) -> list[LoggedRequest]:
    """Return the slowest requests of the X-ray, which needs no request log."""
    found = site.broker.xray(limit=1000)
    principals = {one["connection"]: one for one in found["connections"]["shown"]}
    rows = []
    for one in found["requests"]["slowest"]:
        connection = principals.get(one["connection"], {})
        rows.append(
            LoggedRequest(
                found["time_ms"] - one["age_ms"],
                one["api"],
                one["client_id"] or "",
                connection.get("principal") or "",
                connection.get("address") or "",
                one["connection"] or "",
                queue_ms=one["request_queue_ms"],
                local_ms=one["local_ms"],
                remote_ms=one["remote_ms"],
                throttle_ms=one["throttle_ms"],
                response_queue_ms=one["response_queue_ms"],
                send_ms=one["send_ms"],
                request_bytes=one["request_bytes"],
                response_bytes=one["response_bytes"],
                error_code=one["error_code"] or 0,
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
    names = sorted((path for path in folder.iterdir() if is_file_name(path.name, JSON_SUFFIX)), reverse=True)
    if not names:
        return []
    with names[0].open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")
    return lines[1:-1] if size > TAIL_BYTES else lines[:-1]  # the first may be cut, the last is unfinished


def _json(values: Iterable[bytes]) -> Iterator[LoggedRequest]:
    for value in values:
        try:
            row = json.loads(value)
        except (ValueError, RecursionError):
            continue
        header = row.get("requestHeader") if isinstance(row, dict) else None
        if not isinstance(header, dict):  # a verdict without a request, a refusal, or no record of a log
            continue
        yield LoggedRequest(
            _time_ms(str(row.get("time", ""))),
            str(header.get("requestApiKeyName") or header.get("requestApiKey")),
            str(header.get("clientId") or ""),
            str(row.get("principal") or ""),
            str(row.get("address") or ""),
            str(row.get("connection") or ""),
            queue_ms=_number(row, "requestQueueTimeMs"),
            local_ms=_number(row, "localTimeMs"),
            remote_ms=_number(row, "remoteTimeMs"),
            throttle_ms=_number(row, "throttleTimeMs"),
            response_queue_ms=_number(row, "responseQueueTimeMs"),
            send_ms=_number(row, "sendTimeMs"),
            request_bytes=int(_number(row, "requestBytes")),
            response_bytes=int(_number(row, "responseBytes")),
            error_code=int(_number(row, "errorCode")),
        )


_ARROW_COLUMNS = (
    *("time", "api_name", "client_id", "principal", "address", "connection"),
    *("request_queue_time_us", "local_time_us", "remote_time_us", "response_queue_time_us", "send_time_us"),
    *("throttle_time_ms", "request_bytes", "response_bytes", "error_code"),
)


def _arrow(values: Iterable[bytes]) -> Iterator[LoggedRequest]:
    import pyarrow as pa

    for value in values:
        try:
            table = pa.ipc.open_stream(value).read_all().select(_ARROW_COLUMNS)
            table.validate(full=True)  # otherwise offsets beyond the data are followed
            rows = table.slice(max(0, table.num_rows - RECORDS // ARROW_BATCHES)).to_pylist()
        except (pa.ArrowException, KeyError, OSError, ValueError, OverflowError):
            continue
        for row in rows:
            if not isinstance(row["api_name"], str) or not isinstance(row["time"], datetime):
                continue
            yield LoggedRequest(
                row["time"].timestamp() * 1000,
                row["api_name"],
                str(row["client_id"] or ""),
                str(row["principal"] or ""),
                str(row["address"] or ""),
                str(row["connection"] or ""),
                queue_ms=_number(row, "request_queue_time_us") / 1000,
                local_ms=_number(row, "local_time_us") / 1000,
                remote_ms=_number(row, "remote_time_us") / 1000,
                throttle_ms=_number(row, "throttle_time_ms"),
                response_queue_ms=_number(row, "response_queue_time_us") / 1000,
                send_ms=_number(row, "send_time_us") / 1000,
                request_bytes=int(_number(row, "request_bytes")),
                response_bytes=int(_number(row, "response_bytes")),
                error_code=int(_number(row, "error_code")),
            )


def _number(row: Mapping[str, Any], name: str) -> float:
    """Return a number of a record; 0 if the value is not one that brokers write."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _LARGEST else 0.0


def _time_ms(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000
    except (ValueError, OverflowError):
        return -1.0
