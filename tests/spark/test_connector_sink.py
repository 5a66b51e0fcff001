"""Spark's own Kafka connector, unmodified, writes: destinations and content of records, the idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.kafka_io import served, write
from tests.support.broker import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import EmbeddedBroker


def test_columns_say_where(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """The records have the columns topic, partition, key, value and headers."""
    for name in ("one", "two"):
        kafka.create_topic(name, 2)
    frame = connector.createDataFrame(
        [("one", 0, "k", "a", "h", b"1"), ("one", 1, None, "b", "h", None), ("two", 1, "k", None, "h", b"\xff")],
        "topic string, partition int, key string, value string, name string, held binary",
    ).selectExpr("topic", "partition", "key", "value", "array(named_struct('key', name, 'value', held)) headers")
    write(frame, kafka.bootstrap_servers, includeHeaders="true")
    found = {
        (topic, partition): [(one.key, one.value, one.headers) for one in kafka.records(topic, partition)]
        for topic in ("one", "two")
        for partition in (0, 1)
    }
    assert found == {
        ("one", 0): [(b"k", b"a", [("h", b"1")])],
        ("one", 1): [(None, b"b", [("h", None)])],
        ("two", 0): [],
        ("two", 1): [(b"k", None, [("h", b"\xff")])],
    }


@pytest.mark.parametrize(
    ("idempotence", "codec", "asked"), [("true", "zstd", True), ("true", "none", True), ("false", "lz4", False)]
)
def test_producers(connector: SparkSession, kafka: EmbeddedBroker, idempotence: str, codec: str, asked: bool) -> None:
    """Only an idempotent producer requests an id, and every record is stored once."""
    topic = kafka.create_topic(f"sent-{idempotence}-{codec}", 2)
    before = served(kafka)
    frame = connector.range(0, 500, numPartitions=2).selectExpr("cast(id as string) value")
    producer = {"kafka.enable.idempotence": idempotence, "kafka.compression.type": codec, "kafka.linger.ms": "5"}
    write(frame, kafka.bootstrap_servers, topic=topic, **producer)
    wait_for("the last Produce counts", lambda: served(kafka)["Produce", 11] > before["Produce", 11])
    assert ((served(kafka) - before)["InitProducerId", 5] > 0) == asked
    assert sorted(int(one.value or b"-1") for one in kafka.records(topic)) == list(range(500))


def test_a_refused_record(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """A record above max.message.bytes fails the write with Kafka's message, and the topic can be written further."""
    topic = kafka.create_topic("narrow", configs={"max.message.bytes": "1000"})
    frame = connector.sql("select repeat('x', 5000) value")
    with pytest.raises(Exception, match="RecordTooLargeException"):
        write(frame, kafka.bootstrap_servers, topic=topic)
    write(connector.sql("select 'x' value"), kafka.bootstrap_servers, topic=topic)
    assert [one.value for one in kafka.records(topic)] == [b"x"]
