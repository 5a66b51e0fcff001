"""Keep a table's files few: buckets of an hour that is closed, or has too many files, become one file.

Rows are sorted by their entity again, so that what replay reads one after the other lies together. Other writers go on
meanwhile: a compaction changes no row, and of two that rewrite the same files one gives up. Replaced files stay, for
readers that have them open and for earlier versions, until they are vacuumed.

delta-rs' own optimize is not used: of two at once on the same files (1.6.6) both commit, and every row is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.formatting import Progress, silent
from kbroker.spark.tables.delta_table import DataFile, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.file_writer import PREFIX, write_table_file
from kbroker.spark.tables.table_layout import ORDER, Compacted
from kbroker.spark.tables.table_place import TableName, TablePlace

MAX_FILES = 64  # of a bucket in an open hour
LATE_FILES = 4  # of a bucket in an hour that was compacted before: late records come a few at a time
HOUR_MS = 3_600_000
RETENTION_MS = 7 * 24 * HOUR_MS
SHORTEST_RETENTION_MS = 24 * HOUR_MS  # a writer's files are in no version until its batch is committed
MAX_ROWS = 1_000_000  # that are rewritten together, in memory: some 300 bytes each
REWRITES_AT_ONCE = 2
COMMIT_FILES = 2_000  # replaced by one version, at least: of a table with many files each takes its time

Place = tuple[str, int, int]  # date, hour, bucket


def due_places(
    places: Mapping[Place, Sequence[DataFile]], closed_before_us: int, *, everything: bool = False
) -> set[Place]:
    """The buckets of hours whose files shall become one.

    Args: `closed_before_us`: hours that end by then (microseconds since 1970) get no more rows but late ones;
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
    """Rewrite what needs it.

    Args: `now_ms`: by the system's clock, as delta-rs knows no other; `rewritten`: called with the number of files that
    were rewritten so far, and that of all that will be; else as `due_places`.

    An hour is in one version of the table, with others if it has few files. What another compaction has rewritten
    meanwhile is left to it.
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
            new = []
            for one, group in zip(pool.map(lambda group: rewrite(table.place, kind, group, now_ms), groups), groups,
                                  strict=True):  # fmt: skip
                new.append(one)
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
    """Files of hours, and those that shall replace them."""

    old: list[list[DataFile]]
    new: list[list[DataFile]]


def _commit(table: Table, hours: _Rewritten, now_ms: int) -> Compacted:
    """Make one version of several hours; if another compaction has rewritten some of them, one of each."""
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
    """Files that become one: all of a place, or as many as fit into memory."""
    groups: list[list[DataFile]] = [[]]
    rows = 0
    for one in files:
        if groups[-1] and rows + one.rows > MAX_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(one)
        rows += one.rows
    return [group for group in groups if len(group) > 1]


def rewrite(place: TablePlace, kind: str, files: Sequence[DataFile], now_ms: int) -> DataFile:
    """One file with the rows of some of the same hour and bucket, in order; not yet part of the table."""
    rows = read_columns(place, [one.path for one in files], None)
    in_order = rows.sort_by([(name, "ascending") for name in ORDER[kind] if name in rows.column_names])
    return write_table_file(place, kind, files[0], in_order, now_ms)


def require_retention(retention_ms: int, *, short: bool = False) -> None:
    """Refuse a retention in which another job's files may not be committed yet. Args: `short`: it is meant.

    Raises: PipelineError.
    """
    if retention_ms < SHORTEST_RETENTION_MS and not short:
        raise PipelineError(
            f"a retention of {retention_ms / HOUR_MS:g} hours could delete files that another job is about to "
            f"commit or has open: expected {SHORTEST_RETENTION_MS // HOUR_MS} hours at least, or --short-retention "
            "while no other job uses the table"
        )


def vacuum(table: Table, retention_ms: int, *, everything: bool = False) -> int:
    """Delete files that no version of the last `retention_ms` has; how many.

    Args: `everything`: files that no version ever had too, as a killed writer leaves them. It takes a listing of the
    whole table, and a writer must not take longer than `retention_ms` from its first file to its commit.
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
    """Rewrite each hour of a table to one file per bucket, open or not, and delete what is older than `retention_ms`.

    Args: `rewritten`: as `compact`.

    Others may write the table meanwhile, unless `short_retention` allows less than SHORTEST_RETENTION_MS. Needs no
    Spark. Raises: TableError when the place is no table; PipelineError for a retention that is too short.
    """
    require_retention(retention_ms, short=short_retention)
    found = Table(table)
    found.info()
    done = compact(found, 0, SystemClock().wall_ms(), everything=True, rewritten=rewritten)
    progress(done.line())
    return done + Compacted(deleted=vacuum(found, retention_ms, everything=True))
