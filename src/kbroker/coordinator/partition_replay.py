"""Replay of a partition of an internal topic in the order of its offsets: records, transactions and their end markers.

Threads: one at a time.
Source: ``CoordinatorLoaderImpl``, ``OffsetMetadataManager.replay``, ``replayEndTransactionMarker``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.common.errors import ProtocolError
from kbroker.coordinator.internal_topic import READ_BYTES, UnreadableError, read_to_end
from kbroker.protocol.records import RecordBatch, columns, iter_batches

_ABORT, _COMMIT = b"\0\0", b"\0\1"  # types of end markers, after the version in their keys

#: Offset of a record and its value; None: a tombstone.
Latest = tuple[int, bytes | None]


class PartitionReplay:
    """The last value of each key, and the values of open transactions.

    ``values``: by key. ``pending``: by producer id, then by key; a later tombstone removes a pending value too.
    The values of a transaction count from its commit marker on, unless the key was written again in between.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, Latest] = {}
        self.pending: dict[int, dict[bytes, tuple[int, bytes]]] = {}

    def read(self, log: Any, read_bytes: int = READ_BYTES) -> PartitionReplay:
        """Replay a whole partition, ``read_bytes`` at a time; return self. Raises: UnreadableError."""
        read_to_end(log, self.take, read_bytes)
        return self

    def take(self, data: bytes, offset: int) -> int:
        """Replay the batches from ``offset`` on; return the next offset to read. The last batch may be cut.

        Raises: UnreadableError: a batch is damaged.
        """
        next_offset = offset
        try:
            if not any(batch.producer_id >= 0 for batch in iter_batches(data, allow_truncated=True)):
                return self._take_plain(data, offset)
        except ProtocolError:
            pass  # a batch is damaged, or the batches together are too large: read them one by one
        try:
            for batch in iter_batches(data, allow_truncated=True):
                if batch.last_offset >= offset:
                    next_offset = max(offset, batch.base_offset)
                    self._take_batch(batch, offset)
                next_offset = batch.last_offset + 1
        except ProtocolError as error:
            raise UnreadableError(f"the batch at offset {next_offset} is damaged: {error}") from error
        return next_offset

    def _take_plain(self, data: bytes, offset: int) -> int:
        table = columns(data, min_offset=offset, allow_truncated=True)
        keys, values = table.keys, table.values
        for row, record_offset in enumerate(table.offsets):
            key = keys[row]
            if key is not None:
                self.put(key, record_offset, values[row])
        return table.next_offset

    def _take_batch(self, batch: RecordBatch, offset: int) -> None:
        rows = batch.records()  # even of a control batch: its bit is not trusted before the checksum is verified
        if batch.is_control:
            self._end(batch.producer_id, rows)
            return
        for record_offset, _, key, value, _ in rows:
            if key is None or record_offset < offset:
                continue
            if batch.producer_id >= 0 and value is not None:
                self.pending.setdefault(batch.producer_id, {})[key] = (record_offset, value)
            else:
                self.put(key, record_offset, value)

    def put(self, key: bytes, record_offset: int, value: bytes | None) -> None:
        """Replay a record that is in no transaction."""
        self.values[key] = (record_offset, value)
        if value is None and self.pending:
            for rows in self.pending.values():
                rows.pop(key, None)

    def _end(self, producer_id: int, rows: Sequence[tuple[int, int, bytes | None, bytes | None, object]]) -> None:
        for _, _, key, _, _ in rows:
            kind = (key or b"")[2:4]
            if kind not in (_ABORT, _COMMIT):
                continue
            ended = self.pending.pop(producer_id, {})
            if kind == _COMMIT:
                for name, latest in ended.items():
                    present = self.values.get(name)
                    if present is None or present[0] < latest[0]:
                        self.values[name] = latest
