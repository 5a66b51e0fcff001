"""What kind of session a job has been given: Spark on this machine, on a cluster, or behind Spark Connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMOTE_PARALLELISM = 8  # where the number of cores cannot be asked for


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: it has no JVM here, and its stream's functions run on the server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def runs_elsewhere(spark: SparkSession) -> bool:
    """Whether executors may have other disks than this process: on a cluster, or behind Spark Connect."""
    return is_connect(spark) or not str(spark.conf.get("spark.master")).startswith("local")


def parallelism(spark: SparkSession) -> int:
    """How many tasks can run at once, as far as is known now."""
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", str(REMOTE_PARALLELISM)) or REMOTE_PARALLELISM)
    return spark.sparkContext.defaultParallelism


def in_tasks(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """A few rows, each for a separate task."""
    if is_connect(spark):
        return spark.createDataFrame(list(rows), schema).repartition(len(rows))
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), schema)
