"""End of the driver in each phase of a batch and of a compaction: after the restart each row exists once.

The end is a failure in one session, or `kill -9` of a process, which takes a JVM per phase.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.delta_table import Table
from kbroker.spark.tables.file_writer import PREFIX
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.day import START_US, make_day
from tests.spark.killing import kill_ingest
from tests.spark.row_keys import KEY, keys_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: In the order of a run, so that each restart has unfinished work of a run before. The first two end batch 0 before its
#: commit, the next ones after the table's commit and before Spark's.
PHASES = ("written", "rejected", "committed", "compacted", "done")


def end_in_each_phase(folder: Path, run: Callable[[Path, Path, int, str], None]) -> None:
    """Call run(logs, table, bytes per batch, phase to end in) for each phase and once to the end; check the rows."""
    day = make_day(1_000)
    lines = [(line, row) for line, row in zip(day.lines(), day.rows.select(KEY).to_pylist(), strict=True)]
    early = [pair for pair in lines if pair[1]["time"].hour < 2]
    closing = next(pair for pair in lines if pair[1]["time"].hour == 12)
    rest = early[1::2]  # two batches over the same hours; the last rows arrive when these are compacted
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
    for phase in PHASES:
        run(logs, table, budget, phase)
        seen = keys_in(table)
        assert seen <= known(2), f"a row was doubled by an end at {phase}"
        if phase in PHASES[2:]:
            assert seen >= known(1), f"a row of a committed batch was lost by an end at {phase}"
        else:
            assert not seen, f"a batch was seen before its commit, at {phase}"
    put(2)
    run(logs, table, budget, "")
    assert keys_in(table) == known(3)
    assert sum(file.read_text().count("\n") for file in (table / "_rejected").glob("*.jsonl")) == 1
    files = Table(table).files()
    assert [sum(one.rows for one in files if one.hour == hour) for hour in (0, 1, 12)] == [
        sum(row[0].hour == hour for row in known(3).elements()) for hour in (0, 1, 12)
    ]
    assert any(not one.path.rpartition("/")[2].startswith(PREFIX) for one in files)  # the first hours were compacted
    Table(table).delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    present = {file.relative_to(table).as_posix() for file in table.glob("date=*/hour=*/bucket=*/*.parquet")}
    assert present == {one.path for one in files}  # files left by killed runs can be distinguished from the others
    assert keys_in(table) == known(3)


def fail_in(spark: SparkSession, logs: Path, table: Path, budget: int, phase: str) -> None:
    """Ingest up to a failure in a phase without clean-up, which leaves the files of a kill."""

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


@pytest.mark.slow
def test_no_end_loses_or_doubles_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are exact after a failure in each phase, and after `kill -9` between the table's commit and Spark's."""

    def run(logs: Path, table: Path, budget: int, phase: str) -> None:
        if phase == "committed":
            assert kill_ingest(logs, table, budget, phase) == -signal.SIGKILL
        else:
            fail_in(spark, logs, table, budget, phase)

    end_in_each_phase(tmp_path, run)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_kill_loses_or_doubles_a_row(tmp_path: Path) -> None:
    def run(logs: Path, table: Path, budget: int, phase: str) -> None:
        assert kill_ingest(logs, table, budget, phase) == (-signal.SIGKILL if phase else 0)

    end_in_each_phase(tmp_path, run)
