"""Tables of the layout before Delta: converted where they lie, and the stream that filled them goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kbroker._core.clock import VirtualClock
from kbroker.cli import cli
from kbroker.common.request_log import VERSION
from kbroker.spark.tables.convert import convert_table
from kbroker.spark.tables.delta_table import REQUEST_LOG, Stream, Table, TableError, TableInfo, describe_table
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.committing import BUCKETS, day_of_batches, placed, write
from tests.spark.day import START_US, make_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "6b9a3b9e-0000-4000-8000-000000000000"


def as_old(table: Path, stream: str | None, source: str | None = "files", **of_files: Any) -> None:
    """Give a table the manifests that kbroker wrote before. Args: `of_files`: batch and the like, instead of 0."""
    known = Table(table)
    hours: dict[tuple[str, int], dict[str, Any]] = {}
    for one in known.files():
        hour = hours.setdefault(
            (one.date, one.hour),
            {"date": one.date, "hour": one.hour, "generation": 0, "compacted_through": -1, "files": [], "retired": []},
        )
        number = int(Path(one.path).name.split("-")[1]) if "batch-" in one.path else 0
        hour["files"].append(
            {
                "path": one.path,
                "bucket": one.bucket,
                "batch": number,
                "generation": 0,
                "rows": one.rows,
                "size_bytes": one.size_bytes,
                "min_time_us": one.min_time_us,
                "max_time_us": one.max_time_us,
            }
        )
    info = {
        "kind": REQUEST_LOG,
        "buckets": BUCKETS,
        "schema_version": 1,
        "schema": None,
        "stream": stream,
        "source": source,
        "table_format": "parquet",
        "layout_version": 1,
    }
    for name in ("_delta_log", "_streams"):
        shutil.rmtree(table / name, ignore_errors=True)
    (table / "_manifest").mkdir()
    (table / "_manifest" / "table.json").write_text(json.dumps(info))
    for (date, number), hour in hours.items():
        (table / "_manifest" / f"date={date}-hour={number:02d}.json").write_text(json.dumps(hour))
    (table / "_lock").touch()
    (table / "_staging").mkdir()


def checkpoint(folder: Path, *committed: int) -> None:
    (folder / "commits").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": STREAM}))
    for number in committed:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of the old layout with two batches, and another in its making."""
    path = tmp_path / "table"
    found = Table(path)
    found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    rows = day_of_batches().rows
    for number, part in enumerate((rows.slice(0, 500), rows.slice(500, 300), rows.slice(800))):
        write(found, STREAM, number, placed(part))
    as_old(path, STREAM)
    return path


def test_what_was_committed_is_kept(table: Path) -> None:
    """Files stay where they are; those of the batch that Spark has not committed come again with it."""
    checkpoint(table / "_checkpoint", 0, 1)
    before = {one.relative_to(table).as_posix() for one in table.rglob("*.parquet")}
    with pytest.raises(TableError, match=r"is a table of an older kbroker: run `kbroker pipeline convert "):
        describe_table(table)
    done = CliRunner().invoke(cli, ["pipeline", "convert", str(table), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["converted"]["rows"] == 800
    found = Table(table)
    files = found.files()
    assert sum(one.rows for one in files) == describe_table(table)["rows"] == 800
    assert {one.path for one in files} < before
    assert all(one.min_time_us is not None for one in files)
    assert (found.committed(STREAM), found.streams()) == (1, {STREAM: Stream()})
    assert sorted(one.name for one in table.iterdir() if one.name.startswith("_")) == [
        "_checkpoint", "_delta_log", "_streams",
    ]  # fmt: skip
    with pytest.raises(TableError, match="is no table of an older kbroker"):
        convert_table(table)


def test_a_conversion_that_was_interrupted_is_done_again(table: Path, tmp_path: Path) -> None:
    """After its commit, before the manifests are deleted: no row is doubled. The checkpoint may lie elsewhere."""
    checkpoint(tmp_path / "elsewhere", 0, 1, 2)
    manifest = tmp_path / "kept"
    shutil.copytree(table / "_manifest", manifest)
    for _ in range(2):
        assert convert_table(table, tmp_path / "elsewhere")["rows"] == day_of_batches().rows.num_rows
        shutil.copytree(manifest, table / "_manifest", dirs_exist_ok=True)
    assert convert_table(table, tmp_path / "elsewhere")["rows"] == describe_table(table)["rows"]


def test_what_cannot_be_converted_is_said(table: Path, tmp_path: Path) -> None:
    """Before anything is changed."""
    with pytest.raises(TableError, match=r"_checkpoint is not the checkpoint that filled the table: name it"):
        convert_table(table)
    checkpoint(table / "_checkpoint", 0)
    (table / "_checkpoint" / "metadata").write_text('{"id": "another"}')
    with pytest.raises(TableError, match="is the checkpoint of another stream"):
        convert_table(table)
    (table / "_checkpoint" / "metadata").write_text(json.dumps({"id": STREAM}))
    hour = next(table.glob("_manifest/date=*.json"))
    known = json.loads(hour.read_text())
    hour.write_text(json.dumps({**known, "compacted_through": 1}))
    with pytest.raises(TableError, match="batch 1 was compacted before it was committed"):
        convert_table(table)
    hour.write_text("{")
    with pytest.raises(TableError, match=r"hour=\d\d\.json is damaged"):
        convert_table(table)
    hour.write_text(json.dumps(known))
    (table / known["files"][0]["path"]).unlink()
    with pytest.raises(TableError, match="cannot read"):
        convert_table(table)
    assert Table(table).is_old()
    with pytest.raises(TableError, match="is no table of an older kbroker"):
        convert_table(tmp_path)


def test_the_stream_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """With its own checkpoint: what was read before is there once, what is new is added."""
    day = make_day(1_000)
    lines = list(day.lines())
    log, table = tmp_path / "requests-1.jsonl", tmp_path / "table"
    log.write_text("\n".join(lines[:600]) + "\n")
    source, options = LogSource.of_files(log, format="json"), StreamOptions(buckets=2, watermark_ms=10**9)
    clock = VirtualClock(START_US // 1000 + 48 * 3_600_000)
    assert ingest(spark, source, table, options, clock=clock).rows == 600
    as_old(table, json.loads((table / "_checkpoint" / "metadata").read_text())["id"])
    assert convert_table(table)["rows"] == 600
    with log.open("a") as opened:
        opened.write("\n".join(lines[600:]) + "\n")
    assert ingest(spark, source, table, options, clock=clock).rows == 400
    found = read_table(spark, table).select(*day.rows.column_names).toArrow().to_pylist()
    assert sorted(found, key=str) == sorted(day.rows.to_pylist(), key=str)
