"""Check of the last segment of the metadata log before it is opened.

Opening a log cuts off everything after the first bytes that are not a batch. After a crash these may be the tail that
was not synced; but if sound batches follow, they were acknowledged, and the bytes are damage.
"""

import os
from contextlib import closing
from pathlib import Path

from kbroker.log.tools.batch_file import MAX_OFFSET, Batch, BatchFile, DamagedBatch
from kbroker.protocol._records import corrupt


def check_tail(segment: Path, first_offset: int, last_epoch: int, *, is_clean: bool) -> int:
    """Check that the segment consists of batches, apart from the tail of a crash; return the position after them.

    Args: ``first_offset``: the segment's; ``last_epoch``: the largest leader epoch that a batch may have; ``is_clean``:
    everything was on disk when the log was closed.
    Raises: ProtocolError with the position of the damage; OSError.
    """
    if not is_clean and hasattr(os, "posix_fadvise"):  # pages that a failed sync has lost may still be in the cache
        with segment.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with closing(BatchFile(segment)) as file:
        return _check(file, first_offset, last_epoch, is_clean)


def _check(file: BatchFile, offset: int, last_epoch: int, is_clean: bool) -> int:
    position = epoch = 0
    batch: Batch | None = None
    while position < file.size_bytes:
        # if the log was closed cleanly, the loader compares the checksums
        batch = _batch_at(file, position, is_checked=not is_clean)
        if batch is None or batch.base_offset != offset or not epoch <= batch.leader_epoch <= last_epoch:
            break
        position, offset, epoch = position + batch.size_bytes, batch.last_offset + 1, batch.leader_epoch
    if position == file.size_bytes:
        return position
    found = "other bytes"
    if batch is not None:
        found = f"one of offset {batch.base_offset} and leader epoch {batch.leader_epoch}"
    if is_clean:
        reason = "the log was closed in order"
    elif batch is not None:
        reason = "the checksum is correct"
    else:
        following = file.next_valid(position + 1, offset, MAX_OFFSET)
        if following is None:
            return position
        reason = f"a sound batch follows at byte {following.position}"
    raise corrupt(
        f"{file.path.name}: expected a batch of offset {offset} and a leader epoch of {epoch} to {last_epoch} at byte "
        f"{position}, found {found}; this is not the tail of a crash, since {reason}"
    )


def _batch_at(file: BatchFile, position: int, *, is_checked: bool) -> Batch | None:
    """Return the batch at a position, even one with impossible offsets; None if there is none."""
    batch: Batch | None
    try:
        batch = file.batch_at(position, is_checked=is_checked)
    except DamagedBatch as damage:
        batch = damage.batch
    if batch is None or not batch.is_valid or not 0 <= batch.last_offset_delta == batch.record_count - 1:
        return None
    return batch
