"""Gaps: offsets that no batch of a partition covers; they can be filled with empty batches.

In a partition that was never compacted, a gap means that records are lost. An empty batch (no records, the
offsets of the gap) is also written by Kafka's compaction to keep offsets: every client reads past it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kbroker._core.codec.crc32c import crc32c
from kbroker.log import checkpoints
from kbroker.log.tools.batch_file import HEADER, BatchFile, DamagedBatch
from kbroker.protocol.batch_format import BATCH_HEADER_BYTES, CRC_FROM, LENGTH_FROM

MAX_DELTA = 2**31 - 1
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Gap:
    """Offsets that no batch has; their batch is missing at byte ``position`` of the segment."""

    position: int
    first_offset: int
    last_offset: int
    leader_epoch: int


def find_gaps(segments: list[Path]) -> Iterator[tuple[Path, list[Gap]]]:
    """Yield each segment with gaps, and the gaps up to the next segment's base; the segments are in order.

    A damaged segment is left out, since its gaps are unknown until it is cut.
    """
    epoch = 0
    for i, segment in enumerate(segments):
        base = int(segment.stem)
        end = int(segments[i + 1].stem) if i + 1 < len(segments) else -1
        found: list[Gap] = []
        next_offset, position = base, 0
        try:
            with closing(BatchFile(segment)) as file:
                while position < file.size_bytes:
                    batch = file.batch_at(position)
                    if not batch.is_valid:
                        raise DamagedBatch(position, "the checksum does not fit")
                    if batch.base_offset > next_offset:
                        before = epoch if position else batch.leader_epoch
                        found.append(Gap(position, next_offset, batch.base_offset - 1, before))
                    epoch = batch.leader_epoch
                    next_offset, position = batch.last_offset + 1, position + batch.size_bytes
        except DamagedBatch:
            continue
        if next_offset < end:
            found.append(Gap(position, next_offset, end - 1, epoch))
        if found:
            yield segment, found


def fill_gaps(segment: Path, gaps: list[Gap]) -> bool:
    """Rewrite the segment atomically with an empty batch in each gap. The caller removes the indexes first.

    Returns: False when a gap is too long for one segment; the file is then unchanged.
    """
    if gaps[-1].last_offset - int(segment.stem) > MAX_DELTA:
        return False
    with rewritten(segment) as (source, target):
        at = 0
        for gap in gaps:
            copy_bytes(source, target, gap.position - at)
            target.write(empty_batch(gap))
            at = gap.position
        copy_bytes(source, target, segment.stat().st_size - at)
    return True


@contextmanager
def rewritten(segment: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield a segment's file and a new one, which replaces it atomically at the end."""
    temporary = segment.with_name(segment.name + ".repaired")
    with segment.open("rb") as source, temporary.open("wb") as target:
        yield source, target
        target.flush()
        checkpoints.sync_descriptor(target.fileno())
    temporary.replace(segment)
    checkpoints.sync_folder(segment.parent)


def empty_batch(gap: Gap) -> bytes:
    """Return a v2 batch without records, producer or timestamp that covers the gap's offsets."""
    delta = gap.last_offset - gap.first_offset
    length = BATCH_HEADER_BYTES - LENGTH_FROM
    fields = (gap.first_offset, length, gap.leader_epoch, 2)
    tail = (0, delta, -1, -1, -1, -1, -1, 0)
    unsigned = HEADER.pack(*fields, 0, *tail)
    return HEADER.pack(*fields, crc32c(unsigned[CRC_FROM:]), *tail)


def copy_bytes(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy up to ``size`` bytes from the current position of the source."""
    while size > 0:
        piece = source.read(min(size, COPY_BYTES))
        if not piece:
            return
        target.write(piece)
        size -= len(piece)
