"""Write the rows of a batch on an executor: sorted Arrow batches become Parquet files in the table's store.

Each attempt of a task has its own file names, so the files of a failed attempt are never part of the table: the driver
commits the files that successful attempts return.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.tables.delta_table import EPOCH, HOUR_US, REJECTED, REQUEST_LOG, TIME, TOPIC, VIEWS, DataFile
from kbroker.spark.tables.table_place import TablePlace, write_bytes

#: Columns for the place of a row: hours since 1970, and the bucket. Files are written in this order.
EPOCH_HOUR, BUCKET = "_hour", "_bucket"
PREFIX, COMPACTED = "batch-", "compacted-"  # prefixes of the names of files
REJECTED_FILE = "path string, size_bytes bigint"
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 128 << 20
#: Files with fewer rows are compressed by snappy, because zstd needs more time to start a column than for its values.
#: They are a quarter larger, until they are compacted.
ZSTD_ROWS = 4_096
WRITTEN = "path string, date string, hour int, bucket int, rows bigint, size_bytes bigint, stats string"
_STATISTICS = {
    REQUEST_LOG: ("time", "sequence", "principal", "client_id", "api_key"),
    TOPIC: ("timestamp", "topic", "partition", "offset"),
    VIEWS: ("time", "view", "principal", "client_id"),
}
#: Columns of growing, mostly distinct integers, which take half the bytes when stored as differences.
_GROWING = {"time", "time_ms", "sequence", "timestamp", "offset"}
_MAX_TEXT = 128  # characters; a longer lowest or highest value is left out


def write_files(place: TablePlace, kind: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one file for each hour and bucket of rows sorted by them, and yield the files (WRITTEN).

    Args: `name` of the batch, in the names of its files.
    """
    files: list[dict[str, Any]] = []
    current: _File | None = None
    for batch in batches:
        for hour, bucket, part in _parts(batch):
            if current is None or current.place_of_rows != (hour, bucket):
                if current is not None:
                    files.append(current.close())
                current = _File(place, kind, f"{PREFIX}{name}-", hour, bucket)
            current.write(part)
    if current is not None:
        files.append(current.close())
    if files:
        kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
        schema = pa.schema([(name, kinds[kind]) for name, kind in (part.split() for part in WRITTEN.split(", "))])
        yield pa.RecordBatch.from_pylist(files, schema)


