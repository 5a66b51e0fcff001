"""Tables that Delta Lake keeps: the same rows, each once, whatever ends; all jobs read them."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.archive import RecordSchema, archive
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.manifest import DELTA, PARQUET, Table, TableError, live_files
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import Ingested, StreamOptions, compact_table
from kbroker.spark.usage_views.usage import usage
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.replay import by_client, replay_rows, replay_table
from tests.spark.day import DATE, START_US, make_day
from tests.spark.killing import kill_ingest, wait_for_jvm
from tests.spark.test_replay_core import SETS
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = StreamOptions(buckets=2, table_format=DELTA)
HALF = 100
KEY = ["time", "connection", "correlation_id", "address"]
#: In the order of a batch; "counted" is before Delta's commit, "committed" after it and before Spark's.
PHASES = ("counted", "committed", "rejected", "done")


@dataclass
class Log:
    """Two hours of a day: rows, and their lines. The first half is in a folder, with a line that is no record."""

    rows: pa.Table
    lines: list[str]
    folder: Path

    def write_rest(self) -> None:
        (self.folder / "requests-2.jsonl").write_text("\n".join(self.lines[HALF:]) + "\n")

    def keys(self, count: int) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in self.rows.slice(0, count).select(KEY).to_pylist())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    day = make_day(4_000)
    early = [number for number, time in enumerate(day.rows["time"].to_pylist()) if time.hour < 2][: 2 * HALF]
    assert len(early) == 2 * HALF
    lines = list(day.lines())
    found = Log(day.rows.take(early), [lines[number] for number in early], tmp_path / "logs")
    found.folder.mkdir()
    (found.folder / "requests-1.jsonl").write_text("\n".join([*found.lines[:HALF], "{no record"]) + "\n")
    return found


def run(spark: SparkSession, logs: Path, table: Path, **more: Any) -> Ingested:
    clock = VirtualClock(START_US // 1000 + 48 * 3_600_000)
    return ingest(spark, LogSource.of_files(logs, format="json"), table, OPTIONS, clock=clock, **more)


def keys_of(rows: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.select(*KEY).toArrow().to_pylist())


def test_ingest_compact_and_read(delta: SparkSession, log: Log, tmp_path: Path) -> None:
    """In two runs; then every column of every row is there once, before and after its files became fewer."""
    table = tmp_path / "table"
    said: list[str] = []
    assert (run(delta, log.folder, table, progress=said.append).rejected, len(said)) == (1, 1)
    assert said[0].startswith(f"batch 0: {HALF} rows, 1 rejected, ")
    log.write_rest()
    assert run(delta, log.folder, table).rows == HALF
    assert run(delta, log.folder, table).batches == 0
    assert sum(file.read_text().count("\n") for file in (table / "_rejected").iterdir()) == 1
    for _ in range(2):
        rows = read_table(delta, table)
        found = rows.toArrow().select(log.rows.column_names).to_pylist()
        assert sorted(found, key=str) == sorted(log.rows.to_pylist(), key=str)
        done = compact_table(delta, table, grace_ms=0)
    assert (done.files_before, done.files_after) == (0, 0)  # the first time has left nothing to do
    assert delta.sql(f"DESCRIBE HISTORY delta.`{table}`").where("operation = 'OPTIMIZE'").count() == 1
    used, wanted = (sorted(usage(one).collect()) for one in (rows, delta.createDataFrame(log.rows)))
    assert used == wanted
    assert [read_table(delta, table, dates=[date]).count() for date in (DATE, "1999-12-31")] == [2 * HALF, 0]
    quotas = QuotaSet(SETS["mixed"])
    replayed = by_client(replay_table(delta, table, quotas)).collect()
    assert sum(row.requests for row in replayed) > HALF
    assert replayed == by_client(replay_rows(rows, quotas)).collect()
    with pytest.raises(TableError, match="is kept by Delta"):
        live_files(table)
    with pytest.raises(TableError, match="is a table of table format delta, not parquet"):
        ingest(delta, LogSource.of_files(log.folder), table, replace(OPTIONS, table_format=PARQUET))


def test_an_end_in_any_phase_neither_loses_nor_doubles_a_row(delta: SparkSession, log: Log, tmp_path: Path) -> None:
    """Nothing after it happens, nothing is cleaned up; the batch comes again, and is left out if Delta has it."""
    table = tmp_path / "table"
    for phase in PHASES:

        def fail(reached: str, phase: str = phase) -> None:
            if reached == phase:
                raise RuntimeError(f"ended at {phase}")

        with pytest.raises(PipelineError, match=f"ended at {phase}"):
            run(delta, log.folder, table, at=fail)
        rows = read_table(delta, table)
        assert keys_of(rows) == (log.keys(0) if phase == "counted" else log.keys(HALF)), phase
    log.write_rest()
    run(delta, log.folder, table)
    assert keys_of(read_table(delta, table)) == log.keys(2 * HALF)
    assert sum(file.read_text().count("\n") for file in (table / "_rejected").iterdir()) == 1


@pytest.mark.slow
def test_a_kill_neither_loses_nor_doubles_a_row(delta: SparkSession, log: Log, tmp_path: Path) -> None:
    """`kill -9` of the driver between Delta's commit and Spark's."""
    table = tmp_path / "table"
    assert kill_ingest(log.folder, table, 1 << 20, "committed", DELTA) == -signal.SIGKILL
    wait_for_jvm(table)
    assert list((table / "_checkpoint" / "commits").glob("[0-9]*")) == []
    log.write_rest()
    assert run(delta, log.folder, table).batches == 2
    assert keys_of(read_table(delta, table)) == log.keys(2 * HALF)


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as one:
        Admin(one).create_topics([NewTopic("orders", partitions=2)])
        yield one


def test_an_archive_gets_columns(delta: SparkSession, broker: BrokerProcess, cluster: Cluster, tmp_path: Path) -> None:
    """A topic's values as columns; one that is added later is null in old rows, also before there is a new one."""
    table, source = tmp_path / "table", LogSource.of_topic(broker.bootstrap, "orders")

    def send(*values: bytes) -> None:
        with Producer(cluster) as producer:
            for value in values:
                producer.send("orders", value, b"k", partition=0, timestamp_ms=1_767_312_000_000)

    def archived(columns: str) -> int:
        return archive(delta, source, table, RecordSchema(value="json", value_columns=columns), OPTIONS).rows

    assert archived("id bigint") == 0
    assert read_table(delta, table).count() == 0
    send(b'{"id": 1, "new": 5}', b"{nothing")
    assert archived("id bigint") == 1
    send(b'{"id": 2, "new": 7}')
    assert archived("id bigint, new int") == 1
    rows = read_table(delta, table).orderBy("offset").collect()
    assert [(row["partition"], row["offset"], row["value"]["id"], row["value"]["new"]) for row in rows] == [
        (0, 0, 1, None), (0, 2, 2, 7),
    ]  # fmt: skip
    with pytest.raises(TableError, match=r"columns can only be added, and value\.new would be gone"):
        archived("id bigint")


def test_columns_that_the_table_has_not_yet_are_null(delta: SparkSession, log: Log, tmp_path: Path) -> None:
    """A table of an older version, read before a batch of the newer one came."""
    from pyspark.sql.types import LongType

    table = tmp_path / "table"
    run(delta, log.folder, table)
    schema = read_table(delta, table).drop("date", "hour", "bucket").schema.add("later", LongType())
    Table(table).store_info(replace(Table(table).info(), schema=schema.jsonValue()))
    assert read_table(delta, table).where("later is null").count() == HALF


def test_a_session_without_delta_is_refused(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written."""
    monkeypatch.setattr("kbroker.spark.tables.delta._EXTENSION", "one that it lacks")
    with pytest.raises(PipelineError, match=r"has no Delta Lake; start one with build_session\(delta=True\)"):
        run(spark, log.folder, tmp_path / "table")
    assert not Table(tmp_path / "table").exists()
