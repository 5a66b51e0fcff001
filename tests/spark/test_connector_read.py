"""Spark's own Kafka connector, unmodified, reads batches: topics, starting and ending offsets, splits."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.spark.kafka_io import fill, in_turn, load, offsets, places, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import EmbeddedBroker

COUNT, PARTITIONS = 200, 2
CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def numbers(kafka: EmbeddedBroker) -> str:
    """Return a topic of 200 values over two partitions, at 1,000 to 1,199 ms."""
    kafka.create_topic("numbers", PARTITIONS)
    fill(kafka.bootstrap_servers, "numbers", COUNT, PARTITIONS)
    return "numbers"


@pytest.mark.parametrize(
    "what",
    [
        {"subscribe": "numbers", "kafka.group.id": "ours", "minPartitions": "5"},
        {"subscribePattern": "num.*", "kafka.isolation.level": "read_committed"},
        {"assign": '{"numbers":[0,1]}', "fetchOffset.numRetries": "1", "kafka.fetch.max.bytes": "1000"},
    ],
    ids=lambda what: " ".join(what),
)
def test_all_of_a_topic(connector: SparkSession, kafka: EmbeddedBroker, numbers: str, what: dict[str, str]) -> None:
    """Each way to name the topic reads every record once, at its offset."""
    assert places(load(connector, kafka.bootstrap_servers, **what)) == in_turn(COUNT, PARTITIONS)


def test_offsets_by_a_consumer(by_consumer: SparkSession, kafka: EmbeddedBroker, numbers: str) -> None:
    """The deprecated way to find offsets, as a member of a group on the driver, reads the same records."""
    address = kafka.bootstrap_servers
    for what in ({"subscribe": numbers}, {"subscribePattern": "num.*"}, {"assign": '{"numbers":[0,1]}'}):
        assert places(load(by_consumer, address, **what)) == in_turn(COUNT, PARTITIONS)
    frame = load(by_consumer, address, subscribe=numbers, startingTimestamp="1198")
    assert values(frame) == ["198", "199"]


def test_some_partitions(connector: SparkSession, kafka: EmbeddedBroker, numbers: str) -> None:
    """An assigned partition returns no record of another."""
    found = places(load(connector, kafka.bootstrap_servers, assign='{"numbers":[1]}'))
    assert found == [place for place in in_turn(COUNT, PARTITIONS) if place[0] == 1]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [((10, 20), (15, 20), range(10, 15)), ((-2, 100), (5, -1), range(5)), ((95, 100), (-1, -1), range(95, 100))],
)
def test_offsets(
    connector: SparkSession, kafka: EmbeddedBroker, numbers: str,
    start: tuple[int, int], end: tuple[int, int], expected: range,
) -> None:  # fmt: skip
    """The starting offset is inclusive and the ending offset exclusive; -2 is the earliest, -1 the latest."""
    frame = load(
        connector, kafka.bootstrap_servers, subscribe=numbers,
        startingOffsets=offsets(numbers, start), endingOffsets=offsets(numbers, end),
    )  # fmt: skip
    assert places(frame) == [(0, offset, str(2 * offset)) for offset in expected]


def test_times(connector: SparkSession, kafka: EmbeddedBroker, numbers: str) -> None:
    """A time means the first record at or after it, for all partitions or for single partitions."""
    address = kafka.bootstrap_servers
    frame = load(connector, address, subscribe=numbers, startingTimestamp="1050", endingTimestamp="1060")
    assert values(frame) == [str(number) for number in range(50, 60)]
    frame = load(
        connector, address, subscribe=numbers,
        startingOffsetsByTimestamp=offsets(numbers, (1101, 1190)),
        endingOffsetsByTimestamp=offsets(numbers, (1103, 1195)),
    )  # fmt: skip
    assert values(frame) == ["102", "191", "193"]


def test_times_behind_the_last_record(connector: SparkSession, kafka: EmbeddedBroker, numbers: str) -> None:
    """An ending time after the last record means the end; a starting time is an error, or with a setting no record."""
    address = kafka.bootstrap_servers
    frame = load(connector, address, subscribe=numbers, startingTimestamp="1198", endingTimestamp="9999")
    assert values(frame) == ["198", "199"]
    late = {"subscribe": numbers, "startingTimestamp": "9999"}
    with pytest.raises(Exception, match="No offset matched from request"):
        load(connector, address, **late).count()
    assert load(connector, address, **late, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_more_tasks_than_partitions(connector: SparkSession, kafka: EmbeddedBroker, numbers: str) -> None:
    """minPartitions splits partitions over more tasks, with the same records."""
    frame = load(connector, kafka.bootstrap_servers, subscribe=numbers, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert values(frame) == [str(number) for number in range(COUNT)]


def test_what_a_record_carries(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """Key, value, headers, time and time type are those of the record, with duplicate headers and null values."""
    topic = kafka.create_topic("whole")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    headers = [("a", b"1"), ("a", b"\x00\xff"), ("b", None)]
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123, headers=headers)  # type: ignore[arg-type]
    producer.produce(topic, None, None, timestamp=1)
    producer.produce(topic, b"", b"", timestamp=2)
    assert producer.flush(10) == 0
    frame = load(connector, kafka.bootstrap_servers, subscribe=topic, includeHeaders="true")
    first, second, third = frame.orderBy("offset").selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"v", topic, 0, 0)
    assert (first.ms, first.timestampType) == (1_700_000_000_123, 0)
    assert [(header.key, header.value) for header in first.headers] == headers
    assert (second.key, second.value, second.headers, second.ms) == (None, None, None, 1)
    assert (third.key, third.value) == (b"", b"")


def test_time_of_the_log(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """A topic of message.timestamp.type=LogAppendTime gives the broker's time, as type 1."""
    topic = kafka.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    before = time.time()
    fill(kafka.bootstrap_servers, topic, 1, 1)
    (row,) = load(connector, kafka.bootstrap_servers, subscribe=topic).collect()
    assert row.timestampType == 1
    assert before - 1 <= row.timestamp.replace(tzinfo=datetime.timezone.utc).timestamp() <= time.time() + 1


