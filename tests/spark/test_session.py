"""Spark session: counts, Python over Arrow, UTC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def test_python_over_arrow(spark: SparkSession) -> None:
    """A function over Arrow batches runs in worker processes of this interpreter."""

    def versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "python": [sys.executable]})

    import sys

    rows = spark.range(0, 1000, numPartitions=2).mapInArrow(versions, "rows long, python string").collect()
    assert sum(row.rows for row in rows) == 1000
    assert {row.python for row in rows} == {sys.executable}


def test_times_are_utc(spark: SparkSession) -> None:
    """A timestamp is shown and parsed as UTC in any zone of the machine."""
    (row,) = spark.sql("select cast(timestamp_millis(0) as string) as text").collect()
    assert row.text == "1970-01-01 00:00:00"
