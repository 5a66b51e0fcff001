"""The driver ends in each phase of a batch and of a compaction: after the restart each row is there once.

By a failure at each phase, in one session; and by `kill -9` of a process, which takes a JVM per phase.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from kbroker._core.clock import VirtualClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.manifest import Table
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.day import START_US, make_day
from tests.spark.killing import kill_ingest, wait_for_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: In the order of a run, so that each restart has the work of a run before to take up. The first five meet batch 0;
#: "manifest" is after the first of several; at "done" all is written and Spark has not committed the batch.
PHASES = ("staged", "renamed", "manifest", "rejected", "done", "compact staged", "compact renamed", "compact manifest")
KEY = ["time", "connection", "correlation_id", "address"]


def rows_of(table: Path) -> Counter[tuple[Any, ...]]:
    """Live rows by their distinct values, read without Spark; none of a table that is not there yet."""
    found: Counter[tuple[Any, ...]] = Counter()
    for files in Table(table).live_files().values():
        for file in files:
            found.update(tuple(row.values()) for row in pq.ParquetFile(file).read(KEY).to_pylist())
    return found


def end_in_each_phase(
    folder: Path, run: Callable[[Path, Path, int, str], None], phases: Sequence[str] = PHASES
) -> None:
    """Call run(logs, table, bytes per batch, phase to end in) for each phase and once to the end; check the rows."""
    day = make_day(1_000)
    lines = [(line, row) for line, row in zip(day.lines(), day.rows.select(KEY).to_pylist(), strict=True)]
    early = [pair for pair in lines if pair[1]["time"].hour < 2]
    closing = next(pair for pair in lines if pair[1]["time"].hour == 12)
    rest = early[1::2]  # two batches over the same hours; the last rows come when these are compacted
    parts = [[*early[::2], closing], rest[:-5], rest[-5:]]
    logs, table = folder / "logs", folder / "table"
    logs.mkdir()

    def put(number: int, more: str = "") -> int:
        file = logs / f"requests-{number}.jsonl"
        file.write_text("".join(f"{line}\n" for line, _ in parts[number]) + more)
        os.utime(file, (number, number))
        return file.stat().st_size

    def known(upto: int) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for part in parts[:upto] for _, row in part)

    budget = put(0, "{no record\n")
    put(1)
    for phase in phases:
        run(logs, table, budget, phase)
        seen = rows_of(table)
        assert seen <= known(2), f"a row was doubled by an end at {phase}"
        if phase in ("done", *PHASES[5:]):
            assert seen >= known(1), f"a row of a finished batch was lost by an end at {phase}"
    put(2)
    run(logs, table, budget, "")
    assert rows_of(table) == known(3)
    assert sum(file.read_text().count("\n") for file in (table / "_rejected").glob("*.jsonl")) == 1
    hours = list(Table(table).hours())
    assert [hour.compacted_through >= 0 for hour in hours] == [True, True, False]
    named = {file.path for hour in hours for file in hour.files} | {old.path for hour in hours for old in hour.retired}
    present = {file.relative_to(table).as_posix() for file in table.glob("date=*/hour=*/bucket=*/*.parquet")}
    assert present == named  # what the runs before left behind is deleted
    assert list((table / "_staging").glob("*")) == []


def fail_in(spark: SparkSession, logs: Path, table: Path, budget: int, phase: str) -> None:
    """Nothing after the failure happens, nothing is cleaned up: what a kill leaves, but for the process."""

    def fail(reached: str) -> None:
        if reached == phase:
            raise RuntimeError(f"ended at {phase}")

    options = StreamOptions(buckets=2, max_per_batch=budget)
    clock = VirtualClock(START_US // 1000 + 48 * 3_600_000)
    source = LogSource.of_files(logs, format="json")
    ended = ""
    try:
        ingest(spark, source, table, options, clock=clock, at=fail)
    except (PipelineError, RuntimeError) as error:
        ended = str(error)
    assert (f"ended at {phase}" in ended) if phase else not ended, ended


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_no_failure_loses_or_doubles_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """In every phase."""
    end_in_each_phase(tmp_path, partial(fail_in, spark))


@pytest.mark.slow
def test_a_kill_and_a_failure_lose_and_double_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """The short form of the two soak tests: a kill between two manifests, a failure in the compaction."""

    def run(logs: Path, table: Path, budget: int, phase: str) -> None:
        if phase == "manifest":
            assert kill_ingest(logs, table, budget, phase) == -signal.SIGKILL
            wait_for_jvm(table)
        else:
            fail_in(spark, logs, table, budget, phase)

    end_in_each_phase(tmp_path, run, ("manifest", "compact renamed"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_kill_loses_or_doubles_a_row(tmp_path: Path) -> None:
    def run(logs: Path, table: Path, budget: int, phase: str) -> None:
        assert kill_ingest(logs, table, budget, phase) == (-signal.SIGKILL if phase else 0)

    end_in_each_phase(tmp_path, run)
