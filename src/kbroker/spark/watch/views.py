"""Table of `watch`: usage and throttles by minute, and the connections of each day; queries of the jobs on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kbroker.spark.tables.log_reader import REASON
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.usage_views import throttles
from kbroker.spark.usage_views.usage import ENTITY, MEASURES, all_equal, summed_up, with_connections
from kbroker.spark.watch.minutes import CONNECTION, MINUTE_S, THROTTLES, USAGE, connections_of, throttles_of, traffic_of

SCHEMA_VERSION = 1
#: A row belongs to one view, with null in the columns of the others. `time`: beginning of its minute; for a
#: connection, its first request of the day.
_COLUMNS = {
    "view": "string",
    "time": "timestamp",
    **dict.fromkeys(ENTITY, "string"),
    **dict.fromkeys(MEASURES, "long"),
    **{f"{name}_peak": "long" for name in MEASURES},
    "connection": "string",
    **dict.fromkeys(("quota_type", "user", "ip"), "string"),
    **dict.fromkeys((*throttles.COUNTED, "delay_max_ms"), "long"),
    "limit": "double",
}


def views_schema() -> StructType:
    """Return the columns of a row, without the partition columns."""
    schema = StructType()
    for name, kind in _COLUMNS.items():
        schema.add(name, kind)
    return schema


def rows_of(closed: DataFrame, known: Callable[[Sequence[str]], DataFrame]) -> DataFrame:
    """Return the rows of the table for a batch of closed minutes.

    Args: `closed`: a batch of `open_minutes`, read several times; `known`: returns the table's connections of given
    days.

    Minutes are closed in order, so a connection that the table does not have began in this batch.
    """
    opened = connections_of(closed)
    dates = [row["date"] for row in opened.select("date").distinct().collect()]
    if dates:
        seen = known(dates).select(*(F.col(name).alias(f"_{name}") for name in _CONNECTION))
        opened = opened.join(seen, all_equal(_CONNECTION), "left_anti")
    seconds = with_connections(traffic_of(closed), opened)
    minute = F.lit(MINUTE_S) * F.floor(F.col("second") / F.lit(MINUTE_S))
    used = summed_up(seconds.withColumn("minute", minute), "minute", *ENTITY)
    parts = [
        used.select(F.lit(USAGE).alias("view"), _time("minute"), "*"),
        throttles_of(closed).select(F.lit(THROTTLES).alias("view"), _time("minute"), "*"),
        opened.select(F.lit(CONNECTION).alias("view"), _time("second"), *ENTITY, "connection"),
    ]
    whole = [part.select(*(_column(part, name, kind) for name, kind in _COLUMNS.items())) for part in parts]
    return whole[0].unionByName(whole[1]).unionByName(whole[2]).withColumn(REASON, F.lit(None).cast("string"))


_CONNECTION = ("date", *ENTITY, "connection")


def known_connections(spark: SparkSession, table: TableName, dates: Sequence[str]) -> DataFrame:
    """Return the connections of some days in a table: date, ENTITY, connection."""
    rows = read_table(spark, table, ["view", *_CONNECTION], dates)
    return rows.where(rows["view"] == CONNECTION).select(*_CONNECTION)


def usage_of(views: DataFrame, *keys: str) -> DataFrame:
    """Return the rows of `usage`: ENTITY, MEASURES and NAME_peak. Args: `keys`: further keys, such as date."""
    rows = views.where(F.col("view") == USAGE)
    return rows.groupBy(*keys, *ENTITY).agg(
        *(F.sum(name).alias(name) for name in MEASURES),
        *(F.max(f"{name}_peak").alias(f"{name}_peak") for name in MEASURES),
    )


def throttles_of_views(views: DataFrame) -> DataFrame:
    """Return the rows of `throttles`."""
    return throttles.with_share(throttles.added_up(views.where(F.col("view") == THROTTLES)))


def _time(second: str) -> Column:
    return F.timestamp_seconds(F.col(second)).alias("time")


def _column(part: DataFrame, name: str, kind: str) -> Column:
    has = name in part.columns
    return (F.col(name) if has else F.lit(None)).cast(kind).alias(name)
