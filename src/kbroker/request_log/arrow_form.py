"""Columns of records as Arrow IPC: a stream per file, one Kafka record per batch. Needs pyarrow (kbroker[arrow])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kbroker.common.errors import Errors
from kbroker.common.request_log import arrow_schema
from kbroker.common.request_log_names import ARROW_END
from kbroker.protocol.records import Record, build_batch
from kbroker.request_log._arrow_columns import ArrowColumns

SET_BYTES = 512 * 1024  # limit for a batch before compression: below message.max.bytes
HEADERS = (("format", b"arrow"),)


class ArrowForm:
    """Collector of records in columns, which returns them as Arrow IPC messages.

    Args: ``partitions``: the topic's, 0 for none; ``compression``: of the batches, none or lz4; ``wants_lines``:
    whether there are files.
    Threads: one at a time.
    """

    def __init__(
        self, broker: int, api_names: Mapping[int, str], *, partitions: int, compression: str, wants_lines: bool
    ) -> None:
        self.columns = ArrowColumns(broker, dict(api_names), sets=max(partitions, 1))
        self.budget_bytes = SET_BYTES
        self.schema = arrow_schema()
        self.begin: bytes = self.schema.serialize().to_pybytes()
        self._options = pa.ipc.IpcWriteOptions(compression="lz4" if compression == "lz4" else None)
        self._has_topic = partitions > 0
        self._wants_lines = wants_lines
        self._made: list[tuple[int, int, int, bytes]] = []  # for the topic: partition, rows, time in ms, batch

    @property
    def line_count(self) -> int:
        """Number of rows that ``take_lines`` would return."""
        return self.columns.row_count if self._wants_lines else 0

    @property
    def lost(self) -> int:
        """Number of rows lost because memory was exhausted."""
        return self.columns.lost

    def take_lines(self) -> bytes:
        """Return the batches since the last call, which follow ``begin`` in a stream."""
        return b"".join(batch for _, _, _, batch in self._take())

    def append_to(self, logs: Sequence[Any]) -> tuple[int, int, str | None]:
        """Append each batch as one record; return (bytes written, rows not written, the reason or None)."""
        if not self._wants_lines:
            self._take()
        made, self._made = self._made, []
        written = unwritten = 0
        why = None
        for number, rows, time_ms, batch in made:
            value = self.begin + batch + ARROW_END
            data = build_batch([Record(None, value, time_ms, HEADERS)])
            log = logs[number % len(logs)] if logs else None  # created again, the topic may have fewer partitions
            try:
                error = "the partition cannot be used" if log is None else _append(log, data)
            except ValueError as closed:
                error = str(closed)
            if error is None:
                written += len(data)
            else:
                unwritten, why = unwritten + rows, error
        return written, unwritten, why

    def _take(self) -> list[tuple[int, int, int, bytes]]:
        found = []
        for number in range(self.columns.set_count):
            rows, time_ms, buffers = self.columns.take_set(number)
            if rows:
                found.append((number, rows, time_ms, self._message(buffers)))
        if self._has_topic:
            self._made += found
        return found

    def _message(self, buffers: Sequence[Any]) -> bytes:
        """Return a record batch as an encapsulated IPC message."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=self._options) as stream:
            stream.write_batch(self._batch(buffers))
        whole: bytes = sink.getvalue().to_pybytes()
        return whole[len(self.begin) : -len(ARROW_END)]

    def _batch(self, buffers: Sequence[Any]) -> Any:
        of_lists = iter(buffers[len(self.schema) :])
        arrays = []
        for field, made in zip(self.schema, buffers, strict=False):
            if not pa.types.is_list(field.type):
                arrays.append(self._array(field.type, made))
                continue
            struct = field.type.value_type
            children = [self._array(child.type, next(of_lists)) for child in struct]
            length, nulls, valid, offsets, _ = made
            values = pa.StructArray.from_arrays(children, fields=list(struct))
            parts = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets)]
            arrays.append(pa.Array.from_buffers(field.type, length, parts, nulls, children=[values]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @staticmethod
    def _array(kind: Any, made: tuple[int, int, bytes | None, bytes | None, bytes | None]) -> Any:
        length, nulls, valid, offsets, values = made
        buffers = [None if valid is None else pa.py_buffer(valid)]
        if offsets is not None:
            buffers.append(pa.py_buffer(offsets))
        buffers.append(pa.py_buffer(values))
        return pa.Array.from_buffers(kind, length, buffers, nulls)


def _append(log: Any, data: bytes) -> str | None:
    info = log.append(data, acks=-1, is_client=False)
    return f"{info.message} ({Errors.of(info.error).name})" if info.error else None
