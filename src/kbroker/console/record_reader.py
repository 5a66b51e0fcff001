"""Records of one partition for a page: from an offset, a time or the end; so many, and so many bytes, at most."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.light_typing import Any, NamedTuple
from kbroker.protocol.records import columns

READ_BYTES = 1 << 20  # of the log at a time; a larger batch comes whole
READS = 8  # for one page: compaction and markers leave gaps
CAP_BYTES = 64 << 20  # to which a compressed batch may grow
PAGE_BYTES = 8 << 20  # of keys, values and headers: a page ends after the record that passes it
MOST = 100  # records of a page
HEADERS = 50  # of a record


class LogRecord(NamedTuple):
    """One record with its offset. ``headers``: the first HEADERS of ``header_count``."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    header_count: int


class Found(NamedTuple):
    """Records, and where the ones behind them begin; ``problem``: why there are no more, in words."""

    records: Sequence[LogRecord]
    next_offset: int
    problem: str = ""


def read_records(log: Any, offset: int, count: int) -> Found:
    """Read up to ``count`` records from an offset on, below the high watermark.

    Holds no lock of the log. Raises: KafkaError OFFSET_OUT_OF_RANGE.
    """
    found: list[LogRecord] = []
    size_bytes = 0
    end = log.high_watermark
    for _ in range(READS):
        if len(found) >= count or size_bytes > PAGE_BYTES or offset >= end:
            break
        try:
            read = log.read(offset, READ_BYTES, min_one=True)
            if read.error:
                raise KafkaError(Errors.of(read.error))
            rows = columns(read.records, min_offset=offset, allow_truncated=True, cap_bytes=CAP_BYTES)
        except ProtocolError as error:
            return Found(found, offset, f"The batch at offset {offset:,} cannot be shown: {error}")
        if rows.next_offset <= offset:
            break
        for row in range(len(rows.keys)):
            if len(found) == count or size_bytes > PAGE_BYTES or rows.offsets[row] >= end:
                break
            first, behind = rows.header_offsets[row], rows.header_offsets[row + 1]
            headers = tuple(
                (rows.header_keys[i] or b"", rows.header_values[i]) for i in range(first, min(behind, first + HEADERS))
            )
            key, value = rows.keys[row], rows.values[row]
            size_bytes += len(key or b"") + len(value or b"")
            size_bytes += sum(len(name) + len(text or b"") for name, text in headers)
            found.append(LogRecord(rows.offsets[row], rows.timestamps_ms[row], key, value, headers, behind - first))
        is_full = len(found) == count or size_bytes > PAGE_BYTES
        offset = found[-1].offset + 1 if is_full else rows.next_offset
    return Found(found, min(offset, end))


def first_offset(log: Any, *, offset: int | None, time_ms: int | None, count: int) -> int:
    """Where a page begins: at an offset, at the first record of a time or later, or so that it shows the latest ones.

    An offset outside the log is the nearest one inside. Raises: OSError.
    """
    start: int = log.log_start_offset
    end: int = log.high_watermark
    if offset is not None:
        wanted = offset
    elif time_ms is not None:
        wanted = int(log.offset_for_timestamp(time_ms).offset)
        wanted = end if wanted < 0 else wanted
    else:
        wanted = end - count
    return max(start, min(wanted, end))
