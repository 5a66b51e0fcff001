"""Conversion of a request log's Arrow batches from any version to the columns of this one, batch by batch.

Runs in Spark's Python workers; needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.tables import log_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_BATCH_BYTES = 256 << 20  # maximum size of a decompressed batch


def message_schema() -> StructType:
    """Return the schema of `decode_messages`: text if not Arrow, reason for a rejection, origin, flat columns."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

    return StructType(
        [
            StructField("text", StringType()),
            StructField("reason", StringType()),
            StructField("source", StringType()),
            StructField("position", LongType()),
            StructField("stamp", TimestampType()),
            *log_schema.spark_schema().fields,
        ]
    )


def decode_messages(batches: Iterable[Any]) -> Iterator[Any]:
    """Convert batches of (value, arrow, source, position, stamp) to those of `message_schema`.

    Values that are not Arrow pass through as text. An unreadable message becomes one row with the reason.
    """
    for batch in batches:
        is_arrow = batch["arrow"]
        if is_arrow.true_count < len(is_arrow):
            plain = batch if not is_arrow.true_count else batch.filter(pc.invert(is_arrow))
            yield _message(plain.num_rows, _text(plain["value"]), None, *_origin(plain))
        if is_arrow.true_count:
            for row in range(batch.num_rows):
                if is_arrow[row].as_py():
                    yield from _decode(batch.slice(row, 1))


def _decode(message: Any) -> Iterator[Any]:
    try:
        with pa.ipc.open_stream(message["value"][0].as_buffer()) as stream:
            tables = []
            for batch in stream:
                batch.validate(full=True)  # untrusted input: offsets must be within the data, even for `nbytes`
                if batch.nbytes > MAX_BATCH_BYTES:
                    raise pa.ArrowInvalid(f"{batch.nbytes} bytes in one batch")
                tables.append(conform(batch))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"no Arrow stream of this log: {' '.join(str(error).split())[:200]}"
        yield _message(1, None, reason, *_origin(message))
        return
    for columns in tables:
        count = len(columns[0])
        origin = [pa.repeat(value[0], count) for value in _origin(message)]
        yield _message(count, None, None, *origin, columns=columns)


def _origin(batch: Any) -> list[Any]:
    return [batch["source"], batch["position"], batch["stamp"]]


def _text(value: Any) -> Any:
    """Return bytes as a string without validation: Spark's JSON parser handles invalid UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(value), value.buffers(), value.null_count, value.offset)


def _message(
    count: int, text: Any, reason: str | None, *origin: Any, columns: list[Any] | None = None
) -> pa.RecordBatch:
    schema = log_schema.arrow_schema()
    texts = pa.nulls(count, pa.string()) if text is None else text
    reasons = pa.nulls(count, pa.string()) if reason is None else pa.repeat(reason, count)
    flat = [pa.nulls(count, field.type) for field in schema] if columns is None else columns
    names = ["text", "reason", "source", "position", "stamp", *schema.names]
    return pa.RecordBatch.from_arrays([texts, reasons, *origin, *flat], names)


def conform(batch: pa.RecordBatch) -> list[Any]:
    """Return the columns of this version: those that `batch` lacks are null, unknown ones are left out.

    Raises: pyarrow.ArrowInvalid for a column whose values cannot be converted.
    """
    found = dict(zip(batch.schema.names, batch.columns, strict=True))  # a name may occur twice
    if not found.keys() & set(log_schema.names()):
        raise pa.ArrowInvalid("none of its columns is one of a request log")
    return [fit(found.get(field.name), field.type, batch.num_rows) for field in log_schema.arrow_schema()]


def fit(values: Any, wanted: Any, count: int) -> Any:
    """Convert a column to another type: missing fields are null, unknown ones are left out; None: all are null."""
    if values is None:
        return pa.nulls(count, wanted)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == wanted:
        return values
    if pa.types.is_list(wanted) and (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        items = values.flatten()  # without the items of null lists and those outside the slice
        offsets = pa.array([0], pa.int32())
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        offsets = pa.concat_arrays([offsets, pc.cumulative_sum(lengths).cast(pa.int32())])
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(offsets, fit(items, wanted.value_type, len(items)), mask=mask)
    if pa.types.is_struct(wanted) and pa.types.is_struct(values.type):
        names = {field.name for field in values.type}
        parts = [fit(pc.struct_field(values, f.name) if f.name in names else None, f.type, len(values)) for f in wanted]
        missing = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    return values.cast(wanted)
