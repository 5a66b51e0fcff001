"""Compaction of a table: each bucket of an hour that is closed, or has too many files, becomes one file.

Rows are sorted by entity again, so that a replay reads them sequentially. Other writers continue: a compaction
changes no row, and if two rewrite the same files, one ends without a change. Replaced files stay, for readers that have
them open and for earlier versions, until they are vacuumed.

delta-rs' own optimize is not used: if two run on the same files (1.6.6), both commit, and every row is duplicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.formatting import Progress, silent
from kbroker.spark.tables.delta_table import DataFile, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.file_writer import PREFIX, write_table_file
from kbroker.spark.tables.table_layout import ORDER, Compacted
from kbroker.spark.tables.table_place import TableName, TablePlace

MAX_FILES = 64  # maximum number of new files of a bucket in an open hour
LATE_FILES = 4  # the same in an hour that was compacted before: late records come a few at a time
HOUR_MS = 3_600_000
RETENTION_MS = 7 * 24 * HOUR_MS
SHORTEST_RETENTION_MS = 24 * HOUR_MS  # files of uncommitted batches are in no version
MAX_ROWS = 1_000_000  # maximum number of rows rewritten together, in memory: about 300 bytes each in a request log
MAX_BYTES = 512 << 20  # maximum of their sizes in memory, unless one file is larger; Arrow cannot sort texts of 2 GiB
REWRITES_AT_ONCE = 2
COMMIT_FILES = 2_000  # minimum number of files that one version replaces: versions of large tables are slow to write

Place = tuple[str, int, int]  # date, hour, bucket


def due_places(
    places: Mapping[Place, Sequence[DataFile]], closed_before_us: int, *, everything: bool = False
) -> set[Place]:
    """Return the buckets of hours to compact.

    Args: `closed_before_us`: hours that end by then (microseconds since 1970) only get late rows;
    `everything`: each bucket with more than one file.
    """
    due = set()
    for place, files in places.items():
        new = sum(one.path.rpartition("/")[2].startswith(PREFIX) for one in files)
        has_old = new < len(files)
        limit = MAX_FILES
        if everything:
            limit = 0 if has_old else 1
        elif files[0].end_us <= closed_before_us:
            limit = LATE_FILES if has_old else 1
        if new > limit:
            due.add(place)
    return due


def compact(
    table: Table,
    closed_before_us: int,
    now_ms: int,
    *,
    everything: bool = False,
    rewritten: Callable[[int, int], object] = lambda files, all_files: None,
) -> Compacted:
    """Rewrite the buckets that are due.

    Args: `now_ms`: by the system's clock, which delta-rs also uses; `rewritten`: called with the number of files
    rewritten so far, and the total; others as `due_places`.

    An hour is committed in one version of the table, with others if it has few files. Files that another compaction has
    rewritten meanwhile are skipped.

    Raises: RuntimeError if it would change the number of rows.
    """
    table.refresh()
    kind = table.info().kind
    files: dict[Place, list[DataFile]] = {}
    for one in table.files():
        files.setdefault((one.date, one.hour, one.bucket), []).append(one)
    due: dict[tuple[str, int], list[list[DataFile]]] = {}
    for place in sorted(due_places(files, closed_before_us, everything=everything)):
        due.setdefault(place[:2], []).extend(_groups(files[place]))
    hours = [groups for groups in due.values() if groups]
    all_files, so_far = sum(len(group) for groups in hours for group in groups), 0
    done, waiting = Compacted(), _Rewritten([], [])
    with ThreadPoolExecutor(REWRITES_AT_ONCE) as pool:
        for groups in hours:
            new: list[DataFile] = []
            for made, group in zip(pool.map(lambda group: rewrite(table.place, kind, group, now_ms), groups), groups,
                                  strict=True):  # fmt: skip
                new += made
                so_far += len(group)
                rewritten(so_far, all_files)
            old = [one for group in groups for one in group]
            if sum(one.rows for one in new) != sum(one.rows for one in old):
                raise RuntimeError(f"a compaction of {table} would change the number of its rows")
            waiting = _Rewritten([*waiting.old, old], [*waiting.new, new])
            if sum(map(len, waiting.old)) >= COMMIT_FILES:
                done += _commit(table, waiting, now_ms)
                waiting = _Rewritten([], [])
    return done + _commit(table, waiting, now_ms)


class _Rewritten(NamedTuple):
    """Files of hours, and their replacements."""

    old: list[list[DataFile]]
    new: list[list[DataFile]]


def _commit(table: Table, hours: _Rewritten, now_ms: int) -> Compacted:
    """Commit several hours in one version; if another compaction has rewritten some of them, in one version each."""
    if not hours.old:
        return Compacted()
    old, new = ([one for files in some for one in files] for some in hours)
    if table.commit(new, replaced=old, now_ms=now_ms):
        return Compacted(len(hours.old), len(old), len(new))
    done = Compacted()
    if len(hours.old) > 1:
        for one_old, one_new in zip(*hours, strict=True):
            done += _commit(table, _Rewritten([one_old], [one_new]), now_ms)
    return done


def _groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return groups of two or more files to merge: all of a place, or as many as fit into memory."""
    groups: list[list[DataFile]] = [[]]
    rows = 0
    for one in files:
        if groups[-1] and rows + one.rows > MAX_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(one)
        rows += one.rows
    return [group for group in groups if len(group) > 1]


