"""Settings of a session that its user may choose change no result: time zone, ANSI mode, case of names, plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result
from pyspark.sql import functions as F

from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.micro_batches import MicroBatches
from kbroker.spark.session_kind import changed_setting
from kbroker.spark.tables.archive import RecordSchema, parse_records
from kbroker.spark.tables.compaction import compact_table
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource, read_log
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.day import make_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME_ZONE = "spark.sql.session.timeZone"
ONE_BUCKET = StreamOptions(buckets=1, watermark_ms=1 << 50)
SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.shuffle.partitions": "7",
}


@pytest.fixture(params=["America/New_York", "Asia/Kathmandu"])
def elsewhere(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Return the session with another time zone."""
    with changed_setting(spark, TIME_ZONE, request.param):
        yield spark


def test_files_of_two_time_zones_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    """Runs of sessions in two time zones write files that a compaction merges, with the same instants."""
    lines = make_day(300).lines_before(1)
    logs = tmp_path / "logs"
    logs.mkdir()
    for number, zone in enumerate(("UTC", "America/New_York")):
        (logs / f"requests-{number}.jsonl").write_text("\n".join(lines[number::2]) + "\n")
        with changed_setting(spark, TIME_ZONE, zone):
            ingest(spark, LogSource.of_files(logs), tmp_path / "table", ONE_BUCKET)
    assert compact_table(tmp_path / "table").files_after == 1
    columns = "unix_micros(time) time", "principal", "client_id", "correlation_id"
    found = read_table(spark, tmp_path / "table").selectExpr(*columns)
    wanted = read_log(spark, LogSource.of_files(logs)).selectExpr(*columns)
    assert found.count() == len(lines)
    assert found.exceptAll(wanted).isEmpty()


def test_dates_of_logs_are_utc(elsewhere: SparkSession, command: Callable[..., Result], tmp_path: Path) -> None:
    """`--date` selects the same records of a log as of a table."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("\n".join(make_day(200).lines()) + "\n")
    printed = json.loads(command("pipeline", "usage", log, "--json", "--per", "day", "--top", "1000", "-q").stdout)
    for date in {row["date"] for row in printed}:
        found = command("pipeline", "usage", log, "--json", "--per", "day", "--top", "1000", "-q", "--date", date)
        assert json.loads(found.stdout) == [row for row in printed if row["date"] == date]


@pytest.mark.parametrize("zone", ["", "Z", "+00:00"])
def test_times_without_a_zone_are_utc(elsewhere: SparkSession, tmp_path: Path, zone: str) -> None:
    """So is a time within the hour that a change to daylight-saving time skips, of a log and of an archived value."""
    record = {"time": f"2026-03-08T02:30:00.25{zone}", "requestHeader": {"requestApiKey": 0}}
    (tmp_path / "requests-1.jsonl").write_text(json.dumps(record) + "\n")
    times = read_log(elsewhere, LogSource.of_files(tmp_path)).select(F.unix_millis("time")).collect()
    assert times == [(1_772_937_000_250,)]
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    columns += "timestampType int, headers array<struct<key:string,value:binary>>"
    row = (None, json.dumps({"at": record["time"]}).encode(), "t", 0, 0, None, 0, None)
    schema = RecordSchema("binary", "json", "", "at timestamp")
    kept = parse_records(elsewhere.createDataFrame([row], columns), schema)
    assert kept.select(F.unix_millis("value.at")).collect() == [(1_772_937_000_250,)]


@pytest.mark.parametrize(("name", "value"), SETTINGS.items())
def test_settings_change_no_result(
    spark: SparkSession, command: Callable[..., Result], tmp_path: Path, name: str, value: str
) -> None:
    """Views of a log with records of every kind and damaged lines are equal."""
    log = tmp_path / "requests-1.jsonl"
    odd = [{"time": "x"}, {"time": "2026-01-02T00:00:00Z", "requestheader": {"requestApiKey": 0}}, {"Time": 1}]
    log.write_text("\n".join([*make_day(200).lines(), *map(json.dumps, odd), "no record"]) + "\n")

    def found() -> list[Any]:
        views = (("usage", "--per", "second"), ("throttles",))
        done = [command("pipeline", *view, log, "--json", "--top", "10000") for view in views]
        # the last digits of a sum depend on the order of its parts
        return [(json.loads(one.stdout, parse_float=lambda text: round(float(text), 9)), one.stderr) for one in done]

    wanted = found()
    with changed_setting(spark, name, value):
        assert found() == wanted


def test_a_stream_that_does_not_start_ends_its_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a Spark Connect server keeps the views of the batches, and this process the threads of heartbeats."""
    closed: list[bool] = []

    def start(self: MicroBatches, writer: object) -> None:
        raise PipelineError("no start")

    monkeypatch.setattr(MicroBatches, "start", start)
    monkeypatch.setattr(MicroBatches, "close", lambda self: closed.append(True))
    (tmp_path / "requests-1.jsonl").touch()
    with pytest.raises(PipelineError, match="no start"):
        ingest(spark, LogSource.of_files(tmp_path), tmp_path / "table", clock=SystemClock())
    assert closed