def write_table_file(place: TablePlace, kind: str, like: DataFile, rows: pa.Table, now_ms: int) -> DataFile:
    """Write rows into a new file of the hour and bucket of `like`. Args: `now_ms`: since 1970."""
    new = _File(place, kind, COMPACTED, like.end_us // HOUR_US - 1, like.bucket)
    at_once = ROW_GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)
    for batch in rows.to_batches(max_chunksize=max(1, min(ROW_GROUP_ROWS, at_once))):
        new.write(batch)
    return data_file(new.close(), kind, now_ms)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Cut a batch where hour or bucket changes, without those two columns."""
    if not batch.num_rows:
        return
    hours, buckets = (np.asarray(batch.column(name)) for name in (EPOCH_HOUR, BUCKET))
    rows = batch.drop_columns([EPOCH_HOUR, BUCKET])
    cuts = np.flatnonzero((np.diff(hours) != 0) | (np.diff(buckets) != 0)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(hours)], strict=True):
        yield int(hours[start]), int(buckets[start]), rows.slice(start, end - start)


class _File:
    """A Parquet file being written; rows are gathered until they make a row group."""

    def __init__(self, place: TablePlace, kind: str, name: str, hour: int, bucket: int) -> None:
        self.place_of_rows = (hour, bucket)
        self._place, self._kind = place, kind
        at = EPOCH + timedelta(hours=hour)
        self._where = {"date": at.date().isoformat(), "hour": at.hour, "bucket": bucket}
        folder = "/".join(f"{key}={value}" for key, value in self._where.items())
        self._path = f"{folder}/{name}{uuid.uuid4().hex[:16]}.parquet"
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._stream: Any = None
        self._writer: Any = None
        self._footer: list[Any] = []

    def write(self, part: pa.RecordBatch) -> None:
        self._waiting.append(part)
        self._rows += part.num_rows
        self._bytes += part.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._stream = self._place.output(self._path)
            kinds = dict(_leaves(rows.schema))
            growing = [path for path, kind in kinds.items() if _is_growing(path.rpartition(".")[2], kind)]
            self._writer = pq.ParquetWriter(
                self._stream,
                rows.schema,
                compression="zstd" if rows.num_rows >= ZSTD_ROWS else "snappy",
                use_dictionary=[path for path in kinds if path not in growing],
                column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
                metadata_collector=self._footer,
                store_schema=False,  # of Arrow, with the time zone of the session: files of two zones cannot be merged
            )
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> dict[str, Any]:
        """Close the file, and return its row of WRITTEN."""
        if self._waiting:
            self._flush()
        self._writer.close()
        size = self._stream.tell()  # words: ok
        self._stream.close()
        self._place.sync(self._path)
        footer = self._footer[0]
        return {
            "path": self._path,
            **self._where,
            "rows": footer.num_rows,
            "size_bytes": size,
            "stats": statistics(footer, self._kind),
        }


def _is_growing(name: str, kind: Any) -> bool:
    """Return whether a column is one of _GROWING; in the JSON of an archive, another type may have the same name."""
    return name in _GROWING and (pa.types.is_int64(kind) or pa.types.is_int32(kind) or pa.types.is_timestamp(kind))


def _leaves(fields: Iterable[Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names that the columns have in a Parquet file, and their types."""
    for one in fields:
        path, kind = f"{above}{one.name}", one.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, f"{path}.")
        else:
            yield path, kind


def statistics(footer: Any, kind: str) -> str:
    """Return the statistics by which readers of Delta skip a file: rows, and lowest and highest values of some columns.

    Args: `footer`: pyarrow's FileMetaData.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    places = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for name in _STATISTICS[kind]:
        if name not in places:
            continue
        found = [footer.row_group(group).column(places[name]).statistics for group in range(footer.num_row_groups)]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        known = [one for one in found if one.has_min_max]
        if len(known) == len([one for one in found if one.num_values]) and known:
            ends = min(one.min for one in known), max(one.max for one in known)
            if all(not isinstance(end, bytes) and (not isinstance(end, str) or len(end) <= _MAX_TEXT) for end in ends):
                low[name], high[name] = map(_plain, ends)
    return json.dumps({"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    stamp = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    return stamp.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def data_file(row: dict[str, Any], kind: str, modified_ms: int) -> DataFile:
    """Return the file of a row of WRITTEN. Args: `modified_ms`: its time, milliseconds since 1970."""
    known = json.loads(row["stats"])
    low, high = (known[name].get(TIME[kind]) for name in ("minValues", "maxValues"))
    return DataFile(
        row["path"], row["date"], row["hour"], row["bucket"], row["rows"], row["size_bytes"],
        _micros(low), _micros(high), row["stats"], modified_ms,
    )  # fmt: skip


def _micros(stamp: str | None) -> int | None:
    if stamp is None:
        return None
    at = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    return (at - EPOCH) // timedelta(microseconds=1)


def write_rejected(place: TablePlace, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rejected lines as JSON into one file, named by its batch, so that a repeated batch replaces it.

    Args: `batches` of one column of JSON texts. Yields: the file and its size (REJECTED_FILE).
    """
    size = 0
    path = f"{REJECTED}/{name}.jsonl"
    with place.output(path) as file:
        for batch in batches:
            content = "".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode()
            write_bytes(file, content)
            size += len(content)
    place.sync(path)
    yield pa.RecordBatch.from_pydict({"path": [path], "size_bytes": pa.array([size], pa.int64())})
