"""Faults of a source: damaged and old records, transactions, logins, a broker that is killed during a query."""

import struct
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from kbroker.client.cluster import Cluster
from kbroker.client.partition_reader import FetchSettings
from kbroker.protocol.records import Record, build_batch
from kbroker.spark.datasource.arrow_batches import BatchBuilder
from kbroker.spark.datasource.column_types import TYPES
from kbroker.spark.datasource.options import COLUMNS
from kbroker.spark.datasource.planning import OffsetRange
from kbroker.spark.datasource.range_reader import RangeReader
from tests.spark.source_support import refusal, values
from tests.support.certificates import Certificates
from tests.support.control_batches import build_control_batch
from tests.support.fake_log import FakeLogBroker, FakeTime
from tests.support.fixtures import fixture_of
from tests.support.secured import SecuredBroker

fake = fixture_of(FakeLogBroker)


def load(spark: Any, bootstrap: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}
    given |= {k.replace("__", "."): v for k, v in options.items()}
    return spark.read.format("kbroker").options(**given).load()


def test_the_arrow_schema_is_the_one_spark_expects() -> None:
    """The schema equals that of Spark exactly, with which Spark compares the first batch."""
    expected = to_arrow_schema(StructType([StructField(name, TYPES[name]) for name in COLUMNS]), timezone="UTC")
    builder = BatchBuilder(COLUMNS, "t", 0)
    assert builder.schema.equals(expected)
    builder.gathered.append(build_batch([Record(b"k", None, 5, [("h", b"v")]), Record(None, b"v", 6)]), 0, 0, 9)
    batch = builder.take()
    batch.validate(full=True)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.equals(expected)
    assert batch.column("headers").to_pylist() == [[{"key": "h", "value": b"v"}], None]


def test_damaged_records_are_reported_and_not_returned(spark: Any, fake: FakeLogBroker) -> None:
    """A wrong checksum ends the query with partition and offset."""
    whole, damaged = (build_batch([(None, b"%d" % i)] * 3, base_offset=3 * i) for i in range(2))
    fake.logs["t", 0] = [whole, damaged[:-1] + b"?"]
    shown = refusal(lambda: load(spark, fake.bootstrap).collect())
    assert "CORRUPT_MESSAGE: partition t-0: wrong checksum (batch at offset 3)" in shown
    assert values(load(spark, fake.bootstrap, endingOffsets='{"t":{"0":3}}')) == [0, 0, 0]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_reported(spark: Any, fake: FakeLogBroker, magic: int) -> None:
    """Records from before Kafka 0.11 are an error that names the format."""
    fake.logs["t", 0] = [build_batch([(None, b"x")] * 3)]
    message = struct.pack(">qiIbb", 0, 14, 0, magic, 0) + struct.pack(">ii", -1, -1)

    def old(version: int, body: Any) -> Any:
        part = {"PartitionIndex": 0, "HighWatermark": 3, "LastStableOffset": 3, "Records": message}
        return {"Responses": [{"TopicId": fake.ids["t"], "Partitions": [part]}]}

    fake.handlers[1] = old
    shown = refusal(lambda: load(spark, fake.bootstrap).collect())
    assert f"the log is in message format {magic}" in shown
    assert "only format 2 can be read" in shown


def test_aborted_transactions_are_left_out(spark: Any, fake: FakeLogBroker) -> None:
    """read_committed returns committed records, with interleaved transactions too; read_uncommitted returns all."""

    def batch(first: int, producer_id: int) -> bytes:
        rows = [(None, b"%d" % (first + i)) for i in range(2)]
        return build_batch(
            rows, base_offset=first, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )

    def marker(offset: int, producer_id: int, commit: bool) -> bytes:
        return build_control_batch(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )

    fake.logs["t", 0] = [
        batch(0, 1),
        batch(2, 2),
        batch(4, 1),
        marker(6, 1, False),
        marker(7, 2, True),
        batch(8, 1),
        marker(10, 1, True),
    ]
    fake.aborted = [{"ProducerId": 1, "FirstOffset": 0}]
    every = [0, 1, 2, 3, 4, 5, 8, 9]
    assert values(load(spark, fake.bootstrap, kafka__isolation__level="read_committed")) == [2, 3, 8, 9]
    fake.aborted = []
    assert values(load(spark, fake.bootstrap)) == every


