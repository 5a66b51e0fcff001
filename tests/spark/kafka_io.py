"""Common parts of the tests of the official connector: topics with known records, and frames of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from kbroker.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Place = tuple[int, int, str]  # partition, offset, value


def fill(address: str, topic: str, count: int, partitions: int, *, first: int = 0, codec: str = "none") -> list[str]:
    """Write values `first`, `first + 1`, ... in turn over the partitions, at 1,000 ms, 1,001 ms, ...; return them."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "compression.type": codec, "acks": "all"})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), partition=number % partitions, timestamp=1000 + number)
    assert producer.flush(30) == 0
    return [str(number) for number in range(first, first + count)]


def load(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """Return a batch frame of a topic."""
    return spark.read.format("kafka").option("kafka.bootstrap.servers", address).options(**options).load()


def stream(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """Return a streaming frame from the beginning of a topic, or from the position in the options."""
    given = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).options(**given).load()


def places(frame: DataFrame) -> list[Place]:
    """Return partition, offset and value of each record, in order."""
    found = frame.selectExpr("partition", "offset", "cast(value as string) value").collect()
    return sorted((row.partition, row.offset, row.value) for row in found)


def values(frame: DataFrame) -> list[str]:
    """Return the values of a frame as text, in numeric order."""
    return sorted((row.value for row in frame.selectExpr("cast(value as string) value").collect()), key=int)


def write(frame: DataFrame, address: str, **options: str) -> None:
    """Send a frame to a topic."""
    frame.write.format("kafka").option("kafka.bootstrap.servers", address).options(**options).save()


def drain(frame: DataFrame, folder: Path) -> list[int]:
    """Copy all available records to Parquet files below `folder`, from its checkpoint on; return the rows per batch."""
    query = running(frame, folder, availableNow=True)
    query.awaitTermination()
    return batch_sizes(query)


def running(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start the query of `drain`, by default without an end."""
    return (
        frame.selectExpr("partition", "offset", "cast(value as string) value")
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**(trigger or {"processingTime": "100 milliseconds"}))
        .start()
    )


def batch_sizes(query: StreamingQuery) -> list[int]:
    """Return the rows of each batch so far that had any."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def table(spark: SparkSession, folder: Path) -> list[Place]:
    """Return the positions that `drain` has written so far."""
    found = spark.read.schema("partition int, offset long, value string").parquet(str(folder / "table")).collect()
    return sorted((row.partition, row.offset, row.value) for row in found)


def offsets(topic: str, by_partition: Iterable[int]) -> str:
    """Return the connector's JSON of offsets (or times), one for each partition from 0 on."""
    return json.dumps({topic: {str(index): offset for index, offset in enumerate(by_partition)}})


def in_turn(count: int, partitions: int) -> list[Place]:
    """Return the places of the first `count` values of `fill`."""
    return sorted((number % partitions, number // partitions, str(number)) for number in range(count))


def served(broker: EmbeddedBroker) -> Counter[tuple[str, int]]:
    """Return the requests that a broker has completed until now, by API and version."""
    found: Counter[tuple[str, int]] = Counter()
    for metrics in broker.parts.server.request_metrics:
        for key, figures in metrics.snapshot().items():
            if key in broker.apis.entries:  # excludes the two kinds of Fetch, which are counted in Fetch
                for version, count in figures["versions"].items():
                    found[broker.apis.entries[key].name, version] += count
    return found
