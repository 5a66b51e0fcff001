"""The kind of a session: Spark on this machine, on a cluster, or behind Spark Connect."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

UNBOUNDED = 2**31 - 1  # Spark's default for the maximum number of executors
_TASK = "_task"
#: Numbers of cores of Spark Connect servers, each determined by a job.
_asked: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session uses Spark Connect: it has no JVM here, and functions of streams run on the server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def runs_elsewhere(spark: SparkSession) -> bool:
    """Return whether executors and this process may have different disks: on a cluster, or behind Spark Connect."""
    return is_connect(spark) or not str(spark.conf.get("spark.master")).startswith("local")


def parallelism(spark: SparkSession) -> int:
    """Return the number of concurrent tasks on all executors: the started ones, and those that Spark may start."""
    stated = _setting(spark, "spark.default.parallelism")
    if stated:
        return max(1, int(stated))
    cores = _cores(spark)
    if is_dynamic(spark):
        most = int(_setting(spark, "spark.dynamicAllocation.maxExecutors") or UNBOUNDED)
        if most < UNBOUNDED:
            cores = max(cores, most * int(_setting(spark, "spark.executor.cores") or 1))
    return max(1, cores // int(_setting(spark, "spark.task.cpus") or 1))


@contextmanager
def changed_setting(spark: SparkSession, name: str, value: str | None) -> Iterator[None]:
    """Change a setting of the session for a block. Args: `value`: None for no change."""
    if value is None:
        yield
        return
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def is_dynamic(spark: SparkSession) -> bool:
    """Return whether Spark starts executors on demand, and ends them afterwards."""
    return _setting(spark, "spark.dynamicAllocation.enabled") == "true"


def _setting(spark: SparkSession, name: str) -> str:
    return str(spark.conf.get(name, "") or "")


def _cores(spark: SparkSession) -> int:
    """Return the number of cores of the started executors."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if spark not in _asked:
        from pyspark.sql import functions as F

        # a range has a partition for each core of the server
        parts = spark.range(1 << 20).select(F.spark_partition_id()).distinct().count()
        _asked[spark] = parts
    return _asked[spark]


def in_tasks(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> DataFrame:
    """Return a DataFrame with a task for each of a few rows.

    They are sent as Arrow: Python rows would be converted by a Python of the executors other than that of
    `spark.sql.execution.pyspark.python`.
    """
    import pyarrow as pa

    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    numbers = pa.array(range(len(rows)), pa.int32())
    table = pa.Table.from_arrays([numbers, *columns], schema=pa.schema([pa.field(_TASK, pa.int32()), *schema]))
    return spark.createDataFrame(table).repartitionById(len(rows), _TASK).drop(_TASK)


def no_rows(spark: SparkSession, schema: Any) -> DataFrame:
    """Return a DataFrame without rows. Args: `schema` of Spark."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return spark.createDataFrame(to_arrow_schema(schema, timezone="UTC").empty_table(), schema)