def rewrite(place: TablePlace, kind: str, files: Sequence[DataFile], now_ms: int) -> list[DataFile]:
    """Merge files of the same hour and bucket into one sorted file, or several of about MAX_BYTES in memory.

    They are not yet part of the table.
    """
    found: list[DataFile] = []
    parts: list[pa.Table] = []
    for one in files:
        rows = read_columns(place, [one.path], None)
        if parts and rows.nbytes + sum(part.nbytes for part in parts) > MAX_BYTES:
            found.append(_merged(place, kind, files[0], parts, now_ms))
            parts = []
        parts.append(rows)
    return [*found, _merged(place, kind, files[0], parts, now_ms)]


def _merged(place: TablePlace, kind: str, like: DataFile, parts: Sequence[pa.Table], now_ms: int) -> DataFile:
    rows = pa.concat_tables(parts, promote_options="permissive")
    if len(parts) > 1:  # the rows of one file are in order
        rows = rows.sort_by([(name, "ascending") for name in ORDER[kind] if name in rows.column_names])
    return write_table_file(place, kind, like, rows, now_ms)


def require_retention(retention_ms: int, *, short: bool) -> None:
    """Refuse a retention so short that another job's files may still be uncommitted. Args: `short`: allow it.

    Raises: PipelineError.
    """
    if retention_ms < SHORTEST_RETENTION_MS and not short:
        raise PipelineError(
            f"a retention of {retention_ms / HOUR_MS:g} hours could delete files that another job is about to "
            f"commit or has open: expected at least {SHORTEST_RETENTION_MS // HOUR_MS} hours, or --short-retention "
            "while no other job uses the table"
        )


def vacuum(table: Table, retention_ms: int, *, everything: bool = False) -> int:
    """Delete files that no version of the last `retention_ms` has; return their number.

    Args: `everything`: also delete files that no version ever had, which a killed writer leaves. This lists the whole
    table, and no writer may take longer than `retention_ms` from its first file to its commit.
    """
    hours = -(-retention_ms // HOUR_MS)
    deleted = table.delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=everything)
    table.refresh()
    return len(deleted)


def compact_table(
    table: TableName,
    *,
    retention_ms: int = RETENTION_MS,
    short_retention: bool = False,
    progress: Progress = silent,
    rewritten: Callable[[int, int], object] = lambda files, all_files: None,
) -> Compacted:
    """Rewrite each hour of a table to one file per bucket, open or not, and delete files older than `retention_ms`.

    Args: `rewritten`: as `compact`.

    Others may write the table meanwhile, unless `short_retention` allows less than SHORTEST_RETENTION_MS. Needs no
    Spark. Raises: TableError if the place is not a table; PipelineError for a retention that is too short.
    """
    require_retention(retention_ms, short=short_retention)
    found = Table(table)
    found.info()
    done = compact(found, 0, SystemClock().wall_ms(), everything=True, rewritten=rewritten)
    progress(done.line())
    return done + Compacted(deleted=vacuum(found, retention_ms, everything=True))
