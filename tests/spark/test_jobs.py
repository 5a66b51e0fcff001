"""Jobs over a synthetic day with known results: every figure is exact."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F

from kbroker._core.clock import VirtualClock
from kbroker.common.request_log import VERSION
from kbroker.spark import shared_folder
from kbroker.spark.errors import PipelineError
from kbroker.spark.session_kind import changed_setting
from kbroker.spark.tables import table_stream
from kbroker.spark.tables.compaction import compact_table
from kbroker.spark.tables.delta_table import Table, TableError, TableInfo, bucket_of, describe_table
from kbroker.spark.tables.file_writer import PREFIX
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import POSITION, LogSource, good, read_log, rejected
from kbroker.spark.tables.log_schema import arrow_schema, spark_schema
from kbroker.spark.tables.table import read_table, split, write_rows
from kbroker.spark.tables.table_place import AsOf, TablePlace
from kbroker.spark.tables.table_stream import StreamOptions, in_time
from kbroker.spark.usage_views.throttles import by_quota, throttles
from kbroker.spark.usage_views.usage import MEASURES, top, usage, usage_per_day, usage_per_second
from tests.spark.day import DATE, OURS, START_US, Day, make_day, to_line
from tests.spark.source_support import plan_of
from tests.spark.written_table import write_table
from tests.support.fixtures import fixture_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000
NOT_RECORDS = (
    "{bad",
    "",
    "some other line of a log",
    '{"a": 1}',
    '{"version":1,"requestHeader":{"requestApiKey":"x"}}',
)
SMALL = StreamOptions(buckets=2, split_rows=100)
LATER_MS = START_US // 1000 + 48 * 3_600_000


day = fixture_of(make_day, ROWS, scope="module")


@pytest.fixture(scope="module")
def logs(day: Day, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with half of the day in kbroker's file, the other half in Kafka's, and invalid lines between."""
    folder = tmp_path_factory.mktemp("logs")
    lines = list(day.lines())
    half = [*lines[: ROWS // 2], *NOT_RECORDS]
    (folder / "requests-1.jsonl").write_text("\n".join(half) + "\n")
    (folder / "kafka-request.log").write_text("\n".join(lines[ROWS // 2 :]) + "\n")
    return folder


@pytest.fixture(scope="module")
def night(day: Day, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder with the day's first two hours and invalid lines, and the number of records."""
    folder = tmp_path_factory.mktemp("night")
    lines = day.lines_before(2)
    (folder / "requests-1.jsonl").write_text("\n".join([*lines, *NOT_RECORDS]) + "\n")
    return folder, len(lines)


@pytest.fixture(scope="module")
def table(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table of the day, ingested in two batches."""
    path = tmp_path_factory.mktemp("table") / "requests"
    size = (logs / "requests-1.jsonl").stat().st_size
    options = replace(SMALL, max_per_batch=size, watermark_ms=100 * 3_600_000)
    done = ingest(spark, LogSource.of_files(logs), path, options, clock=VirtualClock(LATER_MS))
    assert (done.rows, done.rejected, done.batches) == (ROWS, 4, 2)
    return path


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ("time", "connection", "correlation_id", "address")])


def of_table(path: Path) -> pa.Table:
    """Return the live rows, read without Spark."""
    files = [path / one.path for one in Table(path).files()]
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).cast(arrow_schema())


def test_the_table_holds_the_day(table: Path, day: Day) -> None:
    """The table has every column of every row once, of kbroker's log and a real Kafka's, of old records and new."""
    found, wanted = in_order(of_table(table)), in_order(day.rows)
    assert [name for name in wanted.column_names if found[name].to_pylist() != wanted[name].to_pylist()] == []


def test_rows_lie_where_they_belong(table: Path) -> None:
    """Rows are partitioned by date, hour and entity, and sorted within a file in replay's order."""
    for one in Table(table).files():
        assert one.path.startswith(f"date={one.date}/hour={one.hour}/bucket={one.bucket}/{PREFIX}0000000")
        rows = pq.ParquetFile(table / one.path).read(["time", "principal", "client_id", "sequence"]).to_pylist()
        assert len(rows) == one.rows
        assert {(r["time"].date().isoformat(), r["time"].hour) for r in rows} == {(one.date, one.hour)}
        assert {bucket_of(r["principal"], r["client_id"], 2) for r in rows} == {one.bucket}
        keys = [(r["principal"] or "", r["client_id"] or "", r["sequence"] or 0) for r in rows]
        assert keys == sorted(keys)
        assert one.min_time_us is not None
        assert one.max_time_us is not None
        times = [int(r["time"].timestamp()) for r in rows]
        assert [one.min_time_us // 1_000_000, one.max_time_us // 1_000_000] == [min(times), max(times)]


def test_what_is_no_record_is_kept_aside(table: Path, spark: SparkSession, logs: Path) -> None:
    """Rejected lines are kept with their position and the reason, and empty lines are ignored."""
    (file,) = (table / "_rejected").iterdir()
    kept = spark.read.json(str(file)).orderBy("position").collect()
    assert [row["raw"] for row in kept] == [line for line in NOT_RECORDS if line]
    assert [row["reason"] for row in kept] == [
        "invalid JSON, or a field of another type",
        "no record of a request in this line",
        "JSON that is not a record of a request",
        "invalid JSON, or a field of another type",
    ]
    text = (logs / "requests-1.jsonl").read_bytes()
    assert all(text[row["position"] :].startswith(row["raw"].encode()) for row in kept)


ODD: dict[str, dict[str, Any]] = {
    "a sampling that is not a number above 0, up to 1": {"sampling": "NaN"},
    "a number that is too large": {"sampling": 1e-300},
    "a record that is repeated less than once": {"repeated": -3},
    "a size below 0": {"requestBytes": -5},
}


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_number_that_no_broker_writes(form: str, spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """A record with an invalid number is rejected, since it makes sums overflow or negative."""
    row = day.rows.filter(pc.equal(day.rows["api_name"], "PRODUCE")).slice(0, 1).to_pylist()[0]
    row |= {"sampling": 1.0, "repeated": 1, "request_bytes": 7, "time": datetime(2026, 1, 2, tzinfo=timezone.utc)}
    names = {"sampling": "sampling", "repeated": "repeated", "requestBytes": "request_bytes"}
    odd = [
        {names[name]: float(value) if value == "NaN" else value for name, value in one.items()} for one in ODD.values()
    ]
    if form == "arrow":
        rows = pa.Table.from_pylist([row, *({**row, **one} for one in odd)], arrow_schema())
        with pa.ipc.new_stream(tmp_path / "requests.arrows", rows.schema) as file:
            file.write_table(rows)
    else:
        plain = json.loads(to_line(row, OURS))
        lines = [plain, *({**plain, **one} for one in ODD.values())]
        (tmp_path / "requests.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    parsed = read_log(spark, LogSource.of_files(tmp_path))
    assert sorted(found["reason"] for found in rejected(parsed).collect()) == sorted(ODD)
    (used,) = usage(good(parsed)).collect()
    assert (used["requests"], used["request_bytes"]) == (1, 7)


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_delay_that_no_broker_writes(form: str, spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """A delay that is too large is rejected, since sums of delays have 64 bits."""
    row = day.rows.filter(pc.greater(pc.list_value_length(day.rows["verdicts"]), 0)).slice(0, 1).to_pylist()[0]
    (verdict, *_) = row["verdicts"]
    fine, odd = ({**row, "verdicts": [{**verdict, "delay_served_ms": delay}]} for delay in (5, 1 << 62))
    if form == "arrow":
        rows = pa.Table.from_pylist([fine, odd, odd, odd], arrow_schema())
        with pa.ipc.new_stream(tmp_path / "requests.arrows", rows.schema) as file:
            file.write_table(rows)
    else:
        lines = [to_line(one, OURS) for one in (fine, odd, odd, odd)]
        (tmp_path / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    parsed = read_log(spark, LogSource.of_files(tmp_path))
    assert [one["reason"] for one in rejected(parsed).collect()] == ["a number that is too large"] * 3
    assert [one["delay_served_ms"] for one in throttles(good(parsed)).collect()] == [5]


@pytest.mark.parametrize("value", ["Infinity", "NaN", -1e16])
@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_value_that_no_broker_writes(
    form: str, value: str | float, spark: SparkSession, day: Day, tmp_path: Path
) -> None:
    """A value of a counter that is not finite is rejected: no quota would be sufficient for it."""
    row = day.rows.filter(pc.greater(pc.list_value_length(day.rows["updates"]), 0)).slice(0, 1).to_pylist()[0]
    fine, odd = ({**row, "updates": [{**row["updates"][0], "value": one}]} for one in (5.0, float(value)))
    if form == "arrow":
        rows = pa.Table.from_pylist([fine, odd], arrow_schema())
        with pa.ipc.new_stream(tmp_path / "requests.arrows", rows.schema) as file:
            file.write_table(rows)
    else:
        (tmp_path / "requests.jsonl").write_text("".join(f"{to_line(one, OURS)}\n" for one in (fine, odd)))
    parsed = read_log(spark, LogSource.of_files(tmp_path))
    assert [one["reason"] for one in rejected(parsed).collect()] == ["a number that is too large"]
    assert good(parsed).count() == 1


@pytest.mark.parametrize("is_adaptive", ["false", "true"])
def test_a_batch_without_a_record(spark: SparkSession, day: Day, tmp_path: Path, is_adaptive: str) -> None:
    """Spark's adaptive plan, the default, omits the counts of a batch of which no row is to be written."""
    log, table = tmp_path / "requests.jsonl", tmp_path / "table"
    log.write_text("no record\n")
    source = LogSource.of_files(log)
    with changed_setting(spark, "spark.sql.adaptive.enabled", is_adaptive):
        done = ingest(spark, source, table, StreamOptions(buckets=1))
        assert (done.batches, done.rows, done.rejected) == (1, 0, 1)
        with log.open("a") as opened:
            opened.write(f"{to_line(day.rows.slice(0, 1).to_pylist()[0], OURS)}\n")
        done = ingest(spark, source, table, StreamOptions(buckets=1))
        assert (done.batches, done.rows, done.rejected) == (1, 1, 0)


@pytest.fixture(scope="module")
def used(spark: SparkSession, table: Path) -> DataFrame:
    """Return the usage of the day, which one job has computed."""
    return usage(read_table(spark, table)).localCheckpoint()


def test_usage_is_exact(used: DataFrame, day: Day) -> None:
    """Sums and highest seconds of every entity are exact."""
    found = {(row["principal"], row["client_id"]): row.asDict() for row in used.collect()}
    assert found.keys() == day.usage.keys()
    for entity, wanted in day.usage.items():
        for name in MEASURES:
            assert found[entity][name] == pytest.approx(wanted.get(name, 0), abs=0), (entity, name)
            assert found[entity][f"{name}_peak"] == wanted.get(f"{name}_peak", 0), (entity, name)


def test_usage_per_day_and_second_add_up(spark: SparkSession, table: Path, day: Day) -> None:
    rows = read_table(spark, table)
    total = sum(used["request_bytes"] for used in day.usage.values())
    seconds, days = usage_per_second(rows), usage_per_day(rows)
    assert seconds.selectExpr("sum(request_bytes)").collect()[0][0] == total
    found = days.select("date", "request_bytes").collect()
    assert {row["date"] for row in found} == {DATE}
    assert sum(row["request_bytes"] for row in found) == total


@pytest.mark.parametrize("by", ["bytes", "mutations"])
def test_the_first_are_those_with_most(used: DataFrame, day: Day, by: str) -> None:
    names = ("request_bytes", "response_bytes") if by == "bytes" else ("mutations",)
    rank = sorted(((sum(sums[n] for n in names), who) for who, sums in day.usage.items()), key=lambda r: (-r[0], r[1]))
    found = top(used, by, 5).collect()
    assert [(row["principal"], row["client_id"]) for row in found] == [who for _, who in rank[:5]]


def test_a_sample_counts_for_what_was_left_out(spark: SparkSession, day: Day) -> None:
    """A sample of one request in four counts four times, and a folded row counts once for each repetition."""
    row: dict[str, Any] = {**day.rows.slice(0, 1).to_pylist()[0], "sampling": 0.25, "repeated": 3, "request_bytes": 10}
    (found,) = usage(spark.createDataFrame(pa.Table.from_pylist([row], arrow_schema()))).collect()
    assert (found["requests"], found["request_bytes"], found["connections"]) == (12, 40, 1)


def test_throttles_are_exact(spark: SparkSession, table: Path, day: Day) -> None:
    """Throttled clients, their quotas, counts and delays, and each quota's share of all delays are exact."""
    rows = throttles(read_table(spark, table))
    found = {tuple(row[key] for key in ("quota_type", "user", "client_id", "ip")): row for row in rows.collect()}
    assert found.keys() == day.throttles.keys()
    for key, wanted in day.throttles.items():
        assert {name: found[key][name] for name in wanted} == wanted, key
    all_delay = sum(row["delay_served_ms"] for row in day.throttles.values())
    per_quota: dict[Any, int] = {}
    for (quota_type, *_), sums in day.throttles.items():
        per_quota[quota_type] = per_quota.get(quota_type, 0) + sums["delay_served_ms"]
    shares = {row["quota_type"]: row["share"] for row in by_quota(rows).collect()}
    assert shares == pytest.approx({quota: delay / all_delay for quota, delay in per_quota.items()})
    assert sum(shares.values()) == pytest.approx(1)


def test_jobs_read_a_log_as_it_is(spark: SparkSession, logs: Path, day: Day) -> None:
    """Jobs that read the lines of files without a table have the same figures, with both parsers."""
    for form in ("json", "auto"):
        parsed = read_log(spark, LogSource.of_files(logs, format=form))
        found = usage(good(parsed)).selectExpr("sum(requests)", "sum(response_bytes)").first()
        wanted = [sum(used[name] for used in day.usage.values()) for name in ("requests", "response_bytes")]
        assert list(found) == wanted  # type: ignore[arg-type]
        assert rejected(parsed).count() == 4


@pytest.mark.parametrize("form", ["json", "auto"])
def test_a_line_is_parsed_once(form: str, spark: SparkSession, logs: Path) -> None:
    """Spark's optimizer would repeat the parser for each use of a column, which takes six times the CPU."""
    rows = good(read_log(spark, LogSource.of_files(logs, format=form)))
    assert plan_of(rows).count("from_json(") == 1


def test_arrow_files_hold_the_same(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    with (tmp_path / "requests-1.arrows").open("wb") as sink, pa.ipc.new_stream(sink, arrow_schema()) as writer:
        writer.write_table(day.rows, max_chunksize=300)
    found = in_order(good(read_log(spark, LogSource.of_files(tmp_path))).toArrow().cast(arrow_schema()))
    wanted = in_order(day.rows)
    assert [name for name in wanted.column_names if found[name].to_pylist() != wanted[name].to_pylist()] == []


def test_a_hot_entity_is_written_by_several_tasks(table: Path) -> None:
    """After the first batch the bucket of an entity with 60 % of the rows is split over several tasks."""
    hot = bucket_of("User:team-0", "app-00", 2)
    second = [one for one in Table(table).files() if f"{PREFIX}00000001-" in one.path]
    assert max(Counter((one.hour, one.bucket) for one in second if one.bucket == hot).values()) > 1
    assert max(Counter((one.hour, one.bucket) for one in second if one.bucket != hot).values()) == 1
    assert split({0: 900, 1: 50, 2: 25, 3: 25}, buckets=4, tasks=4, split_rows=100) == {0: 4}
    assert split({0: 900, 1: 50, 2: 25, 3: 25}, buckets=4, tasks=4, split_rows=500) == {}
    assert split({0: 30, 1: 30, 2: 30, 3: 30}, buckets=4, tasks=4, split_rows=1) == {}


def test_hours_are_compacted_when_they_are_closed(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """Hours before the watermark are compacted, late rows are added, no row is lost, and replaced files are deleted."""
    timed = [(t.hour, line) for line, t in zip(day.lines(), day.columns["time"], strict=True) if t.hour < 3]
    late = [line for hour, line in timed if hour == 0][-10:]
    rest = [line for _, line in timed if line not in late]
    lines = [*rest[::2], *rest[1::2], *late]  # two batches over the same hours, then the late rows
    log, path, clock = tmp_path / "requests-1.jsonl", tmp_path / "table", VirtualClock(LATER_MS)

    def run(retention_ms: int) -> int:
        size = sum(map(len, rest[::2]))
        options = replace(SMALL, max_per_batch=size, retention_ms=retention_ms, short_retention=True)
        return ingest(spark, LogSource.of_files(log, format="json"), path, options, clock=clock).compacted.hours

    def names() -> set[str]:
        return {one.relative_to(path).as_posix() for one in path.glob("date=*/*/*/*.parquet")}

    log.write_text("\n".join(lines[:-10]) + "\n")
    assert run(3_600_000) > 0
    assert describe_table(path)["rows"] == len(lines) - 10
    live = {one.path for one in Table(path).files()}
    assert live < names()  # replaced files are kept
    compacted = [one for one in Table(path).files() if PREFIX not in one.path]
    assert {one.hour for one in compacted} == {0, 1}
    assert len({(one.hour, one.bucket) for one in compacted}) == len(compacted)

    with log.open("a") as opened:
        opened.write("\n".join(lines[-10:]) + "\n")
    assert run(0) == 0  # a few late rows cause no compaction
    assert describe_table(path)["rows"] == len(lines)
    assert names() == {one.path for one in Table(path).files()}

    done = compact_table(path, retention_ms=0, short_retention=True)
    assert done.hours > 0
    files = Table(path).files()
    assert len({(one.hour, one.bucket) for one in files}) == len(files)
    assert compact_table(path, retention_ms=0, short_retention=True).hours == 0
    assert of_table(path).num_rows == read_table(spark, path).count() == len(lines)


def test_columns_that_older_files_lack_are_null(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """A table of an older version is read and written with the columns of this version, at any depth."""
    old = json.loads(spark_schema().json())
    old["fields"] = [
        one for one in old["fields"] if one["name"] not in ("network_time_us", "transactional_id", "sampling")
    ]
    for one in old["fields"]:
        if one["name"] == "updates":
            fields = one["type"]["elementType"]["fields"]
            one["type"]["elementType"]["fields"] = [f for f in fields if f["name"] != "checked"]
    table = Table(tmp_path / "t")
    info = table.open(TableInfo(buckets=2, schema_version=0, columns=old))
    rows = spark.createDataFrame(day.rows.slice(0, 5)).select(*(one["name"] for one in old["fields"]))
    without = rows.withColumn("updates", F.transform("updates", lambda one: one.dropFields("checked")))
    table.commit(write_rows(without, table.place, info, "old"))
    write_table(spark.createDataFrame(day.rows.take(list(range(5, 10)))), tmp_path / "t")
    found = read_table(spark, tmp_path / "t", ["sequence", "sampling", "updates", "date", "hour"]).toArrow().to_pylist()
    known = {row["sequence"]: row for row in day.rows.slice(0, 10).to_pylist()}
    assert len(found) == 10
    for row in found:
        is_old = row["sequence"] in [one["sequence"] for one in day.rows.slice(0, 5).to_pylist()]
        wanted = known[row["sequence"]]
        assert row["sampling"] == (None if is_old else wanted["sampling"])
        updates = [{**one, "checked": None} for one in wanted["updates"] or ()] if is_old else wanted["updates"]
        assert (row["updates"] or []) == (updates or [])
    assert {row["date"] for row in found} == {DATE}
    assert Table(tmp_path / "t").info().schema_version == VERSION


ADDED = '{"transactionalId":"added","producerId":1,"producerEpoch":0,"verifyOnly":false,"topics":[]}'


REQUESTS = (
    ('{"transactionalId":"produced","acks":-1,"timeoutMs":30000,"topicData":[]}', "produced"),
    ('{"transactionalId":null,"acks":-1,"timeoutMs":30000,"topicData":[]}', None),
    ('{"v3AndBelowTransactionalId":"joined","v3AndBelowProducerId":1,"v3AndBelowTopics":[]}', "joined"),
    (f'{{"transactions":[{ADDED}]}}', "added"),
    ('{"transactions":[]}', None),
    ('{"key":"old","keyType":1}', "old"),
    ('{"keyType":1,"coordinatorKeys":["first","second"]}', "first"),
    ('{"keyType":0,"coordinatorKeys":["group"]}', None),
    ('{"topics":[{"name":"orders"}]}', None),
)


def test_a_transactional_id_is_found_in_kafkas_lines(spark: SparkSession, tmp_path: Path) -> None:
    """The id is found in each request of a transaction, and a group's name is not an id."""
    header = '{"requestApiKey":0,"requestApiVersion":9,"requestApiKeyName":"PRODUCE","correlationId":1,"clientId":"c"}'
    stamp = "[2026-01-02 03:04:05,678] DEBUG"
    with (tmp_path / "kafka-request.log").open("w") as log:
        for request, _ in REQUESTS:
            line = f'{{"requestHeader":{header},"request":{request},"response":{{}},"totalTimeMs":1.5}}'
            log.write(f"{stamp} Completed request:{line} (kafka.request.logger)\n")
    rows = read_log(spark, LogSource.of_files(tmp_path)).orderBy(POSITION).collect()
    found = [(row["transactional_id"], row["_reason"], row["api_name"]) for row in rows]
    assert found == [(transactional_id, None, "PRODUCE") for _, transactional_id in REQUESTS]


def test_a_newer_table_is_written_and_read(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """A table keeps columns unknown to this version, with null in rows of this version."""
    newer = json.loads(spark_schema().json())
    newer["fields"].append({"name": "later", "type": "long", "nullable": True, "metadata": {}})
    Table(tmp_path / "t").open(TableInfo(buckets=2, schema_version=VERSION + 1, columns=newer))
    write_table(spark.createDataFrame(day.rows.slice(0, 5)), tmp_path / "t")
    assert read_table(spark, tmp_path / "t").drop("date", "hour", "bucket").columns == spark_schema().names
    assert (describe_table(tmp_path / "t")["rows"], Table(tmp_path / "t").info().schema_version) == (5, VERSION + 1)


def test_a_transaction_is_written_once(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    rows = spark.createDataFrame(day.rows.slice(0, 50))
    assert [write_table(rows, tmp_path, transaction=("day", 7), buckets=2).rows for _ in range(2)] == [50, 0]
    assert write_table(rows, tmp_path, transaction=("day", 6)).rows == 0
    assert write_table(rows, tmp_path, transaction=("day", 8)).rows == 50
    assert write_table(rows, tmp_path, transaction=("night", 7)).rows == 50
    assert describe_table(tmp_path)["rows"] == 150


def test_a_table_as_it_was(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    """A table can be read by version and by time, even after a compaction, and not be changed then."""
    for start in (0, 50):
        write_table(spark.createDataFrame(day.rows.take(list(range(start, start + 50)))), tmp_path, buckets=2)
    compact_table(tmp_path)
    written = [(tmp_path / "_delta_log" / f"{number:020}.json").stat().st_mtime for number in (1, 2)]
    asked: list[AsOf | None] = [0, "1", "2", datetime.fromtimestamp(sum(written) / 2, timezone.utc), None]
    places = [TablePlace.of(tmp_path, as_of=one) for one in asked]
    assert [read_table(spark, place).count() for place in places] == [0, 50, 100, 50, 100]
    assert [describe_table(place)["rows"] for place in places] == [0, 50, 100, 50, 100]
    with pytest.raises(TableError, match="has no version 99: there are versions up to"):
        read_table(spark, TablePlace.of(tmp_path, as_of=99))
    with pytest.raises(TableError, match="an earlier version cannot be changed"):
        write_table(spark.createDataFrame(day.rows.slice(0, 1)), places[1])


def test_other_rows_than_were_read_are_not_committed(
    spark: SparkSession, night: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with lost or duplicated rows is not committed, and is repeated.

    The error has both numbers, or the name of a file that the driver does not find: an executor has its own disk.
    """
    table, source, rows = tmp_path / "table", LogSource.of_files(night[0]), night[1]
    refusal = rf"of {rows + 4} records 4 were rejected and (?!{rows} )[\d,]+ written: the batch was not committed"

    def ingest_again(written: Callable[[Any], Any]) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(table_stream, "write_rows", lambda *args, **more: written(write_rows(*args, **more)))
            with pytest.raises(PipelineError, match=refusal):
                ingest(spark, source, table, SMALL, clock=VirtualClock(LATER_MS))
        assert describe_table(table)["rows"] == 0

    def lose(reached: str) -> None:
        if reached == "written":
            next(table.glob("date=*/*/*/*.parquet")).unlink()

    monkeypatch.setattr(shared_folder, "SETTLE_SECONDS", 0.2)
    with pytest.raises(PipelineError, match=r"is missing or has another size .*must reach the same storage"):
        ingest(spark, source, table, SMALL, clock=VirtualClock(LATER_MS), at=lose)
    assert describe_table(table)["rows"] == 0
    ingest_again(lambda files: [*files, files[0]])
    ingest_again(lambda _: [])
    done = ingest(spark, source, table, SMALL, clock=VirtualClock(LATER_MS))
    assert (done.rows, done.rejected, describe_table(table)["rows"]) == (rows, 4, rows)


class CountedTwice(Observation):
    """Metrics that Spark reports after running a task twice."""

    @property
    def get(self) -> dict[str, Any]:
        return {name: 2 * value for name, value in super().get.items()}


def test_a_task_that_ran_twice_is_no_lost_row(
    spark: SparkSession, night: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows counted twice and written once are counted again before the batch is refused."""
    monkeypatch.setattr(table_stream, "Observation", CountedTwice)
    done = ingest(spark, LogSource.of_files(night[0]), tmp_path / "table", SMALL, clock=VirtualClock(LATER_MS))
    assert (done.rows, done.rejected) == (night[1], 4)


def test_another_checkpoint_does_not_double_a_log(spark: SparkSession, table: Path, logs: Path, tmp_path: Path) -> None:
    """A table rejects another checkpoint of its source, which would start again, and another source."""
    with pytest.raises(TableError, match="was filled from files with another checkpoint"):
        ingest(spark, LogSource.of_files(logs), table, replace(SMALL, checkpoint=tmp_path / "other"))
    part = LogSource.of_files(logs / "requests-1.jsonl")
    with pytest.raises(TableError, match="was filled from files with another checkpoint"):
        ingest(spark, part, table, replace(SMALL, checkpoint=tmp_path / "other"))
    with pytest.raises(TableError, match="is filled from files, not from topic t"):
        ingest(spark, LogSource.of_topic("127.0.0.1:1", "t"), table, SMALL)


def test_a_time_without_an_hour_is_rejected(spark: SparkSession) -> None:
    """A record with the time of a wrong clock, or without a time, is rejected."""
    times = [
        None, -62_135_596_800_000_001, -62_135_596_800_000_000, 0, 253_402_300_799_999_999,
        253_402_300_800_000_000,
    ]  # fmt: skip
    rows = spark.createDataFrame(
        [(number, time, None) for number, time in enumerate(times)], "n int, t long, _reason string"
    )
    found = in_time(rows.selectExpr("n", "timestamp_micros(t) time", "_reason"), "request_log").orderBy("n")
    outside = "a time outside of the years 1 to 9999"
    assert [row["_reason"] for row in found.select("_reason").collect()] == [
        "no time", outside, None, None, None, outside,
    ]  # fmt: skip


def test_a_table_of_something_else_is_named(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    import deltalake

    with pytest.raises(TableError, match="is not a table: it has no _delta_log"):
        read_table(spark, tmp_path / "nothing")
    deltalake.write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    with pytest.raises(TableError, match="is a Delta table that kbroker has not made"):
        read_table(spark, tmp_path / "other")
    Table(tmp_path / "topic").open(TableInfo("topic", columns={"type": "struct", "fields": []}))
    with pytest.raises(TableError, match="is a table of kind topic, not request log"):
        write_table(spark.createDataFrame(day.rows.slice(0, 1)), tmp_path / "topic")
