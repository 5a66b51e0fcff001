"""``format("kbroker")`` as a sink: without failures each row is written once, in order, to its key's partition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.protocol._arrow_rows import partition_of_key
from tests.spark.source_support import Stream, create, fill, refusal, run_to_its_end
from tests.support.broker import BrokerProcess

pytest.importorskip("pyspark")


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        Admin(opened).create_topics([NewTopic("out", 3)])
        yield opened


def save(frame: Any, broker: BrokerProcess, **options: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **{k.replace("__", "."): v for k, v in options.items()}}
    frame.write.format("kbroker").options(**given).mode("append").save()


def records(cluster: Cluster, topic: str = "out", partitions: int = 3) -> list[Record]:
    consumer = Consumer(cluster, {(topic, p): 0 for p in range(partitions)}, max_wait_ms=10)
    found: list[Record] = []
    while more := consumer.poll():
        found += more
    return found


def test_rows_arrive_in_order_where_their_keys_belong(spark: Any, broker: BrokerProcess, cluster: Cluster) -> None:
    """Text or bytes, headers and nulls are written in order, each key to the partition of Kafka's own producer."""
    frame = spark.range(0, 30_000, numPartitions=1).selectExpr(
        "CASE WHEN id % 10 = 9 THEN NULL ELSE concat('k', id % 7) END AS key",
        "CASE WHEN id = 5 THEN NULL ELSE CAST(CAST(id AS string) AS binary) END AS value",
        "CASE WHEN id % 2 = 0 THEN array(named_struct('key', 'h', 'value', X'01')) END AS headers",
        "id AS ignored",
    )
    save(frame, broker, topic="out", kafka__compression__type="lz4")
    found = records(cluster)
    assert len(found) == 30_000
    for record in found:
        if record.key is not None:
            assert record.partition == partition_of_key(record.key, 3)
    by_key: dict[bytes | None, list[int]] = {}
    for record in sorted(found, key=lambda r: (r.partition, r.offset)):
        if record.value is not None:
            by_key.setdefault(record.key, []).append(int(record.value))
            assert record.headers == ([("h", b"\1")] if int(record.value) % 2 == 0 else [])
    keyed = [numbers for key, numbers in by_key.items() if key is not None]
    assert all(numbers == sorted(numbers) for numbers in keyed)
    assert sorted(n for numbers in by_key.values() for n in numbers) == [n for n in range(30_000) if n != 5]


def test_columns_choose_topic_and_partition(spark: Any, broker: BrokerProcess, cluster: Cluster) -> None:
    """The column topic applies if the option is not set, and the column partition always."""
    create(cluster, "other", 2)
    frame = spark.createDataFrame(
        [("out", 2, b"a"), ("other", 1, b"b"), ("out", 0, b"c")], "topic string, partition int, value binary"
    )
    save(frame, broker)
    assert sorted((r.partition, r.value) for r in records(cluster)) == [(0, b"c"), (2, b"a")]
    assert [(r.partition, r.value) for r in records(cluster, "other", 2)] == [(1, b"b")]
    save(frame.filter("partition < 2"), broker, topic="other")
    assert len(records(cluster, "other", 2)) == 3


def test_a_stream_goes_from_topic_to_topic(spark: Any, broker: BrokerProcess, cluster: Cluster, tmp_path: Path) -> None:
    """A stream writes each batch once, over a restart too."""
    create(cluster, "t")
    for first in (0, 500):
        fill(cluster, "t", 500, first=first)
        source = Stream(spark, broker.bootstrap, tmp_path / "c", subscribe="t", startingOffsets="earliest")
        frame = spark.readStream.format("kbroker").options(**source.options, maxOffsetsPerTrigger="200").load()
        writer = (
            frame.select("value")
            .writeStream.format("kbroker")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
        )
        run_to_its_end(writer.start)
    assert sorted(int(r.value or b"") for r in records(cluster)) == list(range(1000))


def test_a_producer_id_is_used_where_it_may_be(spark: Any, broker: BrokerProcess, cluster: Cluster) -> None:
    """acks=all writes with a producer id; without idempotence none is requested."""
    frame = spark.createDataFrame([(b"a",)], "value binary")
    save(frame, broker, topic="out", kafka__acks="1")
    assert producer_ids(cluster) == []
    save(frame, broker, topic="out")
    assert len(producer_ids(cluster)) == 1


def producer_ids(cluster: Cluster) -> list[int]:
    body = {"Topics": [{"Name": "out", "PartitionIndexes": [0, 1, 2]}]}
    response = cluster.request(61, body)
    return [
        producer["ProducerId"]
        for topic in response["Topics"]
        for partition in topic["Partitions"]
        for producer in partition["ActiveProducers"]
    ]


def test_mistakes_end_in_one_sentence(spark: Any, broker: BrokerProcess, cluster: Cluster) -> None:
    """The error names the invalid column or option."""
    one = spark.createDataFrame([(b"a", 1, "x")], "value binary, number int, topic string")
    for expected, frame, options in (
        ("no topic to write to", one.select("value"), {}),
        ("the rows have no column value to write", one.select("number"), {"topic": "out"}),
        ("column value is int; cast it to binary or string", one.selectExpr("number AS value"), {"topic": "out"}),
        ("a row has no topic", one.selectExpr("value", "CAST(NULL AS string) AS topic"), {}),
        ("expected a partition from 0 to 2, got 9", one.selectExpr("value", "9 AS partition"), {"topic": "out"}),
        ("connection refused", one, {"topic": "out", "kafka__bootstrap__servers": "127.0.0.1:1"}),
    ):
        assert expected in refusal(lambda frame=frame, options=options: save(frame, broker, **options))  # type: ignore[misc]
    overwrite = one.write.format("kbroker").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "out")
    assert "a topic cannot be overwritten" in refusal(lambda: overwrite.mode("overwrite").save())
