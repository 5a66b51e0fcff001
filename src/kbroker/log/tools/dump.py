"""Dump of the files of a partition's folder, like Kafka's ``DumpLogSegments``.

Files of a running broker may be read; the end of an active segment can then appear torn.
"""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kbroker._core.codec.crc32c import crc32c
from kbroker.common.errors import KafkaError, UserError
from kbroker.log import checkpoints
from kbroker.log.tools.batch_file import Batch, BatchFile, DamagedBatch
from kbroker.protocol._records import batch_at
from kbroker.protocol.control_types import ABORT, COMMIT, VALUE_TABLES

Row = dict[str, Any]
#: Returns key and payload of a record from its offset, key and value.
Decode = Callable[[int, bytes | None, bytes | None], Row]

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_STATE_FILE_MAX_BYTES = 2**31


class UnknownFileError(UserError, ValueError):
    """File whose kind is not known from its name."""


def dump_file(
    path: str | Path,
    *,
    records: bool = False,
    payload: Callable[[bytes], object] | None = None,
    decode: Decode | None = None,
) -> Iterator[Row]:
    """Yield the content of a file, one dict for each entry, with its ``kind``.

    Kinds: ``batch`` (.log, .checkpoint), each followed by its ``record`` rows with ``records``, else only those of
    control records, ``offset_index``, ``time_index``, ``txn_index``, ``producer`` (.snapshot), ``checkpoint``
    (checkpoint files), ``epoch`` (leader-epoch-checkpoint), ``partition_metadata``, and ``damage`` with ``position``
    and ``message`` for the first unreadable position, where the dump ends.

    Args:
        path: path of the file.
        records: yield all records.
        payload: returns the value of a record in a form for ``json.dumps``; raises ValueError or KafkaError for a value
            that it cannot decode. Default: the value as text.
        decode: returns key and payload of a record; replaces ``payload``.

    Raises: UnknownFileError; OSError; ``checkpoints.CorruptFileError`` for a damaged text file.
    """
    path = Path(path)
    if path.suffix in _LOGS:
        return _dump_log(path, records, decode or _with_payload(payload or _shown))
    reader = _READERS.get(path.suffix) or _BY_NAME.get(path.name)
    if reader is None:
        known = ", ".join((*_LOGS, *_READERS, *_BY_NAME))
        raise UnknownFileError(f"{path}: not a file of the log (known: {known})")
    return reader(path)


def describe(row: Row) -> str:
    """Return a row as one line of text, like Kafka's tool."""
    is_record: bool = row["kind"] == "record"
    fields = (
        f"{key}{'' if key in _WITHOUT_COLON else ':'} {_text(value)}"
        for key, value in row.items()
        if key != "kind" and not (is_record and value is None)
    )
    return "| " * is_record + " ".join(fields)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        text: str = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return "none" if value is None else str(value)


def _base_offset(path: Path) -> int:
    if not (path.stem.isascii() and path.stem.isdigit()):
        raise UnknownFileError(f"{path}: the name is not an offset of 20 digits")
    return int(path.stem)


def _dump_log(path: Path, show_records: bool, decode: Decode) -> Iterator[Row]:
    if path.suffix == ".log":
        _base_offset(path)
    with closing(BatchFile(path)) as file:
        try:
            for batch in file.batches():
                yield _batch_row(batch)
                if (batch.is_control or show_records) and batch.is_valid:
                    yield from _record_rows(file, batch, decode)
        except DamagedBatch as e:
            yield {"kind": "damage", "position": e.position, "message": str(e)}


def _batch_row(batch: Batch) -> Row:
    return {
        "kind": "batch",
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": batch.position,
        "LogAppendTime" if batch.is_log_append_time else "CreateTime": batch.max_timestamp_ms,
        "size": batch.size_bytes,
        "magic": 2,
        "compresscodec": batch.codec,
        "crc": batch.crc,
        "isvalid": batch.is_valid,
    }


def _record_rows(file: BatchFile, batch: Batch, decode: Decode) -> Iterator[Row]:
    parsed = batch_at(file.data[batch.position : batch.position + batch.size_bytes])
    try:
        records = parsed.records() if parsed is not None else []
    except (KafkaError, ValueError) as e:
        yield {"kind": "damage", "position": batch.position, "message": f"the records cannot be read: {e}"}
        return
    for i, (offset, timestamp_ms, key, value, headers) in enumerate(records):
        row: Row = {
            "kind": "record",
            "offset": offset,
            "LogAppendTime" if batch.is_log_append_time else "CreateTime": timestamp_ms,
            "keySize": -1 if key is None else len(key),
            "valueSize": -1 if value is None else len(value),
            "sequence": -1 if batch.base_sequence < 0 else (batch.base_sequence + i) % 2**31,
            "headerKeys": [name for name, _ in headers],
        }
        if batch.is_control:
            yield row | _control(key or b"", value or b"")
        else:
            yield row | decode(offset, key, value)


def _with_payload(payload: Callable[[bytes], object]) -> Decode:
    """Return a function that shows keys as text and values by ``payload``."""

    def decode(offset: int, key: bytes | None, value: bytes | None) -> Row:
        try:
            shown = None if value is None else payload(value)
        except (KafkaError, ValueError) as e:
            shown = f"Error at {offset}, skipping. {e}"
        return {"key": None if key is None else _shown(key), "payload": shown}

    return decode


