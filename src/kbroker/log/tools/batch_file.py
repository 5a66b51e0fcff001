"""Reader of the batches of a ``.log`` file that checks every byte, for tools that examine damaged files.

The broker's own reader is native (``_read.pyx``); this slow one is used by ``dump`` and ``verify``.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker._core.codec.crc32c import crc32c
from kbroker.protocol.batch_format import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    DELETE_HORIZON_BIT,
    LENGTH_FROM,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from kbroker.protocol.compression import CompressionType

HEADER = struct.Struct(">qiibIhiqqqhii")  # DefaultRecordBatch, magic 2
MAX_OFFSET = 2**63 - 2

assert HEADER.size == BATCH_HEADER_BYTES


class Batch(NamedTuple):
    """Header and position of a v2 batch."""

    position: int
    size_bytes: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    is_valid: bool  # the checksum matches, or was not compared

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return -1 if self.base_sequence < 0 else (self.base_sequence + self.last_offset_delta) % 2**31

    @property
    def codec(self) -> str:
        code = self.attributes & CODEC_MASK
        return CompressionType(code).name.lower() if code <= CompressionType.ZSTD else f"unknown({code})"

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None


class DamagedBatch(ValueError):
    """Bytes at ``position`` that are not a batch; ``str()`` gives the reason.

    ``batch``: the batch there if only its offsets are impossible; the checksum does not cover the base offset.
    """

    def __init__(self, position: int, fault: str, batch: Batch | None = None) -> None:
        super().__init__(fault)
        self.position = position
        self.batch = batch


class BatchFile:
    """A ``.log`` file mapped for reading, until ``close``. Raises: OSError."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            self.size_bytes = os.fstat(fd).st_size
            self.data: mmap.mmap | bytes = (
                mmap.mmap(fd, self.size_bytes, access=mmap.ACCESS_READ) if self.size_bytes else b""
            )
        finally:
            os.close(fd)

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()

    def batch_at(self, position: int, *, is_checked: bool = True) -> Batch:
        """Return the batch that starts at ``position``, by default with its checksum compared. Raises: DamagedBatch."""
        left = self.size_bytes - position
        if left < BATCH_HEADER_BYTES:
            raise DamagedBatch(position, f"{left} bytes left, a batch has at least {BATCH_HEADER_BYTES}")
        base, length, epoch, magic, crc, attributes, delta, *rest = HEADER.unpack_from(self.data, position)
        if magic != 2:
            raise DamagedBatch(position, f"magic {magic} is not 2")
        size = length + LENGTH_FROM
        if size < BATCH_HEADER_BYTES:
            raise DamagedBatch(position, f"batch length {length} is too small")
        if size > left:
            raise DamagedBatch(position, f"batch of {size} bytes, {left} are left")
        is_valid = True
        if is_checked:
            with memoryview(self.data) as view, view[position + CRC_FROM : position + size] as checked:
                is_valid = crc32c(checked) == crc
        batch = Batch._make((position, size, base, epoch, crc, attributes, delta, *rest, is_valid))
        if base < 0 or batch.last_offset_delta < 0 or batch.last_offset > MAX_OFFSET:
            raise DamagedBatch(position, f"impossible offsets {base} + {batch.last_offset_delta}", batch)
        return batch

    def batches(self, position: int = 0) -> Iterator[Batch]:
        """Yield all batches, even those with a wrong checksum. Raises: DamagedBatch at bytes that are not a batch."""
        while position < self.size_bytes:
            batch = self.batch_at(position)
            yield batch
            position += batch.size_bytes

    def next_valid(self, position: int, from_offset: int, up_to_offset: int) -> Batch | None:
        """Return the first undamaged batch at or after ``position`` whose offsets are in the range, or None."""
        while True:
            magic_at = self.data.find(b"\x02", position + 16)
            if magic_at < 0:
                return None
            position = magic_at - 16
            try:
                base, length = struct.unpack_from(">qi", self.data, position)
                plausible = from_offset <= base <= up_to_offset and length >= BATCH_HEADER_BYTES - LENGTH_FROM
                batch = self.batch_at(position) if plausible else None
            except (DamagedBatch, struct.error):
                batch = None
            if batch is not None and batch.is_valid and batch.last_offset <= up_to_offset:
                return batch
            position += 1
