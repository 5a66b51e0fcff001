"""Records of one partition for a page: from an offset, a time or the end, limited in number and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.units import rounded_bytes
from kbroker.protocol.records import RecordBatch, iter_batches

READ_BYTES = 1 << 20  # maximum size of one read; a larger batch is read whole
READS = 8  # maximum number of reads for one page: compaction and markers leave gaps
CAP_BYTES = 64 << 20  # decompressed bytes of one batch after which records are not shown
UNPACKED_BYTES = 16 << 20  # decompressed bytes of batches: a page ends with the batch that exceeds this
PAGE_BYTES = 8 << 20  # size of records: a page ends after the record that exceeds this
MOST = 100  # maximum number of records on a page
HEADERS = 50  # maximum number of headers read of a record
WHOLE = 2**31 - 1  # length of a value that is not cut


class LogRecord(NamedTuple):
    """One record with its offset. ``headers``: the first HEADERS of ``header_count``.

    ``key``, ``value``: their first bytes; ``key_bytes``, ``value_bytes``: their whole lengths, -1 for null.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    header_count: int
    key_bytes: int
    value_bytes: int


class Found(NamedTuple):
    """Records and the offset after them; ``problem``: a sentence on records omitted before that offset."""

    records: Sequence[LogRecord]
    next_offset: int
    problem: str = ""


def read_records(log: Any, offset: int, count: int, value_bytes: int = WHOLE) -> Found:
    """Read up to ``count`` records from an offset on, below the high watermark.

    Args: ``value_bytes``: maximum length of keys and values; the rest is cut off.
    A batch that cannot be decoded ends the read, with a problem. Holds no lock of the log.
    Raises: KafkaError with the log's code, such as OFFSET_OUT_OF_RANGE.
    """
    page = _Page(offset, count, log.high_watermark, value_bytes)
    for _ in range(READS):
        if page.is_full:
            break
        start = behind = page.offset
        try:
            read = log.read(start, READ_BYTES, min_one=True)
            if read.error:
                raise KafkaError(Errors.of(read.error))
            for batch in iter_batches(read.records, allow_truncated=True):
                behind = batch.last_offset + 1
                if not page.add(batch):
                    break
        except ProtocolError as error:
            next_offset = min(max(behind, page.offset), page.end)
            return Found(page.records, next_offset, f"The batch at offset {page.offset:,} cannot be shown: {error}")
        if page.offset == start:
            break
    return Found(page.records, min(page.offset, page.end), page.left_out)


class _Page:
    """Records from an offset on, batch by batch, until there are enough.

    ``offset``: the next one to read; ``left_out``: description of records that were too far inside a large batch.
    """

    def __init__(self, offset: int, count: int, end: int, value_bytes: int) -> None:
        self.records: list[LogRecord] = []
        self.left_out = ""
        self.offset, self.end, self._value_bytes = offset, end, value_bytes
        self._left_rows, self._left_bytes, self._left_unpacked_bytes = count, PAGE_BYTES, UNPACKED_BYTES

    @property
    def is_full(self) -> bool:
        return self._is_cut or self._left_unpacked_bytes <= 0 or self.offset >= self.end

    @property
    def _is_cut(self) -> bool:
        """Return whether the page may end within a batch."""
        return self._left_rows == 0 or self._left_bytes < 0

    def add(self, batch: RecordBatch) -> bool:
        """Add records of a batch; return whether the page takes more. Raises: ProtocolError; then none is added."""
        if batch.last_offset < self.offset:
            return True
        behind = batch.last_offset + 1
        if not (batch.is_control and batch.is_crc_valid):  # the control bit is reliable only with a valid checksum
            limits = self._left_rows, self._left_bytes, HEADERS, CAP_BYTES, self._value_bytes
            rows, found_bytes, unpacked_bytes, is_cut = batch.records_from(self.offset, *limits)
            found = [LogRecord(*row) for row in rows if row[0] < self.end]
            self.records += found
            self._left_unpacked_bytes -= unpacked_bytes
            self._left_rows -= len(found)
            self._left_bytes -= found_bytes
            if is_cut:
                first = found[-1].offset + 1 if found else self.offset
                self.left_out = (
                    f"Records from offset {first:,} to {batch.last_offset:,} are not shown: they are after the first "
                    f"{rounded_bytes(CAP_BYTES)} of their batch, uncompressed."
                )
            elif found and self._is_cut:
                behind = found[-1].offset + 1
        self.offset = behind
        return not self.is_full


def first_offset(log: Any, offset: int | None, time_ms: int) -> int:
    """Return the offset at which a page begins: the given one, or that of a time.

    An offset outside the log is the nearest one inside. Raises: OSError.
    """
    start: int = log.log_start_offset
    end: int = log.high_watermark
    if offset is None:
        offset = int(log.offset_for_timestamp(time_ms).offset)
        offset = end if offset < 0 else offset
    return max(start, min(offset, end))
