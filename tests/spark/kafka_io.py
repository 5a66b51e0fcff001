"""Common parts of the tests of the official connector: topics with known records, and frames over them."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

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
    """A batch frame over a topic."""
    return spark.read.format("kafka").option("kafka.bootstrap.servers", address).options(**options).load()


def stream(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """A streaming frame from the beginning of a topic, unless the options say otherwise."""
    given = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).options(**given).load()


def places(frame: DataFrame) -> list[Place]:
    """Partition, offset and value of each record, in order."""
    found = frame.selectExpr("partition", "offset", "cast(value as string) value").collect()
    return sorted((row.partition, row.offset, row.value) for row in found)


def values(frame: DataFrame) -> list[str]:
    """The values of a frame as text, in order of their numbers."""
    return sorted((row.value for row in frame.selectExpr("cast(value as string) value").collect()), key=int)


def write(frame: DataFrame, address: str, **options: str) -> None:
    """Send a frame to a topic."""
    frame.write.format("kafka").option("kafka.bootstrap.servers", address).options(**options).save()


def drain(frame: DataFrame, folder: Path) -> list[int]:
    """Take all there is now into Parquet files below `folder`, continuing at its checkpoint; return rows per batch."""
    query = (
        frame.selectExpr("partition", "offset", "cast(value as string) value")
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batch_sizes(query)


def batch_sizes(query: StreamingQuery) -> list[int]:
    """Rows of each batch so far that had any."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def table(spark: SparkSession, folder: Path) -> list[Place]:
    """Return the positions that `drain` has written so far."""
    found = spark.read.schema("partition int, offset long, value string").parquet(str(folder / "table")).collect()
    return sorted((row.partition, row.offset, row.value) for row in found)


def offsets(topic: str, by_partition: Iterable[int]) -> str:
    """The connector's JSON of offsets (or times), one for each partition from 0 on."""
    return json.dumps({topic: {str(index): offset for index, offset in enumerate(by_partition)}})


def in_turn(count: int, partitions: int) -> list[Place]:
    """The places of `fill`'s first `count` values."""
    return sorted((number % partitions, number // partitions, str(number)) for number in range(count))


def unused_address() -> str:
    """An address of this machine where no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def served(broker: EmbeddedBroker) -> Counter[tuple[str, int]]:
    """Requests that a broker has completed until now, by API and version."""
    found: Counter[tuple[str, int]] = Counter()
    for metrics in broker.parts.server.request_metrics:
        for key, figures in metrics.snapshot().items():
            if key in broker.apis.entries:  # not the two kinds of Fetch once more
                for version, count in figures["versions"].items():
                    found[broker.apis.entries[key].name, version] += count
    return found
