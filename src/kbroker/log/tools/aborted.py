"""Comparison of the transaction indexes of a partition with its batches.

A wrong entry exposes aborted records, or hides committed ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from kbroker.log import checkpoints
from kbroker.log.tools.batch_file import Batch, BatchFile, DamagedBatch
from kbroker.log.tools.dump import dump_file
from kbroker.protocol._records import batch_at

ABORT = b"\0\0"  # control type, after the version in the key


class Entry(NamedTuple):
    """An aborted transaction; the fields of an index entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def __str__(self) -> str:
        offsets = f"offsets {self.first_offset} to {self.last_offset}"
        return f"the aborted transaction of producer {self.producer_id}, {offsets},"


class Fault(NamedTuple):
    """An entry of the index of ``segment`` that is missing, wrong, or not backed by a marker."""

    segment: Path
    offset: int
    problem: str


class _Walk:
    """The aborted transactions of a partition's batches, by segment."""

    def __init__(self, segments: Sequence[Path]) -> None:
        self.base = int(segments[0].stem) if segments else 0
        self.is_compacted = False
        self.expected: dict[Path, list[Entry]] = {}
        self.markers: dict[Path, set[tuple[int, int]]] = {}
        self._open_since = self._open_at_start(segments)
        self._next_offset = self.base
        with contextlib.suppress(DamagedBatch):
            for segment in segments:
                self._read(segment)

    @staticmethod
    def _open_at_start(segments: Sequence[Path]) -> dict[int, int]:
        """Return the transactions that a snapshot lists as open where the first segment begins."""
        if not segments or not segments[0].with_suffix(".snapshot").exists():
            return {}
        rows = dump_file(segments[0].with_suffix(".snapshot"))
        return {
            row["producerId"]: row["currentTxnFirstOffset"]
            for row in rows
            if row["kind"] == "producer" and row["currentTxnFirstOffset"] is not None
        }

    def _read(self, segment: Path) -> None:
        expected: list[Entry] = []
        markers: set[tuple[int, int]] = set()
        with closing(BatchFile(segment)) as file:
            for batch in file.batches():
                # compaction leaves gaps between batches, and batches with fewer records than offsets
                if batch.base_offset > self._next_offset or batch.record_count <= batch.last_offset_delta:
                    self.is_compacted = True
                self._next_offset = batch.last_offset + 1
                if not batch.is_transactional or batch.producer_id < 0:
                    continue
                if not batch.is_control:
                    if batch.record_count > 0:  # compaction keeps a producer's last batch without its records
                        self._open_since.setdefault(batch.producer_id, batch.base_offset)
                    continue
                first = self._open_since.pop(batch.producer_id, None)
                if _is_abort(file, batch):
                    markers.add((batch.producer_id, batch.base_offset))
                    if first is not None:
                        stable = min(self._open_since.values(), default=batch.base_offset + 1)
                        expected.append(Entry(batch.producer_id, first, batch.base_offset, stable))
        self.expected[segment] = expected
        self.markers[segment] = markers


def faults(segments: Sequence[Path]) -> Iterator[Fault]:
    """Yield the faults of a partition's .txnindex files, up to the first damaged batch."""
    walk = _Walk(segments)
    covered, sums, _ = checkpoints.read_txn_checkpoint(segments[0].parent) if segments else (0, {}, -1)
    for segment, expected in walk.expected.items():
        found = list(_compare(walk, segment, expected, _entries(segment)))
        base = int(segment.stem)
        is_covered = walk.is_compacted and base < covered and segment != segments[-1]
        if not found and is_covered and checkpoints.txn_index_sum(segment) != sums.get(base, (0, 0)):
            problem = f"the index is not the one that {checkpoints.TXN_INDEX_CHECKPOINT} describes"
            found.append(Fault(segment, base, problem))
        yield from found


def _compare(walk: _Walk, segment: Path, expected: Sequence[Entry], entries: Sequence[Entry]) -> Iterator[Fault]:
    known = {(entry.producer_id, entry.last_offset): entry for entry in entries}
    wanted = {(entry.producer_id, entry.last_offset): entry for entry in expected}
    for place, entry in wanted.items():
        found = known.get(place)
        if found is None:
            yield Fault(segment, entry.first_offset, f"{entry} is not in the index")
        elif not _agrees(walk, found, entry):
            yield Fault(
                segment,
                entry.first_offset,
                f"{entry} last stable offset {entry.last_stable_offset}, is in the index with first offset "
                f"{found.first_offset} and last stable offset {found.last_stable_offset}",
            )
    for place, entry in known.items():
        if place in wanted:
            continue
        if place not in walk.markers[segment]:
            yield Fault(segment, entry.last_offset, f"{entry} is in the index, and the segment has no such marker")
        elif not (walk.is_compacted or 0 <= entry.first_offset < walk.base):
            yield Fault(segment, entry.last_offset, f"{entry} is in the index, and the segment has no such records")


def _agrees(walk: _Walk, found: Entry, expected: Entry) -> bool:
    """Return whether an entry is right, as far as the batches show.

    Compaction and the removal of old segments can remove the beginning of transactions.
    """
    if walk.is_compacted:
        return 0 <= found.first_offset <= expected.first_offset
    return all(
        was == wanted or 0 <= was < walk.base
        for was, wanted in (
            (found.first_offset, expected.first_offset),
            (found.last_stable_offset, expected.last_stable_offset),
        )
    )


def _entries(segment: Path) -> list[Entry]:
    path = segment.with_suffix(".txnindex")
    if not path.exists():
        return []
    return [
        Entry(row["producerId"], row["firstOffset"], row["lastOffset"], row["lastStableOffset"])
        for row in dump_file(path)
        if row["kind"] == "txn_index"
    ]


def _is_abort(file: BatchFile, batch: Batch) -> bool:
    if not batch.is_valid or batch.record_count == 0:
        return False
    parsed = batch_at(file.data[batch.position : batch.position + batch.size_bytes])
    return parsed is not None and any((row[2] or b"")[2:4] == ABORT for row in parsed.records())