def test_codecs(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """Batches of several codecs in one topic are read with Spark's libraries."""
    topic = kafka.create_topic("packed", PARTITIONS)
    for number, codec in enumerate(CODECS):
        fill(kafka.bootstrap_servers, topic, COUNT, PARTITIONS, first=number * COUNT, codec=codec)
    found = places(load(connector, kafka.bootstrap_servers, subscribe=topic))
    assert found == in_turn(COUNT * len(CODECS), PARTITIONS)


def test_many_topics(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """A pattern and a list read several topics into one frame, each record with its topic."""
    for name in ("day-1", "day-2", "night-1"):
        kafka.create_topic(name)
        fill(kafka.bootstrap_servers, name, 3, 1)
    for what in ({"subscribePattern": "day-.*"}, {"subscribe": "day-1,day-2"}):
        found = load(connector, kafka.bootstrap_servers, **what).groupBy("topic").count().collect()
        assert sorted((row.topic, row["count"]) for row in found) == [("day-1", 3), ("day-2", 3)]


def test_records_that_are_deleted(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """A read from offsets of deleted records fails; failOnDataLoss=false reads the remaining records."""
    topic = kafka.create_topic("short")
    fill(kafka.bootstrap_servers, topic, 100, 1)
    _delete_before(kafka, topic, 40)
    assert values(load(connector, kafka.bootstrap_servers, subscribe=topic)) == [str(n) for n in range(40, 100)]
    old = {"subscribe": topic, "startingOffsets": offsets(topic, [10])}
    with pytest.raises(Exception, match=r"OffsetOutOfRangeException"):
        load(connector, kafka.bootstrap_servers, **old).count()
    left = load(connector, kafka.bootstrap_servers, **old, failOnDataLoss="false")
    assert values(left) == [str(n) for n in range(40, 100)]


def _delete_before(kafka: EmbeddedBroker, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (done,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    done.result(10)
