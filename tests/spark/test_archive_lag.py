"""Topics as Parquet files and the lag of their readers, over a broker and with the source that needs no jars."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from kbroker.client.producer import Producer
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.archive import RecordSchema, archive, parse_records
from kbroker.spark.tables.delta_table import TOPIC, TableError, describe_table, first_loss
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.file_writer import BUCKET, EPOCH_HOUR, write_files
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import REASON, LogSource
from kbroker.spark.tables.log_schema import arrow_schema
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TablePlace
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.usage_views.lag import Lag, checkpoint_lag, group_lag, read_checkpoint
from tests.spark.day import make_day
from tests.spark.source_support import plan_of
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = StreamOptions(buckets=2)


@pytest.fixture
def cluster(broker: BrokerProcess) -> Any:
    with Cluster(broker.bootstrap) as one:
        Admin(one).create_topics([NewTopic("orders", partitions=2), NewTopic("log", partitions=2)])
        yield one


def send(cluster: Cluster, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    with Producer(cluster) as producer:
        for number, (key, value) in enumerate(records):
            producer.send(topic, value, key, partition=number % 2, timestamp_ms=1_767_312_000_000 + number)


def test_a_topic_is_kept_byte_for_byte(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, tmp_path: Path
) -> None:
    """Any keys and values are archived; a second run continues at the end of the first."""
    source = LogSource.of_topic(broker.bootstrap, "orders")
    records = [(b"k", b"v\xff"), (None, b""), (b"", None), (b"a" * 300, b"b" * 3000)]
    send(cluster, "orders", *records)
    assert archive(spark, source, tmp_path / "t", options=OPTIONS).rows == 4
    with Producer(cluster) as producer:
        producer.send(
            "orders", b"last", partition=1, timestamp_ms=1_767_312_000_004, headers=[("h", b"1"), ("h", None)]
        )
    assert archive(spark, source, tmp_path / "t", options=OPTIONS).rows == 1
    found = read_table(spark, tmp_path / "t").orderBy("timestamp").collect()
    assert [(r["key"], r["value"]) for r in found[:4]] == records
    assert [(r["partition"], r["offset"]) for r in found] == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert [tuple(h) for h in found[4]["headers"]] == [("h", b"1"), ("h", None)]
    with pytest.raises(TableError, match="is filled from topic orders, not from topic log"):
        archive(spark, LogSource.of_topic(broker.bootstrap, "log"), tmp_path / "t", options=OPTIONS)

    send(cluster, "orders", (None, b"x"))
    (first, second) = checkpoint_lag(cluster, tmp_path / "t")
    assert (first.topic, first.partition, first.offset, first.end_offset, first.lag) == ("orders", 0, 2, 3, 1)
    assert (second.partition, second.lag) == (1, 0)


def test_json_values_become_columns(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, tmp_path: Path
) -> None:
    """Invalid values are stored as rejected, a tombstone is null, and columns can be added but not removed."""
    source = LogSource.of_topic(broker.bootstrap, "orders")
    bad = (b"k5", b'{"id": "no number"}')
    send(
        cluster,
        "orders",
        (b"k1", b'{"id": 1, "tags": ["a"], "new": 5}'),
        (b"k2", b"{nothing"),
        (b"k3", None),
        (b"\xff", b"{}"),
        bad,
    )
    schema = RecordSchema(key="string", value="json", value_columns="id bigint, tags array<string>")
    done = archive(spark, source, tmp_path / "t", schema, OPTIONS)
    assert (done.rows, done.rejected) == (2, 3)
    reasons = {row["raw"]: row["reason"] for row in spark.read.json(str(tmp_path / "t" / "_rejected")).collect()}
    assert reasons == {
        "{nothing": "the value is not JSON of these columns",
        "{}": "the key is not UTF-8 text",
        bad[1].decode(): "the value is not JSON of these columns",
    }
    with pytest.raises(TableError, match=r"columns can only be added, and value\.tags would be removed"):
        archive(spark, source, tmp_path / "t", replace(schema, value_columns="id bigint"), OPTIONS)
    with pytest.raises(PipelineError, match="'id bigunt' are not valid columns"):
        archive(spark, source, tmp_path / "t", replace(schema, value_columns="id bigunt"), OPTIONS)

    send(cluster, "orders", (b"k6", b'{"id": 6, "new": 7}'))
    wider = replace(schema, value_columns="id bigint, tags array<string>, new int")
    assert archive(spark, source, tmp_path / "t", wider, OPTIONS).rows == 1
    rows = read_table(spark, tmp_path / "t").orderBy("key").collect()
    assert [row["key"] for row in rows] == ["k1", "k3", "k6"]
    assert rows[1]["value"] is None
    assert [(rows[n]["value"]["id"], rows[n]["value"]["tags"], rows[n]["value"]["new"]) for n in (0, 2)] == [
        (1, ["a"], None),
        (6, None, 7),
    ]


def test_names_of_growing_numbers_in_values(tmp_path: Path) -> None:
    """Columns of values with the name of a growing column of the table, but another type, are written as any other."""
    value = {"time": "noon", "offset": 1.5, "sequence": True, "timestamp": Decimal("2.5"), "time_ms": 7}
    rows = {
        "topic": pa.array(["t"]),
        "partition": pa.array([0], pa.int32()),
        "offset": pa.array([0], pa.int64()),
        "timestamp": pa.array([0], pa.timestamp("us", "UTC")),
        "value": pa.array([value]),
        EPOCH_HOUR: pa.array([0], pa.int32()),
        BUCKET: pa.array([0], pa.int32()),
    }
    place = TablePlace.of(tmp_path)
    (files,) = write_files(place, TOPIC, "1", [pa.record_batch(rows)])
    assert read_columns(place, files["path"].to_pylist(), ["value"]).to_pylist() == [{"value": value}]


def test_an_object_is_parsed_once(spark: SparkSession) -> None:
    """Spark's optimizer would repeat a parser for each use of a column."""
    text = [f"cast(cast(id as string) as binary) {part}" for part in ("key", "value")]
    place = ["'t' topic", "0 partition", "id offset", "timestamp_micros(id) timestamp", "0 timestampType"]
    records = spark.range(9).selectExpr(*text, *place, "array() headers")
    schema = RecordSchema(key="json", key_columns="a int, b int", value="json", value_columns="c int, d int")
    assert plan_of(parse_records(records, schema).where(f"{REASON} is null")).count("from_json(") == 2


