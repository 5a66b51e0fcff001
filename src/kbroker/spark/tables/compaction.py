"""Keep a table's files few: an hour that is closed, or has too many files, is rewritten to one sorted file per bucket.

A new generation is staged, renamed, and then named by the hour's manifest; the files it replaces stay for a grace time,
because a reader may have them open. Only under the table's lock.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kbroker.spark.tables.manifest import DataFile, Hour, Retired, Table, TableInfo
from kbroker.spark.tables.table import publish, read_files, stage
from kbroker.spark.tables.table_layout import Compacted, PhaseCallback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_FILES = 64  # of a bucket in an open hour
LATE_FILES = 4  # of a bucket in an hour that was compacted before: late records come a few at a time
HOURS_AT_ONCE = 24


def compact(
    spark: SparkSession,
    table: Table,
    info: TableInfo,
    *,
    closed_before_us: int,
    now_ms: int,
    grace_ms: int,
    hours: Iterable[tuple[str, int]] | None = None,
    everything: bool = False,
    at: PhaseCallback | None = None,
) -> Compacted:
    """Rewrite what needs it, and delete what was replaced longer than `grace_ms` ago.

    Args: `closed_before_us`: hours that end by then (microseconds since 1970) get no more rows but late ones; `now_ms`:
    since 1970; `hours`: look at these only; `everything`: rewrite each bucket with more than one file; `at`: called
    with the phases compact staged, compact renamed, compact manifest.
    """
    reached = at or (lambda phase: None)
    found = [table.hour(*key) for key in sorted(set(hours))] if hours is not None else list(table.hours())
    done = Compacted()
    due = [(hour, due_buckets(hour, closed_before_us, everything=everything)) for hour in found]
    wanted = [(hour, buckets) for hour, buckets in due if buckets]
    for start in range(0, len(wanted), HOURS_AT_ONCE):
        done += _rewrite(spark, table, info, wanted[start : start + HOURS_AT_ONCE], now_ms, reached)
    for key in [hour.key for hour in found]:
        hour = table.hour(*key)
        left = table.drop_retired(hour, now_ms, grace_ms)
        done += Compacted(deleted=len(hour.retired) - len(left.retired))
    return done


def due_buckets(hour: Hour, closed_before_us: int, *, everything: bool = False) -> set[int]:
    """The buckets of an hour whose files shall become one."""
    limit = MAX_FILES
    if everything:
        limit = 1
    elif hour.end_us <= closed_before_us:
        limit = LATE_FILES if hour.compacted_through >= 0 else 1
    return {bucket for bucket, files in Counter(file.bucket for file in hour.files).items() if files > limit}


def _rewrite(
    spark: SparkSession,
    table: Table,
    info: TableInfo,
    wanted: Sequence[tuple[Hour, set[int]]],
    now_ms: int,
    reached: PhaseCallback,
) -> Compacted:
    old: dict[tuple[str, int], list[DataFile]] = {
        hour.key: [file for file in hour.files if file.bucket in buckets] for hour, buckets in wanted
    }
    files = [str(table.path / file.path) for found in old.values() for file in found]
    staged = stage(read_files(spark, table, info, files), table, info, f"compact-{uuid.uuid4().hex[:8]}")
    reached("compact staged")
    done = Compacted()
    for hour, buckets in wanted:
        through = max(file.batch for file in hour.files)
        generation = hour.generation + 1
        folder = staged / f"date={hour.date}" / f"hour={hour.hour}"
        new = publish(table, staged, max(through, hour.compacted_through), generation, only=folder)[hour.key]
        reached("compact renamed")
        if sum(file.rows for file in new) != sum(file.rows for file in old[hour.key]):
            raise RuntimeError(f"compaction of {hour.date} {hour.hour:02d} would change the number of its rows")
        retired = [Retired(file.path, now_ms) for file in old[hour.key]]
        table.store(
            replace(
                hour,
                generation=generation,
                compacted_through=max(through, hour.compacted_through),
                files=(*(file for file in hour.files if file.bucket not in buckets), *new),
                retired=(*hour.retired, *retired),
            )
        )
        reached("compact manifest")
        done += Compacted(1, len(old[hour.key]), len(new), sum(file.rows for file in new))
    shutil.rmtree(staged)
    return done
