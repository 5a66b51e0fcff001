"""Aborted transactions that their segment's index does not know: readers would take their records for committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from kbroker.log.tools.batch_file import Batch, BatchFile, DamagedBatch
from kbroker.log.tools.dump import dump_file
from kbroker.protocol._records import batch_at

ABORT = b"\0\0"  # control type, behind the key's version


class Unindexed(NamedTuple):
    """A transaction of ``producer_id`` from ``first_offset`` to its marker at ``last_offset``, in ``segment``."""

    segment: Path
    producer_id: int
    first_offset: int
    last_offset: int


def unindexed(segments: Sequence[Path]) -> Iterator[Unindexed]:
    """Walk a partition's batches and yield what is missing in its .txnindex files; up to the first damaged batch."""
    open_since: dict[int, int] = {}
    for segment in segments:
        known = _indexed(segment.with_suffix(".txnindex"))
        with closing(BatchFile(segment)) as file:
            try:
                for batch in file.batches():
                    if not batch.is_transactional or batch.producer_id < 0:
                        continue
                    if not batch.is_control:
                        if batch.record_count > 0:  # compaction keeps a producer's last batch without its records
                            open_since.setdefault(batch.producer_id, batch.base_offset)
                        continue
                    first = open_since.pop(batch.producer_id, None)
                    place = (batch.producer_id, batch.base_offset)
                    if first is not None and place not in known and _is_abort(file, batch):
                        yield Unindexed(segment, batch.producer_id, first, batch.base_offset)
            except DamagedBatch:
                return


def _indexed(path: Path) -> set[tuple[int, int]]:
    """Producer and marker of each entry."""
    if not path.exists():
        return set()
    return {(row["producerId"], row["lastOffset"]) for row in dump_file(path) if row["kind"] == "txn_index"}


def _is_abort(file: BatchFile, batch: Batch) -> bool:
    if not batch.is_valid or batch.record_count == 0:
        return False
    parsed = batch_at(file.data[batch.position : batch.position + batch.size_bytes])
    return parsed is not None and any((row[2] or b"")[2:4] == ABORT for row in parsed.records())
