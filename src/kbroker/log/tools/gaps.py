"""Gaps: offsets that no batch of a partition covers; they can be filled with empty batches.

In a partition that was never compacted, a gap means that records are lost. An empty batch (no records, the
offsets of the gap) is also written by Kafka's compaction to keep offsets: every client reads past it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kbroker._core.codec.crc32c import crc32c
from kbroker.log.checkpoints import write_atomically
from kbroker.log.tools.batch_file import HEADER, BatchFile, DamagedBatch
from kbroker.protocol.batch_format import BATCH_HEADER_BYTES, CRC_FROM, LENGTH_FROM

MAX_DELTA = 2**31 - 1
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Gap:
    """Offsets that no batch has; their batch is missing at byte ``position`` of the segment.

    ``is_tail``: no batch of the log follows.
    """

    position: int
    first_offset: int
    last_offset: int
    leader_epoch: int
    is_tail: bool = False


def find_gaps(segments: list[Path], log_end: int) -> Iterator[tuple[Path, list[Gap]]]:
    """Yield each segment with gaps, and the gaps up to the next segment's base; the segments are in order.

    A damaged segment is left out, since its gaps are unknown until it is cut.

    Args: ``log_end``: offset up to which the last segment is known to have had batches.
    """
    epoch = 0
    for i, segment in enumerate(segments):
        base = int(segment.stem)
        is_last = i + 1 == len(segments)
        end = log_end if is_last else int(segments[i + 1].stem)
        found: list[Gap] = []
        next_offset, position = base, 0
        try:
            with closing(BatchFile(segment)) as file:
                while position < file.size_bytes:
                    batch = file.batch_at(position)
                    if not batch.is_valid:
                        raise DamagedBatch(position, "the checksum does not match")
                    if batch.base_offset > next_offset:
                        before = epoch if position else batch.leader_epoch
                        found.append(Gap(position, next_offset, batch.base_offset - 1, before))
                    epoch = batch.leader_epoch
                    next_offset, position = batch.last_offset + 1, position + batch.size_bytes
        except DamagedBatch:
            continue
        if next_offset < end:
            found.append(Gap(position, next_offset, end - 1, epoch, is_last))
        if found:
            yield segment, found


def fill_gaps(segment: Path, gaps: list[Gap]) -> bool:
    """Rewrite the segment atomically with an empty batch in each gap. The caller removes the indexes first.

    Returns: False when a gap is too long for one segment; the file is then unchanged.
    """
    if gaps[-1].last_offset - int(segment.stem) > MAX_DELTA:
        return False
    write_atomically(segment, _filled(segment, gaps))
    return True


def _filled(segment: Path, gaps: list[Gap]) -> Iterator[bytes]:
    """Yield the content of a segment, with an empty batch in each gap."""
    with segment.open("rb") as source:
        at = 0
        for gap in gaps:
            yield from pieces(source, gap.position - at)
            yield empty_batch(gap)
            at = gap.position
        yield from pieces(source)


def empty_batch(gap: Gap) -> bytes:
    """Return a v2 batch without records, producer or timestamp that covers the gap's offsets."""
    delta = gap.last_offset - gap.first_offset
    length = BATCH_HEADER_BYTES - LENGTH_FROM
    fields = (gap.first_offset, length, gap.leader_epoch, 2)
    tail = (0, delta, -1, -1, -1, -1, -1, 0)
    unsigned = HEADER.pack(*fields, 0, *tail)
    return HEADER.pack(*fields, crc32c(unsigned[CRC_FROM:]), *tail)


def pieces(source: BinaryIO, size_bytes: int = 2**62) -> Iterator[bytes]:
    """Yield up to ``size_bytes`` from the current position of the source, COPY_BYTES at a time."""
    while size_bytes > 0 and (piece := source.read(min(size_bytes, COPY_BYTES))):
        yield piece
        size_bytes -= len(piece)