def _control(key: bytes, value: bytes) -> Row:
    """Return the content of a control record under the name that Kafka's tool prints."""
    if len(key) < 4:
        return {"controlType": "UNREADABLE"}
    control_type = struct.unpack_from(">hh", key)[1]
    if control_type in (ABORT, COMMIT):
        row: Row = {"endTxnMarker": "COMMIT" if control_type == COMMIT else "ABORT"}
        return row | ({"coordinatorEpoch": struct.unpack_from(">hi", value)[1]} if len(value) >= 6 else {})
    if control_type not in VALUE_TABLES:
        return {"controlType": f"UNKNOWN({control_type})"}
    from kbroker.log.tools.message_json import message_json
    from kbroker.protocol.codec import decode_data

    table = VALUE_TABLES[control_type]
    try:
        return {_LABELS[table]: message_json(table, 0, decode_data(table, 0, value))}
    except KafkaError as e:
        return {_LABELS[table]: f"UNREADABLE: {e}"}


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _read(path: Path) -> bytes:
    if path.stat().st_size > _STATE_FILE_MAX_BYTES:
        raise checkpoints.CorruptFileError(f"{path}: larger than {_STATE_FILE_MAX_BYTES} bytes")
    return path.read_bytes()


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield whole entries with their positions."""
    data = _read(path)
    for position in range(0, len(data) - entry.size + 1, entry.size):
        yield position, entry.unpack_from(data, position)


def _rest(path: Path, entry: struct.Struct) -> Iterator[Row]:
    size = path.stat().st_size
    if size % entry.size:
        yield {
            "kind": "damage",
            "position": size - size % entry.size,
            "message": f"{size} bytes are not a multiple of {entry.size}",
        }


def _dump_offset_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for at, (relative, position) in _entries(path, _OFFSET_ENTRY):
        if relative == 0 and position == 0:  # an active segment's index is padded with zeros
            return
        yield {"kind": "offset_index", "offset": base + relative, "position": position, "entry": at // 8}
    yield from _rest(path, _OFFSET_ENTRY)


def _dump_time_index(path: Path) -> Iterator[Row]:
    base = _base_offset(path)
    for at, (timestamp_ms, relative) in _entries(path, _TIME_ENTRY):
        if timestamp_ms == 0 and relative == 0:
            return
        yield {"kind": "time_index", "timestamp": timestamp_ms, "offset": base + relative, "entry": at // 12}
    yield from _rest(path, _TIME_ENTRY)


def _dump_txn_index(path: Path) -> Iterator[Row]:
    _base_offset(path)
    for at, (version, producer_id, first, last, stable) in _entries(path, _TXN_ENTRY):
        if version != 0:
            yield {"kind": "damage", "position": at, "message": f"version {version} is not 0"}
            return
        yield {
            "kind": "txn_index",
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }
    yield from _rest(path, _TXN_ENTRY)


def snapshot_fault(data: bytes) -> str | None:
    """Return the fault of a producer snapshot's bytes, None when they are sound."""
    if len(data) < _SNAPSHOT_HEADER.size:
        return f"{len(data)} bytes are too few"
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != 1:
        return f"version {version} is not 1"
    if crc32c(data[6:]) != crc:
        return "the checksum does not match"
    if len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        return f"{count} entries do not take {len(data)} bytes"
    return None


def _dump_snapshot(path: Path) -> Iterator[Row]:
    data = _read(path)
    fault = snapshot_fault(data)
    if fault is not None:
        yield {"kind": "damage", "position": 0, "message": fault}
        return
    for entry in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, txn_first = entry
        has_batch = offset >= 0
        yield {
            "kind": "producer",
            "producerId": producer_id,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator_epoch,
            "currentTxnFirstOffset": txn_first if txn_first >= 0 else None,
            "lastTimestamp": timestamp_ms,
            "firstSequence": (sequence - delta) % 2**31 if has_batch else None,
            "lastSequence": sequence if has_batch else None,
            "lastOffset": offset if has_batch else None,
            "offsetDelta": delta if has_batch else None,
        }


def _dump_checkpoint(path: Path) -> Iterator[Row]:
    for (topic, partition), offset in checkpoints.offset_checkpoint(path).read().items():
        yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def _dump_epochs(path: Path) -> Iterator[Row]:
    for epoch, offset in checkpoints.leader_epoch_checkpoint(path).read().items():
        yield {"kind": "epoch", "epoch": epoch, "startOffset": offset}


def _dump_partition_metadata(path: Path) -> Iterator[Row]:
    topic_id = checkpoints.read_partition_metadata(path.parent)
    if topic_id is not None:
        yield {"kind": "partition_metadata", "topicId": checkpoints.uuid_to_text(topic_id)}


_LOGS = (".log", ".checkpoint")
_LABELS = {
    "LeaderChangeMessage": "LeaderChange",
    "SnapshotHeaderRecord": "SnapshotHeader",
    "SnapshotFooterRecord": "SnapshotFooter",
    "KRaftVersionRecord": "KRaftVersion",
    "VotersRecord": "KRaftVoters",
}
_WITHOUT_COLON = ("SnapshotHeader", "SnapshotFooter", "KRaftVersion", "KRaftVoters")
_READERS = {
    ".index": _dump_offset_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_txn_index,
    ".snapshot": _dump_snapshot,
}
_BY_NAME = {
    checkpoints.RECOVERY_POINT_CHECKPOINT: _dump_checkpoint,
    checkpoints.LOG_START_CHECKPOINT: _dump_checkpoint,
    checkpoints.HIGH_WATERMARK_CHECKPOINT: _dump_checkpoint,
    checkpoints.CLEANER_OFFSET_CHECKPOINT: _dump_checkpoint,
    checkpoints.LEADER_EPOCH_CHECKPOINT: _dump_epochs,
    checkpoints.PARTITION_METADATA: _dump_partition_metadata,
}
