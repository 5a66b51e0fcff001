"""Record batches with any fields, including wrong ones, and their decoded form for a comparison."""

import gzip
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.conformance.codec import Reader, Unreadable
from tests.support import wire
from tests.support.wire import CODECS, crc32c, uvarint

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32
CODEC_BITS = {**CODECS, "xerial": CODECS["snappy"]}
HEADER = ">hiqqqhii"


class Record(NamedTuple):
    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    later_ms: int = 0  # difference from the batch's time


def _stored_snappy(data: bytes) -> bytes:
    """Return the data as one literal of Snappy."""
    return uvarint(len(data)) + b"\xf4" + struct.pack("<H", len(data) - 1) + data


def squeezed(codec: str, data: bytes) -> bytes:
    """Return a valid stream of a codec, as short as possible; all codecs but gzip only store the data."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy":
        return _stored_snappy(data)
    if codec == "xerial":
        block = _stored_snappy(data)
        return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == "lz4":  # magic; version 1, independent blocks; 64 KiB; checksum of these; a stored block; the end
        return bytes.fromhex("04224d18604082") + struct.pack("<I", len(data) | 1 << 31) + data + bytes(4)
    if codec == "zstd":  # magic; single segment with its size in one byte or two; a raw block that is the last
        size = b"\x20" + bytes([len(data)]) if len(data) < 256 else b"\x60" + struct.pack("<H", len(data) - 256)
        return bytes.fromhex("28b52ffd") + size + struct.pack("<I", len(data) << 3 | 1)[:3] + data
    return data


def batch(
    *records: Record | str | bytes,
    time_ms: int,
    codec: str = "none",
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    count: int | None = None,
    last_offset_delta: int | None = None,
    offset_deltas: Iterable[int] | None = None,
    max_time_ms: int | None = None,
    payload: bytes | None = None,
    **header: int | None,
) -> bytes:
    """Return a batch of format 2 with the given codec; fields can have wrong values, as in ``wire.batch``."""
    rows = [
        each if isinstance(each, Record) else Record(each.encode() if isinstance(each, str) else each)
        for each in records
    ]
    if payload is None:
        deltas = range(len(rows)) if offset_deltas is None else offset_deltas
        data = [
            wire.record(delta, row.value, key=row.key, timestamp_delta=row.later_ms, headers=row.headers)
            for row, delta in zip(rows, deltas, strict=True)
        ]
        payload = squeezed(codec, b"".join(data))
    newest = time_ms + max((row.later_ms for row in rows), default=0)
    return wire.batch(
        records=payload,
        count=len(rows) if count is None else count,
        last_offset_delta=len(rows) - 1 if last_offset_delta is None else last_offset_delta,
        attributes=attributes | CODEC_BITS[codec],
        timestamp_ms=time_ms,
        max_timestamp_ms=newest if max_time_ms is None else max_time_ms,
        producer_epoch=epoch,
        base_sequence=sequence,
        **header,  # type: ignore[arg-type]
    )


def old_message(value: bytes, magic: int, time_ms: int) -> bytes:
    """Return a message of format 0 or 1, without a key."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", time_ms) if magic else b"")
    body += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


def taken_apart(data: bytes | None) -> Any:
    """Return every field of every batch; the rest of an incomplete batch is {"Cut": size in bytes}."""
    if data is None:
        return None
    found: list[Any] = []
    reader = Reader(data)
    try:
        while reader.left:
            whole = 12 + struct.unpack_from(">i", data, len(data) - reader.left + 8)[0] if reader.left >= 12 else 12
            if reader.left < whole:
                found.append({"Cut": reader.left})
                break
            found.append(_batch(Reader(reader.take(whole))))
    except Unreadable as error:
        found.append(f"unreadable: {error}")
    return found


def _batch(reader: Reader) -> dict[str, Any]:
    base, length, leader_epoch, magic, crc = struct.unpack(">qiibI", reader.take(21))
    checked = reader.take(length - 9)
    attributes, last, first_ms, newest_ms, producer, epoch, sequence, count = struct.unpack_from(HEADER, checked)
    found = {
        "BaseOffset": base, "LastOffsetDelta": last, "PartitionLeaderEpoch": leader_epoch, "Magic": magic,
        "IsCrcRight": crc == crc32c(checked), "Attributes": attributes, "BaseTimestamp": first_ms,
        "MaxTimestamp": newest_ms, "ProducerId": producer, "ProducerEpoch": epoch, "BaseSequence": sequence,
        "Count": count,
    }  # fmt: skip
    payload, codec = checked[struct.calcsize(HEADER) :], attributes & 7
    if codec not in (0, CODECS["gzip"]):
        return {**found, "Payload": payload}
    try:
        return {**found, "Records": _records(gzip.decompress(payload) if codec else payload, count)}
    except (Unreadable, EOFError, OSError, zlib.error) as error:
        return {**found, "Records": f"unreadable: {error}"}


def _records(payload: bytes, count: int) -> list[dict[str, Any]]:
    reader, found = Reader(payload), []
    for _ in range(count):
        inner = Reader(reader.take(reader.varint()))
        inner.take(1)
        row: dict[str, Any] = {"TimestampDelta": inner.varint(), "OffsetDelta": inner.varint()}
        row |= {name: _taken(inner) for name in ("Key", "Value")}
        headers = [[inner.take(inner.varint()), _taken(inner)] for _ in range(inner.varint())]
        found.append({**row, "Headers": headers} if headers else row)
    if reader.left:
        raise Unreadable(f"{reader.left} bytes behind the last record")
    return found


def _taken(reader: Reader) -> bytes | None:
    size = reader.varint()
    return None if size < 0 else reader.take(size)
