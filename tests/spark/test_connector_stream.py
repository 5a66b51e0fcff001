"""Spark's own Kafka connector, unmodified, reads streams: triggers, limits, restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kbroker.testing import wait_until
from tests.spark.kafka_io import batch_sizes, drain, fill, in_turn, offsets, running, served, stream, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import EmbeddedBroker

SOON_S = 60.0


def test_batches_of_a_limited_size(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """availableNow reads all records in batches of maxOffsetsPerTrigger; a restart reads later records once."""
    topic = kafka.create_topic("limited", 2)
    fill(kafka.bootstrap_servers, topic, 1000, 2)
    frame = stream(connector, kafka.bootstrap_servers, subscribe=topic, maxOffsetsPerTrigger="300")
    assert drain(frame, tmp_path) == [300, 300, 300, 100]
    assert drain(frame, tmp_path) == []
    fill(kafka.bootstrap_servers, topic, 50, 2, first=1000)
    assert drain(frame, tmp_path) == [50]
    assert table(connector, tmp_path) == in_turn(1050, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"subscribePattern": "kinds.*", "kafka.isolation.level": "read_committed"},
        {"assign": '{"kinds":[0,1,2]}', "minPartitions": "7"},
    ],
    ids=lambda options: " ".join(options),
)
def test_kinds_of_streams(
    connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path, options: dict[str, str]
) -> None:
    """Each way to name the topic reads every record once."""
    if "kinds" not in kafka.topics:
        kafka.create_topic("kinds", 3)
        fill(kafka.bootstrap_servers, "kinds", 90, 3)
    assert drain(stream(connector, kafka.bootstrap_servers, **options), tmp_path) == [90]
    assert table(connector, tmp_path) == in_turn(90, 3)


def test_offsets_by_a_consumer(by_consumer: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """With the deprecated way to find offsets a stream continues at its checkpoint, too."""
    topic = kafka.create_topic("old-way", 2)
    for count in (20, 10):
        fill(kafka.bootstrap_servers, topic, count, 2, first=0)
        frame = stream(by_consumer, kafka.bootstrap_servers, subscribe=topic)
        assert drain(frame, tmp_path) == [count]


def test_where_a_stream_starts(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """A first run starts at offsets, at a time, or at the end; later runs start at the checkpoint."""
    topic = kafka.create_topic("starts", 2)
    fill(kafka.bootstrap_servers, topic, 100, 2)
    address = kafka.bootstrap_servers
    at_offsets = stream(connector, address, subscribe=topic, startingOffsets=offsets(topic, [45, 50]))
    assert drain(at_offsets, tmp_path / "offsets") == [5]
    at_time = stream(connector, address, subscribe=topic, startingTimestamp="1090")
    assert drain(at_time, tmp_path / "time") == [10]
    at_end = stream(connector, address, subscribe=topic, startingOffsets="latest")
    assert drain(at_end, tmp_path / "end") == []
    fill(address, topic, 10, 2, first=100)
    assert drain(at_end, tmp_path / "end") == [10]
    assert drain(stream(connector, address, subscribe=topic), tmp_path / "end") == []


def test_a_batch_waits_until_it_is_worth_it(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """minOffsetsPerTrigger delays a batch until it has that many records."""
    topic = kafka.create_topic("worth")
    address = kafka.bootstrap_servers
    fill(address, topic, 10, 1)
    frame = stream(connector, address, subscribe=topic, minOffsetsPerTrigger="50", maxTriggerDelay="10m")
    query = running(frame, tmp_path)
    try:
        # the first batch has any size; the next one waits
        wait_until(lambda: batch_sizes(query) == [10], SOON_S, "the first batch")
        fill(address, topic, 30, 1, first=10)
        asked = served(kafka)["ListOffsets", 9]
        wait_until(lambda: served(kafka)["ListOffsets", 9] >= asked + 5, SOON_S, "some looks at 30 new records")
        assert batch_sizes(query) == [10]
        fill(address, topic, 30, 1, first=40)
        wait_until(lambda: batch_sizes(query) == [10, 60], SOON_S, "the second batch")
    finally:
        query.stop()


def test_partitions_that_come_later(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """A partition added while the stream runs is read from its beginning."""
    topic = kafka.create_topic("grows")
    address = kafka.bootstrap_servers
    fill(address, topic, 10, 1)
    query = running(stream(connector, address, subscribe=topic), tmp_path)
    try:
        wait_until(lambda: sum(batch_sizes(query)) == 10, SOON_S, "the first records")
        admin = AdminClient({"bootstrap.servers": address})
        (done,) = admin.create_partitions([NewPartitions(topic, 3)]).values()
        done.result(10)
        fill(address, topic, 30, 3)
        wait_until(lambda: sum(batch_sizes(query)) == 40, SOON_S, "records of the new partitions")
    finally:
        query.stop()


def test_continuous(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """The continuous trigger copies a topic record by record, and continues after a restart."""
    source, target = kafka.create_topic("from", 2), kafka.create_topic("to", 1)
    address = kafka.bootstrap_servers

    def copied() -> list[int]:
        return sorted(int(record.value or b"-1") for record in kafka.records(target))

    total = 0
    for _ in range(2):
        query = (
            stream(connector, address, subscribe=source)
            .selectExpr("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path))
            .trigger(continuous="200 milliseconds")
            .start()
        )
        try:
            for _ in range(2):
                fill(address, source, 100, 2, first=total)
                total += 100
                wait_until(lambda: len(set(copied())) == total, SOON_S, f"{total} copied records")  # noqa: B023
            # epochs lag behind the copying; an epoch that ends at the last record makes the restart exact
            wait_until(lambda: _committed(tmp_path) == [total // 2] * 2, SOON_S, "the last epoch")  # noqa: B023
        finally:
            query.stop()
    assert copied() == list(range(total))


def _committed(checkpoint: Path) -> list[int]:
    """Return the offsets by partition of the last committed epoch."""
    epochs = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
    if not epochs:
        return []
    last = (checkpoint / "offsets" / str(max(epochs))).read_text().splitlines()[-1]
    (by_partition,) = json.loads(last).values()
    return [by_partition[index] for index in sorted(by_partition)]


def test_a_topic_copied_by_micro_batches(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """A stream from topic to topic with the default trigger copies each record."""
    source, target = kafka.create_topic("left", 2), kafka.create_topic("right", 3)
    address = kafka.bootstrap_servers
    fill(address, source, 100, 2)
    query = (
        stream(connector, address, subscribe=source)
        .selectExpr("cast(offset as string) key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_until(lambda: len(kafka.records(target)) == 100, SOON_S, "the first records")
        fill(address, source, 100, 2, first=100)
        wait_until(lambda: len(kafka.records(target)) == 200, SOON_S, "the records of the second batch")
    finally:
        query.stop()
    assert sorted(int(record.value or b"-1") for record in kafka.records(target)) == list(range(200))
