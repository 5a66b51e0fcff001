"""Common parts of the tests of the Spark source: topics, records, plans, queries that run to their end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.errors import NO_WORKER

WORKER_STARTS = 60  # on a busy machine more starts are needed than a job attempts


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Create a topic that keeps records of any age."""
    Admin(cluster).create_topics([NewTopic(topic, partitions, configs={"retention.ms": "-1"})])


def fill(cluster: Cluster, topic: str, count: int, partition: int = 0, codec: str = "none", first: int = 0) -> None:
    """Send the values `first`, `first` + 1 ... as decimal numbers to one partition."""
    with Producer(cluster, codec=codec) as producer:
        for i in range(first, first + count):
            producer.send(topic, b"%d" % i, partition=partition, timestamp_ms=1_000_000 + i)


def refusal(action: Callable[[], Any]) -> str:
    """Return the text of a failure as Spark shows it."""
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def values(frame: Any) -> list[int]:
    """Return the column value as sorted numbers."""
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def plan_of(frame: Any) -> str:
    """Return the optimized plan of a query."""
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def run_to_its_end(start: Callable[[], Any]) -> Any:
    """Start a query, wait for its end, and repeat it if Spark's Python worker never starts; return the query.

    Raises: StreamingQueryException.
    """
    from pyspark.errors import StreamingQueryException

    for left in reversed(range(WORKER_STARTS)):
        query = start()
        try:
            assert query.awaitTermination(120), "not done within two minutes"
            break
        except StreamingQueryException as error:
            if not left or NO_WORKER not in str(error):
                raise
        finally:
            query.stop()
    return query


class Stream:
    """Streaming query that can be run repeatedly from one checkpoint; `seen` has the values of its batches."""

    def __init__(self, spark: Any, bootstrap: str, checkpoint: Path, **options: str) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.options = {"kafka.bootstrap.servers": bootstrap, **{k.replace("__", "."): v for k, v in options.items()}}
        self.seen: list[list[int]] = []
        self.fails_at: int | None = None  # number of the batch that raises after its values are read

    def take(self, frame: Any, batch_id: int) -> None:
        found = values(frame)
        if self.fails_at == batch_id:
            raise RuntimeError(f"batch {batch_id} fails with {found}")
        self.seen.append(found)

    def start(self, **trigger: Any) -> Any:
        """Start the query and wait for its first batch, and repeat it if Spark's Python worker never starts."""
        query = self._start(**trigger)
        while query.isActive and not self.seen:
            time.sleep(0.02)
            if not query.isActive and NO_WORKER in str(query.exception()):
                query = self._start(**trigger)
        return query

    def _start(self, **trigger: Any) -> Any:
        return (
            self.spark.readStream.format("kbroker")
            .options(**self.options)
            .load()
            .writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self) -> Any:
        """Read all available records; return the query. Raises: StreamingQueryException."""
        return run_to_its_end(lambda: self._start(availableNow=True))

    def rows(self) -> list[int]:
        return sorted(value for batch in self.seen for value in batch)
