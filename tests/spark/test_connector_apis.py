"""APIs and versions that are sufficient for Spark's own Kafka connector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.testing import EmbeddedBroker, wait_until
from tests.spark.kafka_io import drain, load, offsets, places, served, stream, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Requests of kafka-clients 3.9.2, as recorded between the connector and Apache Kafka 4.3.1.
ALWAYS = {
    ("ApiVersions", 4), ("Metadata", 12), ("DescribeCluster", 1), ("DescribeTopicPartitions", 0),
    ("ListOffsets", 9), ("Fetch", 17), ("InitProducerId", 5), ("Produce", 11),
}  # fmt: skip
# With spark.sql.streaming.kafka.useDeprecatedOffsetFetching=true the driver joins a group to find its partitions.
BY_GROUP = {("FindCoordinator", 6), ("JoinGroup", 9), ("SyncGroup", 5), ("OffsetFetch", 9), ("LeaveGroup", 5)}
BY_GROUP_IN_TIME = {("Heartbeat", 4)}  # sent by a member that stays longer than three seconds
BY_ADMIN = {("DescribeCluster", 1), ("DescribeTopicPartitions", 0)}  # not used with a group
COUNT = 100


@contextmanager
def broker_that_serves(apis: Iterable[tuple[str, int]]) -> Iterator[EmbeddedBroker]:
    """Yield a broker that serves these APIs and versions only, and closes the connection on any other."""
    broker = EmbeddedBroker({"auto.create.topics.enable": False, "log.retention.ms": -1})
    versions = dict(apis)
    broker.apis.entries = {
        key: entry._replace(
            min_version=versions[entry.name], max_version=versions[entry.name], min_served_version=versions[entry.name]
        )
        for key, entry in broker.apis.entries.items()
        if entry.name in versions
    }
    assert len(broker.apis.entries) == len(versions)
    with broker:
        yield broker


def _fill(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    """Fill a topic with the connector, since another client would use other versions."""
    frame = spark.range(0, COUNT, numPartitions=1)
    write(frame.selectExpr("cast(id as string) value", "int(id % 2) partition"), broker.bootstrap_servers, topic=topic)


def test_the_default_path(connector: SparkSession, tmp_path: Path) -> None:
    """Batches, streams and sinks of every kind use exactly eight APIs, one version of each."""
    with broker_that_serves(ALWAYS) as broker:
        address = broker.bootstrap_servers
        for name in ("source", "target"):
            broker.create_topic(name, 2)
        _fill(connector, broker, "source")
        expected = sorted((number % 2, number // 2, str(number)) for number in range(COUNT))
        for what in (
            {"subscribe": "source", "startingTimestamp": "1"},
            {"subscribePattern": "sour.*", "kafka.isolation.level": "read_committed"},
            {"assign": '{"source":[0,1]}', "startingOffsets": offsets("source", [0, -2]), "minPartitions": "5"},
        ):
            assert places(load(connector, address, **what)) == expected, what
        frame = stream(connector, address, subscribe="source", maxOffsetsPerTrigger="40")
        assert drain(frame, tmp_path / "micro") == [40, 40, 20]
        assert drain(frame, tmp_path / "micro") == []
        copy = frame.selectExpr("value").writeStream.format("kafka").option("kafka.bootstrap.servers", address)
        for number, trigger in enumerate(
            ({"processingTime": "100 milliseconds"}, {"continuous": "200 milliseconds"}), 1
        ):
            folder = str(tmp_path / str(number))
            query = copy.option("topic", "target").option("checkpointLocation", folder).trigger(**trigger).start()
            try:
                wait_until(lambda: len(broker.records("target")) == number * COUNT, 60, f"copied by {trigger}")  # noqa: B023
            finally:
                query.stop()
        assert set(served(broker)) == ALWAYS


def test_the_deprecated_path(by_consumer: SparkSession, tmp_path: Path) -> None:
    """The deprecated way to find offsets uses five APIs of groups instead of the two that describe."""
    with broker_that_serves(ALWAYS | BY_GROUP | BY_GROUP_IN_TIME) as broker:
        broker.create_topic("source", 2)
        _fill(by_consumer, broker, "source")
        assert len(places(load(by_consumer, broker.bootstrap_servers, subscribe="source"))) == COUNT
        assert drain(stream(by_consumer, broker.bootstrap_servers, subscribe="source"), tmp_path) == [COUNT]
        asked = set(served(broker))
        assert asked - BY_GROUP_IN_TIME == (ALWAYS | BY_GROUP) - BY_ADMIN
