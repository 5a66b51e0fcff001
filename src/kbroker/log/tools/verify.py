"""Verification of every file of a log folder, with the removal of damaged bytes on request.

The broker itself cuts only a torn tail after an unclean stop; records after damage anywhere else are refused
until ``verify(path, repair=True)`` has repaired the folder of the stopped broker.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kbroker.common.errors import UserError
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.common.units import counted
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log.folder_lock import FolderLock
from kbroker.log.log_dir import is_data_folder
from kbroker.log.tools import aborted, gaps
from kbroker.log.tools.batch_file import MAX_OFFSET, Batch, BatchFile, DamagedBatch
from kbroker.log.tools.dump import Row, dump_file

SEGMENT = re.compile(r"[0-9]{20}\.log\Z")
PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)\Z")


@dataclass(frozen=True)
class Finding:
    """Damaged bytes of a file, or the folder of a partition whose segments are missing.

    ``position`` and ``size_bytes``: their range; ``offset``: the first offset that may be missing (-1 in a file without
    records); ``is_torn_tail``: the end of the last segment, which the broker truncates itself; ``repair``: the repair
    that was made, "" for none.
    """

    path: Path
    position: int
    size_bytes: int
    offset: int
    problem: str
    is_torn_tail: bool = False
    repair: str = ""


class IndexEntries(NamedTuple):
    """Content of an index file: the largest offset and position of its entries, and its own fault, "" for none."""

    path: Path
    largest_offset: int
    largest_position: int
    problem: str = ""


def verify(path: str | Path, repair: bool = False) -> list[Finding]:
    """Check a log folder, or one partition's folder in it, and return the damage.

    With ``repair`` damaged bytes are cut out of segments (and kept as ``<segment>.<position>.damaged`` files), the
    segment's indexes are removed and rebuilt by the next start, and damaged snapshots, indexes and checkpoints are
    removed. All undamaged batches stay, even those after the damage. An empty batch, like those of compaction, replaces
    missing offsets, so that none is used again; partitions that were compacted may have gaps between batches. The
    metadata log is not repaired.

    Raises: NotADirectoryError; UserError, for a folder of another kind; FolderLockedError, when a broker uses the
    folder and ``repair`` is set; OSError.
    """
    folder = Path(os.path.abspath(path))  # the name, and the data folder above it, of the current folder
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    is_partition = any(SEGMENT.match(name) or name == checkpoints.PARTITION_METADATA for name in os.listdir(folder))
    if not is_partition and not is_data_folder(folder):
        message = f"found no log and no {checkpoints.META_PROPERTIES}"
        raise UserError(f"{folder}: expected a data folder or that of a partition, {message}")
    if repair and is_partition and PARTITION.match(folder.name) is None:
        raise UserError(f"{folder}: expected the name of a partition, TOPIC-NUMBER; give the folder its former name")
    lock = FolderLock(folder.parent if is_partition else folder) if repair else None
    try:
        partitions = [folder] if is_partition else sorted(p for p in folder.iterdir() if _is_partition(p))
        findings = [] if is_partition else list(_verify_state_files(folder, repair))
        for partition in partitions:
            findings += _repair(partition) if repair else _check(partition)
        return findings
    finally:
        if lock is not None:
            lock.release()


def _check(partition: Path, attempts: int = 10) -> list[Finding]:
    """Check a partition, again if a file was deleted: a broker may remove segments or the partition meanwhile.

    Raises: FileNotFoundError after ``attempts``; OSError.
    """
    while partition.is_dir():
        attempts -= 1
        try:
            return _verify_partition(partition, repair=False) or _verify_offsets(partition, repair=False)
        except FileNotFoundError:
            if attempts == 0:
                raise
    return []


def _repair(partition: Path) -> list[Finding]:
    # metadata without some of its records would be another cluster's: its log is recovered, not repaired
    if partition.name == f"{CLUSTER_METADATA_TOPIC}-0":
        return _check(partition)
    is_changed = True  # unless all was checked: a failure may follow the repair of a segment
    try:
        found = _verify_partition(partition, repair=True) + _verify_offsets(partition, repair=True)
        is_changed = any(f.repair for f in found)
    finally:
        if is_changed:
            _recover_at_next_start(partition)
    return found


def _is_partition(path: Path) -> bool:
    return path.is_dir() and PARTITION.match(path.name) is not None


def _verify_state_files(folder: Path, repair: bool) -> Iterator[Finding]:
    """Check the state files. A damaged checkpoint can be removed, since the logs replace it; meta.properties cannot."""
    for name in checkpoints.OFFSET_CHECKPOINTS:
        path = folder / name
        if path.exists():
            try:
                checkpoints.offset_checkpoint(path).read()
            except checkpoints.CorruptFileError as e:
                yield _damaged_file(path, str(e), repair)
    try:
        checkpoints.read_meta_properties(folder)
    except checkpoints.CorruptFileError as e:
        yield _damaged_file(folder / checkpoints.META_PROPERTIES, str(e), repair=False)


def _damaged_file(path: Path, problem: str, repair: bool) -> Finding:
    finding = Finding(path, 0, path.stat().st_size, -1, problem)
    if not repair:
        return finding
    path.unlink()
    checkpoints.sync_folder(path.parent)
    return replace(finding, repair="removed")


def _verify_partition(folder: Path, repair: bool) -> list[Finding]:
    segments = sorted(p for p in folder.iterdir() if SEGMENT.match(p.name))
    findings = [] if segments else _lost_segments(folder)
    for i, segment in enumerate(segments):
        limit = int(segments[i + 1].stem) - 1 if i + 1 < len(segments) else MAX_OFFSET
        indexes = _read_indexes(segment)
        damaged, next_offset = _verify_segment(segment, limit)
        if damaged and repair:
            damaged = _cut(segment, damaged)
        findings += damaged
        if not damaged:
            findings += _verify_indexes(segment, indexes, next_offset, repair)
    for snapshot in sorted(folder.glob("*.snapshot")):
        findings += [_damaged_file(snapshot, row["message"], repair) for row in dump_file(snapshot) if _bad(row)]
    for name in (checkpoints.LEADER_EPOCH_CHECKPOINT, checkpoints.PARTITION_METADATA):
        path = folder / name
        if path.exists():
            try:
                list(dump_file(path))
            except checkpoints.CorruptFileError as e:
                findings.append(_damaged_file(path, str(e), repair))
    return findings if findings else _verify_transactions(segments, repair)


def _lost_segments(folder: Path) -> list[Finding]:
    """Return a finding if a partition without segments had records, by the checkpoints of its data folder."""
    end = _known_end(folder)
    way_out = "restore them from a copy, as no repair can; otherwise the next start begins an empty log"
    problem = f"expected segments with the records before offset {end}, found none; {way_out}"
    return [Finding(folder, 0, 0, 0, problem)] if end > 0 else []


def _known_end(folder: Path) -> int:
    """Return the offset up to which a partition had records by the checkpoints of its data folder."""
    name = PARTITION.match(folder.name)
    end = 0
    for file in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        with suppress(checkpoints.CorruptFileError):  # reported with the other checkpoints
            offsets = checkpoints.offset_checkpoint(folder.parent / file).read()
            end = max(end, offsets.get((name["topic"], int(name["partition"])), 0) if name is not None else 0)
    return end


def _verify_transactions(segments: Sequence[Path], repair: bool) -> list[Finding]:
    """Report transaction indexes that disagree with the batches; the next start rebuilds them."""
    text = "the next start rebuilds it" if repair else ""
    return [
        Finding(fault.segment.with_suffix(".txnindex"), 0, 0, fault.offset, fault.problem, repair=text)
        for fault in aborted.faults(segments)
    ]


def _verify_offsets(folder: Path, repair: bool) -> list[Finding]:
    """Return, and if ``repair`` fill, the gaps; in a partition that was compacted, only that after its last batch."""
    name = PARTITION.match(folder.name)
    cleaned = checkpoints.offset_checkpoint(folder.parent / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    try:
        was_compacted = name is None or (name["topic"], int(name["partition"])) in cleaned.read()
    except checkpoints.CorruptFileError:  # reported with the other checkpoints
        was_compacted = True
    findings = []
    end = _known_end(folder)  # read first: a broker may append meanwhile
    for segment, every in gaps.find_gaps(sorted(p for p in folder.iterdir() if SEGMENT.match(p.name)), end):
        found = [gap for gap in every if gap.is_tail] if was_compacted else every
        done = False
        if repair and found:
            for suffix in (".index", ".timeindex"):
                segment.with_suffix(suffix).unlink(missing_ok=True)
            done = gaps.fill_gaps(segment, found)
        for gap in found:
            problem = f"offsets {gap.first_offset} to {gap.last_offset} are missing"
            text = "an empty batch fills the gap" if done else ""
            findings.append(Finding(segment, gap.position, 0, gap.first_offset, problem, repair=text))
    return findings


def _recover_at_next_start(partition: Path) -> None:
    """Make the next start rebuild indexes, producer state and transaction indexes from all batches."""
    name = PARTITION.match(partition.name)
    assert name is not None
    (partition.parent / clean_shutdown.FILE_NAME).unlink(missing_ok=True)
    checkpoint = checkpoints.offset_checkpoint(partition.parent / checkpoints.RECOVERY_POINT_CHECKPOINT)
    offsets = checkpoint.read()
    if offsets.pop((name["topic"], int(name["partition"])), None) is not None:
        checkpoint.write(offsets)
    for path in (*partition.glob("*.snapshot"), partition / checkpoints.TXN_INDEX_CHECKPOINT):
        path.unlink(missing_ok=True)
    checkpoints.sync_folder(partition)


def _bad(row: Row) -> bool:
    return bool(row["kind"] == "damage")


def _verify_segment(path: Path, limit: int) -> tuple[list[Finding], int]:
    """Return the damage, and the offset after the last sound batch, which ends at or below ``limit``."""
    findings: list[Finding] = []
    next_offset, position = int(path.stem), 0
    highest = min(limit, next_offset + gaps.MAX_DELTA)  # no checksum covers the base offset of a batch
    with closing(BatchFile(path)) as file:
        while position < file.size_bytes:
            fault, batch = _judge(file, position, next_offset, highest)
            if batch is not None:
                next_offset, position = batch.last_offset + 1, position + batch.size_bytes
                continue
            good = file.next_valid(position + 1, next_offset, highest)
            end = good.position if good is not None else file.size_bytes
            torn = good is None and limit == MAX_OFFSET
            findings.append(Finding(path, position, end - position, next_offset, fault, torn))
            position = end
    return findings, next_offset


def _judge(file: BatchFile, position: int, next_offset: int, limit: int) -> tuple[str, Batch | None]:
    try:
        batch = file.batch_at(position)
    except DamagedBatch as e:
        return str(e), None
    if not batch.is_valid:
        return "the checksum does not match", None
    if not next_offset <= batch.base_offset <= batch.last_offset <= limit:
        return f"offsets {batch.base_offset} to {batch.last_offset} are not in {next_offset} to {limit}", None
    return "", batch


def _read_indexes(segment: Path) -> list[IndexEntries]:
    """Read the indexes of a segment, before the segment: a broker may append to both, to the segment first."""
    paths = [segment.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex")]
    return [_read_index(path, int(segment.stem)) for path in paths if path.exists()]


def _read_index(path: Path, base: int) -> IndexEntries:
    """Check that the entries of an index rise; return the largest offset and position before the first fault."""
    last: Row = {}
    largest_offset, largest_position = base, -1
    for row in dump_file(path):
        if _bad(row):
            return IndexEntries(path, largest_offset, largest_position, str(row["message"]))
        offset = row["lastOffset"] if row["kind"] == "txn_index" else row["offset"]
        problem = "" if offset >= base else f"offset {offset} is before the segment's first, {base}"
        for rising in {"offset_index": ("offset", "position"), "time_index": ("timestamp",)}.get(row["kind"], ()):
            if not problem and last and row[rising] <= last[rising]:
                problem = f"{rising} {row[rising]} after {last[rising]}"
        if problem:
            return IndexEntries(path, largest_offset, largest_position, problem)
        largest_offset = max(largest_offset, offset)
        largest_position = max(largest_position, row.get("position", -1))
        last = row
    return IndexEntries(path, largest_offset, largest_position)


def _verify_indexes(
    segment: Path, indexes: Sequence[IndexEntries], next_offset: int, repair: bool
) -> Iterator[Finding]:
    """Check that indexes rise and point into the segment; a damaged one is removed, and rebuilt by the next start."""
    base, size_bytes = int(segment.stem), segment.stat().st_size
    for index in indexes:
        problem = index.problem
        if index.largest_offset >= max(next_offset, base + 1):
            problem = f"offset {index.largest_offset} is not in the segment ({base} to {next_offset - 1})"
        elif index.largest_position >= size_bytes:
            problem = f"position {index.largest_position} is past the segment's {size_bytes} bytes"
        if problem:
            yield _damaged_file(index.path, problem, repair)


def _cut(segment: Path, findings: list[Finding]) -> list[Finding]:
    """Remove the indexes, then rewrite the segment atomically without the damage; return the findings as repaired."""
    for suffix in (".index", ".timeindex"):
        segment.with_suffix(suffix).unlink(missing_ok=True)
    checkpoints.write_atomically(segment, _without(segment, findings))
    return [replace(f, repair=f"cut {counted(f.size_bytes, 'byte')}") for f in findings]


def _without(segment: Path, findings: list[Finding]) -> Iterator[bytes]:
    """Yield the content of a segment without its damaged bytes, which are written to files next to it."""
    with segment.open("rb") as source:
        at = 0
        for f in findings:
            yield from gaps.pieces(source, f.position - at)
            with segment.with_name(f"{segment.name}.{f.position}.damaged").open("wb") as aside:
                aside.writelines(gaps.pieces(source, f.size_bytes))
                aside.flush()
                checkpoints.sync_descriptor(aside.fileno())
            at = f.position + f.size_bytes
        yield from gaps.pieces(source)
