"""Read, follow and filter records of a request log, from its topic or its files. Format: docs/request-log.md.

A record is a dict by the names of `kbroker.common.request_log.COLUMNS`, from JSON and from Arrow; ``time`` is
microseconds since 1970, and values that do not apply are None.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kbroker.client.admin import EARLIEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.client.record_range import RecordRange
from kbroker.common.errors import Errors, KafkaError, UserError
from kbroker.common.request_log import BOOL, COLUMNS, FLOAT64, LIST, STRING, VERSION, VERSION_KEY, Column

Row = dict[str, Any]
FORMAT_HEADER = "format"
READ_BYTES = 1 << 20
LONGEST_LINE = 1 << 20  # bytes; a longer line is not a record
JSON_FILES, ARROW_FILES = "requests-*.jsonl", "requests-*.arrows"
_PATHS = {column.name: column.json.split(".") for column in COLUMNS}


class RequestLogError(UserError):
    """Failure to read a request log; the message is one line."""


# ---------------------------------------------------------------- one record


def row_of(document: Mapping[str, Any], columns: Sequence[Column] = COLUMNS) -> Row:
    """Return the record of a JSON object."""
    return {column.name: _value(column, document) for column in columns}


def _value(column: Column, document: Mapping[str, Any]) -> Any:
    found: Any = document
    for part in _PATHS[column.name]:
        found = found.get(part) if isinstance(found, dict) else None
    if found is None:
        return None
    if column.type == LIST:
        return [{field.name: element.get(field.json) for field in column.fields} for element in found]
    if column.name == "time":
        return _microseconds(found)
    is_time = column.name.endswith("_time_us") and isinstance(found, int | float)  # 1000 * str would repeat it
    return round(found * 1000) if is_time else found


def _microseconds(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if not 1970 < moment.year < 9999:
        raise ValueError(f"expected a time of a request, got {text!r}")
    return int(moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()) * 1_000_000 + moment.microsecond


def document_of(row: Row) -> dict[str, Any]:
    """Return a record as the JSON object of the log."""
    document: dict[str, Any] = {VERSION_KEY: VERSION}
    for column in COLUMNS:
        value = row.get(column.name)
        if value is None or value == []:
            continue
        if column.type == LIST:
            value = [{field.json: element.get(field.name) for field in column.fields} for element in value]
        elif column.name == "time":
            value = datetime.fromtimestamp(value / 1e6, timezone.utc).isoformat(timespec="microseconds")
        elif column.name.endswith("_time_us"):
            value = value / 1000
        *parents, name = column.json.split(".")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return document


def parse_line(line: bytes, columns: Sequence[Column] = COLUMNS) -> Row | None:
    """Parse a line of a file or a value of the topic; None if it is not a record, such as an incomplete line."""
    try:
        document = json.loads(line)
        row = row_of(document, columns) if isinstance(document, dict) and "time" in document else None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return row if row is not None and _is_record(row, columns) else None


def _is_record(row: Row, columns: Sequence[Column]) -> bool:
    """Return whether each value has its column's type: any client may write to the topic."""
    return all(_fits(column, row[column.name]) for column in columns)


def _fits(column: Column, value: Any) -> bool:
    if value is None:
        return True
    if column.type == LIST:
        return isinstance(value, list) and all(
            _fits(field, one[field.name]) for one in value for field in column.fields
        )
    if column.type in (STRING, BOOL):
        return isinstance(value, str if column.type == STRING else bool)
    return isinstance(value, int | float if column.type == FLOAT64 else int) and abs(value) < 1 << 63


def arrow_records(value: bytes, columns: Sequence[Column] = COLUMNS, most: int = 1 << 62) -> list[Row]:
    """Return the last ``most`` records in a value of the topic; none if it is not an Arrow stream of records."""
    try:
        table = _pyarrow().ipc.open_stream(value).read_all()
        return _records_of(table.slice(max(0, table.num_rows - most)), columns)
    except _damage():
        return []


def _records_of(table: Any, columns: Sequence[Column] = COLUMNS) -> list[Row]:
    """Return the records of an Arrow table, or of one batch. Raises: one of `_damage` if it lacks records."""
    table.validate(full=True)  # otherwise offsets beyond the data would be followed
    rows = []
    for one in table.select([column.name for column in columns if column.name in table.schema.names]).to_pylist():
        moment = one["time"]
        one["time"] = None if moment is None else int(moment.timestamp()) * 1_000_000 + moment.microsecond
        row = {column.name: one.get(column.name) for column in columns}
        if _is_record(row, columns):
            rows.append(row)
    return rows


