"""`--table-format delta`: the same rows, exactly once, in a table that Delta keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.ingest import ingest
from kbroker.spark.log_reader import LogSource
from kbroker.spark.manifest import TableError, live_files
from kbroker.spark.quota_set import QuotaSet
from kbroker.spark.replay import by_client, replay_table
from kbroker.spark.table import read_table
from kbroker.spark.table_stream import StreamOptions, compact_table
from kbroker.spark.usage import usage
from tests.spark.day import DATE, START_US, Day, make_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 600
OPTIONS = StreamOptions(buckets=2, table_format="delta")
LATER = VirtualClock(START_US // 1000 + 48 * 3_600_000)


@pytest.fixture(scope="module")
def day() -> Day:
    return make_day(ROWS)


@pytest.fixture(scope="module")
def table(delta: SparkSession, day: Day, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The day in two batches, of which the first was written, and its stream ended before Spark had committed it."""
    folder = tmp_path_factory.mktemp("delta")
    logs, path, lines = folder / "logs", folder / "table", list(day.lines())
    logs.mkdir()
    file = logs / "requests-1.jsonl"
    half = "\n".join(["no record", *lines[: ROWS // 2]]) + "\n"
    file.write_text(half)

    def fail(reached: str) -> None:
        raise RuntimeError(f"ended at {reached}")

    with pytest.raises(PipelineError, match="ended at rejected"):
        ingest(delta, LogSource.of_files(logs, format="json"), path, OPTIONS, clock=LATER, at=fail)
    assert read_table(delta, path).count() == ROWS // 2  # it is in the table, and comes again
    file.write_text(half + "\n".join(lines[ROWS // 2 :]) + "\n")
    options = replace(OPTIONS, max_per_batch=len(half))
    ingest(delta, LogSource.of_files(logs, format="json"), path, options, clock=LATER)
    return path


def test_rows_are_there_once(delta: SparkSession, table: Path, day: Day) -> None:
    """A batch that comes again is ignored by Delta; every column is as it was; one day can be asked for."""
    rows = read_table(delta, table)
    keys = ["time", "connection", "correlation_id", "address"]
    order = [(name, "ascending") for name in keys]
    found = rows.select(*day.rows.column_names).toArrow()
    assert found.num_rows == ROWS
    assert found.sort_by(order).equals(day.rows.cast(found.schema).sort_by(order))
    assert read_table(delta, table, ["sequence"], dates=[DATE]).count() == ROWS
    assert read_table(delta, table, ["sequence"], dates=["2020-01-01"]).count() == 0


def test_jobs_read_it(delta: SparkSession, table: Path, day: Day) -> None:
    """Usage, and a replay, which reads files itself where it may."""
    found = {(r.principal, r.client_id): r.requests for r in usage(read_table(delta, table)).collect()}
    assert found == {who: round(sums["requests"]) for who, sums in day.usage.items()}
    quotas = QuotaSet({QuotaEntity.of({"client-id": None}): {"producer_byte_rate": 10.0}})
    after = by_client(replay_table(delta, table, quotas)).collect()
    assert sum(row.requests for row in after) == sum(found.values())
    assert sum(row.delay_ms for row in after) > 0
    with pytest.raises(TableError, match="its files are Delta's own"):
        live_files(table)


def test_compaction_is_deltas(delta: SparkSession, table: Path) -> None:
    """OPTIMIZE: fewer files, the same rows."""
    rows = read_table(delta, table)
    before = len(rows.inputFiles())
    compact_table(delta, table, grace_ms=0, clock=LATER)
    after = read_table(delta, table)
    assert after.count() == ROWS
    assert len(after.inputFiles()) < before


def test_a_table_of_parquet_stays_one(delta: SparkSession, tmp_path: Path, day: Day) -> None:
    """Neither becomes the other."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text(next(iter(day.lines())) + "\n")
    source = LogSource.of_files(log, format="json")
    ingest(delta, source, tmp_path / "t", replace(OPTIONS, table_format="parquet"), clock=LATER)
    with pytest.raises(TableError, match="table format parquet, not delta"):
        ingest(delta, source, tmp_path / "t", OPTIONS, clock=LATER)