def test_a_broker_that_dies_under_a_task_is_reported_within_seconds(spark: Any, fake: FakeLogBroker) -> None:
    """The connection is lost during a Fetch, and no server listens any more."""
    fake.logs["t", 0] = [build_batch([(None, b"x")] * 3)]

    def die(version: int, body: Any) -> None:
        fake.listener.close()

    fake.handlers[1] = die
    begun = time.monotonic()
    shown = refusal(lambda: load(spark, fake.bootstrap, kafka__default__api__timeout__ms="2000").collect())
    assert f"broker {fake.bootstrap}: " in shown
    assert time.monotonic() - begun < 30


def test_a_silent_broker_is_reported_within_seconds(spark: Any, fake: FakeLogBroker) -> None:
    """A broker that accepts a Fetch and never responds ends the query after the request time-out."""
    fake.logs["t", 0] = [build_batch([(None, b"x")] * 3)]
    fake.handlers[1] = lambda version, body: b""
    options = {"kafka__default__api__timeout__ms": "500", "kafka__request__timeout__ms": "1000"}
    assert "no response within 1.5 s" in refusal(lambda: load(spark, fake.bootstrap, **options).collect())


def test_logins_over_tls_and_wrong_passwords(spark: Any, tmp_path: Path) -> None:
    """SASL over TLS uses Kafka's property names; a wrong password gets the broker's error and is not shown."""
    with SecuredBroker(Certificates(tmp_path)) as secured:
        secured.broker.create_topic("t")
        options = {f"kafka.{name}": value for name, value in secured.properties("BOTH").items()}
        where = secured.address("BOTH")
        rows = spark.createDataFrame([(b"7",)], "value binary")
        sink = rows.write.format("kbroker").options(**options).option("kafka.bootstrap.servers", where)
        sink.option("topic", "t").mode("append").save()
        assert values(load(spark, where, **options)) == [7]
        wrong = {**options, "kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace("alice-s", "bad-s")}
        shown = refusal(lambda: load(spark, where, **wrong).collect())
    assert "SASL_AUTHENTICATION_FAILED" in shown
    assert "bad-secret" not in shown


def test_a_workers_connection_is_used_again(spark: Any, fake: FakeLogBroker) -> None:
    """Tasks of one worker share a connection instead of opening one each."""
    fake.logs["t", 0] = [build_batch([(None, b"x")], base_offset=i) for i in range(64)]
    frame = load(spark, fake.bootstrap, minPartitions="16")
    assert frame.count() == 64
    with Cluster(fake.bootstrap):
        assert len(fake.sockets) <= 4  # the planner's, two workers', this one


def test_throttles_are_reported(fake: FakeLogBroker, caplog: pytest.LogCaptureFixture) -> None:
    """A range logs a throttling quota at once, and then every ten seconds with the sum."""
    passing, real = FakeTime(), fake.fetch
    fake.logs["t", 0] = [build_batch([(None, b"x")] * 3)]
    throttles = iter([3_000] * 5)

    def fetch(version: int, body: Any) -> Any:
        passing.advance(3)
        milliseconds = next(throttles, 0)
        return {"ThrottleTimeMs": milliseconds, "Responses": []} if milliseconds else real(version, body)

    fake.handlers[1] = fetch
    with Cluster(fake.bootstrap, clock=passing.clock, sleep=passing.sleep, client_id="c") as cluster:
        reader = RangeReader(cluster, OffsetRange("t", 0, 0, 3, fake.ids["t"]), ("value",), FetchSettings())
        assert [batch.num_rows for batch in reader] == [3]
    assert reader.throttled_s == 15
    assert [record.getMessage() for record in caplog.records] == [
        f"kbroker: partition t-0: a quota of the broker throttles client c, for {seconds} s so far"
        for seconds in ("3.0", "15.0")
    ]