def _damage() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading raises for data that no broker wrote."""
    return _pyarrow().ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise RequestLogError("this log is Arrow: pip install 'kbroker[arrow]'") from None
    return pyarrow


# ---------------------------------------------------------------- filters


@dataclass(frozen=True, slots=True)
class Filter:
    """Condition for records; fields that are None or False do not filter. ``apis``: names in any spelling."""

    clients: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    slower_than_ms: float | None = None
    throttled: bool = False

    def takes(self, row: Row) -> bool:
        """Return whether a record matches."""
        if self.clients and row["client_id"] not in self.clients:
            return False
        if self.apis and plain_name(row["api_name"] or "") not in self.apis:
            return False
        if self.slower_than_ms is not None and (row["total_time_us"] or 0) <= self.slower_than_ms * 1000:
            return False
        return not self.throttled or bool(row["throttle_time_ms"] or row["verdicts"])


def plain_name(name: str) -> str:
    """Return the normalized name of an API: the same for API_VERSIONS, ApiVersions and api-versions."""
    return name.replace("_", "").replace("-", "").lower()


# ---------------------------------------------------------------- the topic


def topic_rows(cluster: Cluster, topic: str, back: int, follow: bool) -> Iterator[list[Row]]:
    """Yield records of the log's topic in order of arrival, from at most ``back`` records before each partition's end.

    The first empty list is at the initial end, where the iteration ends without ``follow``. Further empty lists mean
    that no record arrived for half a second.
    Raises: RequestLogError if the topic does not exist; KafkaError, OFFSET_OUT_OF_RANGE if it is created again
        meanwhile; BrokerConnectionError.
    """
    try:
        partitions = [(topic, p.partition) for p in cluster.topic(topic).partitions]
    except KafkaError as error:
        if error.error is not Errors.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise RequestLogError(f"topic {topic} does not exist: kbroker.request.log.topic sets it") from None
    admin = Admin(cluster)
    starts, ends = admin.offsets_at(partitions, EARLIEST), admin.offsets_at(partitions)
    positions = {place: max(starts[place], end - back) for place, end in ends.items()}
    existing = RecordRange(Consumer(cluster, positions, reset=EARLIEST), ends)
    while not existing.is_ended:
        rows = _rows_of_records(existing.poll())
        if rows:
            yield rows
    yield []
    consumer = Consumer(cluster, ends, max_wait_ms=500, reset=EARLIEST)
    while follow:
        yield _rows_of_records(consumer.poll())


def _rows_of_records(records: Iterable[Record]) -> list[Row]:
    return [row for one in records for row in _rows_of(one.value or b"", dict(one.headers).get(FORMAT_HEADER))]


def _rows_of(value: bytes, form: bytes | None) -> Iterator[Row]:
    if form == b"arrow":
        yield from arrow_records(value)
        return
    row = parse_line(value)
    if row is not None:
        yield row


# ---------------------------------------------------------------- files


class _File:
    """A file of the log that may still grow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_arrow = path.suffix == ".arrows"
        self._at = 0
        self._rest = b""
        self._batches = 0

    def rows(self) -> Iterator[Row]:
        """Yield the records that were written since the last call."""
        if self._is_arrow:
            yield from self._new_batches()
            return
        with self.path.open("rb") as file:
            if self._at:  # a pipe has no positions
                file.seek(self._at)
            while data := file.read(READ_BYTES):
                self._at += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                if len(self._rest) > LONGEST_LINE:
                    self._rest = b""
                for line in lines:
                    row = parse_line(line)
                    if row is not None:
                        yield row

    def _new_batches(self) -> Iterator[Row]:
        pyarrow = _pyarrow()
        if self.path.stat().st_size <= self._at:
            return
        self._at = self.path.stat().st_size
        with self.path.open("rb") as file:
            try:
                for number, batch in enumerate(pyarrow.ipc.open_stream(file)):
                    if number >= self._batches:
                        self._batches = number + 1
                        rows: list[Row] = []
                        with contextlib.suppress(*_damage()):
                            rows = _records_of(batch)
                        yield from rows
            except _damage():  # a partially written batch, or no Arrow file
                return


def file_rows(paths: Sequence[Path], follow: bool, wait: Callable[[float], None]) -> Iterator[list[Row]]:
    """Yield the records of files, and of the files in folders, by the names of the files, which contain the time.

    An empty list means that all records are read. With ``follow``, the files are read again every half
    second (``wait``), for new records and new files.
    Raises: RequestLogError for a path that does not exist, or a folder without a log.
    """
    files: dict[Path, _File] = {}
    is_first = True
    while True:
        for path in _files_of(paths, is_first, follow):
            if path not in files:
                files[path] = _File(path)
        is_first = False
        for path in sorted(files, key=lambda p: p.name):
            try:
                for row in files[path].rows():
                    yield [row]
            except FileNotFoundError:  # removed by log rotation
                del files[path]
        yield []
        if not follow:
            return
        wait(0.5)


def _files_of(paths: Sequence[Path], is_first: bool, follow: bool) -> list[Path]:
    """Return the log files. Args: ``is_first``: each path must exist; ``follow``: a folder may be empty.

    Raises: RequestLogError.
    """
    found = []
    for path in paths:
        if path.is_dir():
            inside = [*path.glob(JSON_FILES), *path.glob(ARROW_FILES)]
            if not inside and is_first and not follow:
                raise RequestLogError(
                    f"{path}: expected files of a request log (requests-*.jsonl, requests-*.arrows), found none"
                )
            found += inside
        elif path.exists():
            found.append(path)
        elif is_first:
            raise RequestLogError(f"{path}: no such file or folder")
    return found
