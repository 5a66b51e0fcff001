"""Check of the last segment of the metadata log before it is opened.

Opening a log cuts off everything behind the first bytes that are not a batch. After a crash these may be the tail that
was not synced; but if sound batches follow, they were acknowledged, and the bytes are damage.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from kbroker._core.codec.crc32c import crc32c
from kbroker.protocol._records import corrupt

# base offset, length, leader epoch, magic, checksum, attributes, last offset delta, number of records
_HEADER = struct.Struct(">qiibIhi30xi")
_LENGTH_END = 12  # bytes before those that the length counts
_CHECKED_FROM = 21  # first byte that the checksum covers
_MAGIC_AT, _MAGIC = 16, 2
_MAGIC_BYTE = bytes([_MAGIC])


class _Batch(NamedTuple):
    base_offset: int
    leader_epoch: int
    end_offset: int
    end: int  # position


def check_tail(segment: Path, first_offset: int, last_epoch: int, *, is_clean: bool) -> int:
    """Check that the segment consists of batches, apart from the tail of a crash; return the position of the tail.

    Args: ``first_offset`` of the segment; ``last_epoch``: the largest leader epoch that a batch may have; ``is_clean``:
    everything was on disk when the log was closed.
    Raises: ProtocolError with the position of the damage; OSError.
    """
    with segment.open("rb") as file:
        size_bytes = segment.stat().st_size
        if not size_bytes:
            return 0
        if not is_clean and hasattr(os, "posix_fadvise"):  # pages that a failed sync has lost may still be in the cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) as data:
            return _check(data, segment, first_offset, last_epoch, is_clean)


def _check(data: mmap.mmap, segment: Path, offset: int, last_epoch: int, is_clean: bool) -> int:
    position = epoch = 0
    while position < len(data):
        # of a log that was closed in order the loader compares the checksums
        batch = _batch_at(data, position, is_checked=not is_clean)
        if batch is None or batch.base_offset != offset or not epoch <= batch.leader_epoch <= last_epoch:
            break
        position, offset, epoch = batch.end, batch.end_offset, batch.leader_epoch
    if position == len(data):
        return position
    found = "other bytes"
    if batch is not None:
        found = f"one of offset {batch.base_offset} and leader epoch {batch.leader_epoch}"
    if is_clean:
        reason = "the log was closed in order"
    elif batch is not None:
        reason = "the checksum is correct"
    else:
        following = _next_batch(data, position + 1, offset)
        if following < 0:
            return position
        reason = f"a sound batch follows at byte {following}"
    raise corrupt(
        f"{segment.name}: expected a batch of offset {offset} and a leader epoch of {epoch} to {last_epoch} at byte "
        f"{position}, found {found}; this is not the tail of a crash, since {reason}"
    )


def _batch_at(data: mmap.mmap, position: int, *, is_checked: bool) -> _Batch | None:
    """Return the batch at a position, None without any."""
    if position + _HEADER.size > len(data):
        return None
    base, length, epoch, magic, checksum, _, last_delta, count = _HEADER.unpack_from(data, position)
    end = position + _LENGTH_END + length
    if magic != _MAGIC or length < _HEADER.size - _LENGTH_END or end > len(data) or not 0 <= last_delta == count - 1:
        return None
    if is_checked and crc32c(data[position + _CHECKED_FROM : end]) != checksum:
        return None
    return _Batch(base, epoch, base + last_delta + 1, end)


def _next_batch(data: mmap.mmap, position: int, offset: int) -> int:
    """Return the position of the first sound batch of at least this offset, -1 without any."""
    found = data.find(_MAGIC_BYTE, position + _MAGIC_AT)
    while found >= 0:
        batch = _batch_at(data, found - _MAGIC_AT, is_checked=True)
        if batch is not None and batch.base_offset >= offset:
            return found - _MAGIC_AT
        found = data.find(_MAGIC_BYTE, found + 1)
    return -1