def test_a_log_topic_with_both_kinds_of_records(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, tmp_path: Path
) -> None:
    """JSON records, Kafka's lines and Arrow batches give each row once, and invalid records are reported."""
    day = make_day(1_000)
    lines = list(day.lines())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema()) as writer:
        writer.write_table(day.rows.slice(50, 100))
    with Producer(cluster) as producer:
        for line in lines[:50]:
            producer.send("log", line.encode(), b"entity")
        producer.send("log", sink.getvalue().to_pybytes(), headers=[("format", b"arrow")])
        producer.send("log", b"rubbish", headers=[("format", b"arrow")])
        producer.send("log", b"rubbish")
        producer.send("log", None)
    source = LogSource.of_topic(broker.bootstrap, "log")
    done = ingest(spark, source, tmp_path / "t", OPTIONS)
    assert (done.rows, done.rejected) == (150, 2)
    (found,) = read_table(spark, tmp_path / "t").selectExpr("sum(total_time_us)", "sum(array_size(verdicts))").collect()
    rows = day.rows.slice(0, 150).to_pydict()
    assert found[0] == sum(value or 0 for value in rows["total_time_us"])
    assert found[1] == sum(len(value) for value in rows["verdicts"] if value is not None)
    assert describe_table(tmp_path / "t")["rows"] == 150


def test_lag_of_groups(broker: BrokerProcess, cluster: Cluster) -> None:
    """The lag is the end offset minus the committed offset; a partition of a deleted topic has no end offset."""
    send(cluster, "orders", *[(None, b"v")] * 10)
    Groups(cluster).commit("readers", {("orders", 0): 2, ("orders", 1): 5})
    assert (
        group_lag(cluster)
        == group_lag(cluster, ["readers"])
        == [Lag("group", "readers", "orders", 0, 2, 5, 3), Lag("group", "readers", "orders", 1, 5, 5, 0)]
    )


def write_checkpoint(folder: Path, committed: list[int], **batches: str) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number in committed:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for batch, text in batches.items():
        (folder / "offsets" / batch.removeprefix("b")).write_text(text)
    return folder


def test_a_checkpoint_counts_what_was_committed(tmp_path: Path) -> None:
    """The planned offsets of a batch in progress do not count, and a source's own entries are not topics."""
    first = 'v1\n{"conf":{}}\n{"t":{"0":5,"1":7}}\n{"u":{"0":1}}'
    second = 'v1\n{"conf":{}}\n{"t":{"0":50,"1":70},"#topicIds":{"t":"x"},"#start":{"t":{"0":0}}}\n-'
    assert read_checkpoint(write_checkpoint(tmp_path / "a", [0], b0=first, b1=second)) == {
        ("t", 0): 5,
        ("t", 1): 7,
        ("u", 0): 1,
    }
    assert read_checkpoint(write_checkpoint(tmp_path / "b", [0, 1], b0=first, b1=second)) == {
        ("t", 0): 50,
        ("t", 1): 70,
    }
    assert read_checkpoint(write_checkpoint(tmp_path / "c", [], b0=first)) == {
        ("t", 0): None,
        ("t", 1): None,
        ("u", 0): None,
    }
    assert read_checkpoint(write_checkpoint(tmp_path / "d" / "_checkpoint", [0], b0=first).parent)["t", 0] == 5
    with pytest.raises(PipelineError, match="reads no topic"):
        read_checkpoint(write_checkpoint(tmp_path / "e", [0], b0='v1\n{}\n{"/a.jsonl":17}'))
    with pytest.raises(PipelineError, match="is not a checkpoint"):
        read_checkpoint(tmp_path)


def test_columns_are_only_added() -> None:
    def struct(**fields: Any) -> dict[str, Any]:
        return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}

    listed = {"type": "array", "elementType": struct(x="long")}
    assert first_loss(struct(a="long"), struct(a="long", b=listed)) is None
    assert first_loss(struct(a="long"), struct(b="long")) == "a would be removed"
    assert first_loss(struct(a="long"), struct(a="string")) == "a was long and would be string"
    assert first_loss(struct(a=listed), struct(a={**listed, "elementType": struct(y="long")})) == "a.x would be removed"
    assert first_loss(struct(a=struct(b="long")), struct(a="long")) == "a was struct and would be long"
