"""``format("memory")``: the batches of ``format("kbroker")`` without a broker, as the upper limit of a Python source.

Each task repeats one prepared Arrow batch, so that the cost is Spark's own work from the Python worker into the JVM and
into rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from kbroker.spark.datasource.column_types import TYPES

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def register(spark: SparkSession) -> None:
    """Register the source.

    Options: ``records`` in total, ``partitions``, ``value_bytes``; ``subscribe``, for the column of the topic;
    ``batch_bytes`` of an Arrow batch, by default as for `kbroker`.
    """

    class MemoryReader(DataSourceReader):  # nested, so that workers get it by value
        def __init__(self, options: dict[str, str]) -> None:
            self.options = options

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(i) for i in range(int(self.options["partitions"]))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import os

            from kbroker.protocol.records import build_batch
            from kbroker.spark.datasource.arrow_batches import BatchBuilder
            from kbroker.spark.datasource.range_reader import LIMIT_BYTES, LIMIT_ROWS
            from kbroker.spark.setup.worker_memory import freeze_modules

            freeze_modules()
            left = int(self.options["records"]) // int(self.options["partitions"])
            builder = BatchBuilder(COLUMNS, self.options["subscribe"], partition.value)
            value_bytes = int(self.options["value_bytes"])
            limit_bytes = int(self.options.get("batch_bytes", LIMIT_BYTES))
            batch = build_batch(
                [(b"key-%05d" % i, os.urandom(value_bytes)) for i in range(16_000 // (value_bytes + 20))]
            )
            while not builder.gathered.is_full:
                builder.gathered.append(batch, 0, 0, 1 << 62, limit_rows=LIMIT_ROWS, limit_bytes=limit_bytes)
            made = builder.take()
            while left > 0:
                yield made.slice(0, min(left, made.num_rows))
                left -= made.num_rows

    class MemorySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "memory"

        def schema(self) -> StructType:
            return StructType([StructField(name, TYPES[name]) for name in COLUMNS])

        def reader(self, schema: StructType) -> DataSourceReader:
            return MemoryReader(dict(self.options))

    spark.dataSource.register(MemorySource)
