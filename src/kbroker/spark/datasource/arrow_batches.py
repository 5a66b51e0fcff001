"""Make Arrow record batches of the source's columns around the buffers of the native decoder, without a copy."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kbroker.protocol import _columns as native
from kbroker.protocol._columns import ArrowColumns

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}
#: Columns of the native decoder, in the order of its result.
NATIVE = {
    "offset": native.OFFSET,
    "timestamp": native.TIMESTAMP,
    "timestampType": native.TIMESTAMP_TYPE,
    "key": native.KEY,
    "value": native.VALUE,
    "headers": native.HEADERS,
}


class BatchBuilder:
    """A builder of Arrow batches from the records of one partition.

    Args:
        columns: names, in the order of the schema.
        topic, partition: values of the columns of those names.

    Threads: one at a time.
    """

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self.gathered = ArrowColumns(sum(NATIVE.get(name, 0) for name in columns))
        self.schema = pa.schema([pa.field(name, TYPES[name]) for name in columns])
        self._columns = tuple(columns)
        name = topic.encode()
        # not `pa.scalar`, which imports pandas: 0.2 s in a new worker, and more garbage collection after each task
        self._constants = {
            "topic": _binary(TYPES["topic"], 1, (0, None, struct.pack("=ii", 0, len(name)), name))[0],
            "partition": _array("partition", 1, struct.pack("=i", partition))[0],
        }
        self._repeated: dict[str, Any] = {}

    def take(self) -> Any:
        """Return the gathered records as a `pyarrow.RecordBatch`, and begin the next batch."""
        rows, *buffers = self.gathered.take()
        made = dict(zip(NATIVE, buffers, strict=True))
        arrays = [
            self._repeat(name, rows) if name in self._constants else _array(name, rows, made[name])
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _repeat(self, name: str, rows: int) -> Any:
        """Return an array with one value in all rows: a slice of the largest array made so far."""
        kept = self._repeated.get(name)
        if kept is None or len(kept) < rows:
            kept = self._repeated[name] = pa.repeat(self._constants[name], rows)
        return kept.slice(0, rows)


def _array(name: str, rows: int, buffers: Any) -> Any:
    if name == "headers":
        nulls, bitmap, ends, count, keys, values = buffers
        children = [_binary(pa.string(), count, keys), _binary(pa.binary(), count, values)]
        elements = pa.Array.from_buffers(HEADER, count, [None], 0, children=children)
        return pa.Array.from_buffers(TYPES[name], rows, [_buffer(bitmap), _buffer(ends)], nulls, children=[elements])
    if name in ("key", "value"):
        return _binary(TYPES[name], rows, buffers)
    return pa.Array.from_buffers(TYPES[name], rows, [None, _buffer(buffers)], 0)


def _binary(kind: Any, rows: int, buffers: Any) -> Any:
    nulls, bitmap, ends, data = buffers
    return pa.Array.from_buffers(kind, rows, [_buffer(bitmap), _buffer(ends), _buffer(data)], nulls)


def _buffer(view: memoryview | bytes | None) -> Any:
    return None if view is None else pa.py_buffer(view)
