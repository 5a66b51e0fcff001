"""Pass Arrow batches of a query to the native builder of record batches as buffers, without a copy."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kbroker.protocol._arrow_rows import ArrowRows
from kbroker.spark.datasource.arrow_batches import TYPES

HEADERS = TYPES["headers"]


def rows_of(batch: Any) -> ArrowRows:
    """Return the columns key, value, partition and headers of a `pyarrow.RecordBatch`; missing ones are null.

    Raises: pyarrow.ArrowInvalid for a column that cannot be cast.
    """
    names = batch.schema.names

    def column(name: str) -> Any:
        return batch.column(names.index(name)) if name in names else None

    key, value, partition, headers = map(column, ("key", "value", "partition", "headers"))
    return ArrowRows(
        batch.num_rows,
        None if key is None else _strings(key),
        None if value is None else _strings(value),
        None if partition is None else _numbers(partition),
        None if headers is None else _headers(headers),
    )


def by_topic(batch: Any) -> list[tuple[str | None, Any]]:
    """Return pairs of a topic and the batch of its rows in their order; the topic is None where the column is null."""
    import pyarrow.compute as pc

    topics = batch.column(batch.schema.names.index("topic"))
    found = pc.unique(topics).to_pylist()
    if len(found) == 1:
        return [(found[0], batch)]
    return [(one, batch.filter(topics.is_null() if one is None else pc.equal(topics, one))) for one in found]


def _strings(array: Any) -> tuple[int, Any, Any, Any]:
    if array.type not in (pa.binary(), pa.string()):
        array = array.cast(pa.binary())
    valid, ends, data = array.buffers()
    return array.offset, valid, ends or b"", data or b""


def _numbers(array: Any) -> tuple[int, Any, Any]:
    array = array.cast(pa.int32())
    valid, values = array.buffers()
    return array.offset, valid, values or b""


def _headers(array: Any) -> tuple[Any, ...]:
    if array.type != HEADERS:
        array = array.cast(HEADERS)
    valid, ends = array.buffers()[:2]
    structs = array.values  # the whole array: even a slice's offsets count from its beginning
    struct_valid = structs.buffers()[0]
    keys, values = (_strings(structs.field(name)) for name in ("key", "value"))  # which apply the structs' offset
    return array.offset, valid, ends or b"", len(structs), structs.offset, struct_valid, keys, values
