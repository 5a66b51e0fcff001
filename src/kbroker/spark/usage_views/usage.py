"""Usage of the broker: bytes, requests, their time, mutations and connections of each entity, per day and second.

Functions on DataFrames with the columns of the request log: `read_table`, or the records of `read_log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

#: The measures. A request's time is the sum that its quota counts: handler time plus network thread time.
SUMMED = ("requests", "request_bytes", "response_bytes", "request_time_us", "mutations")
MEASURES = (*SUMMED, "connections")
ENTITY = ("principal", "client_id")
DAY_S = 86_400
MUTATION = "ControllerMutation"
MOST_MUTATIONS = 1e9  # maximum number of one request; more, from a hostile client, would spoil its sums and count as 0
COLUMNS = (
    *("time", "api_key", *ENTITY, "connection", "request_bytes", "response_bytes", "local_time_us"),
    *("network_time_us", "sampling", "repeated", "updates"),
)
#: Rankings of entities, by sums of measures.
RANKS = {
    "bytes": ("request_bytes", "response_bytes"),
    "requests": ("requests",),
    "request-time": ("request_time_us",),
    "mutations": ("mutations",),
    "connections": ("connections",),
}


def all_equal(names: Sequence[str]) -> Column:
    """Return the condition that each column equals the column with an underscore before its name; null equals null."""
    return reduce(and_, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in names))


def usage_per_second(rows: DataFrame) -> DataFrame:
    """Return the usage of each entity in each second: date, principal, client_id, second (since 1970), and MEASURES.

    A record that represents several requests counts that often; one of a sample counts for the records left out. A
    connection counts in the second of its first request of the day. Entities with most of the rows are not slow: Spark
    first adds up the rows of each task, and shuffles one row per task, entity and second.

    The rows are read twice, the second time for the connections by a few columns: cache those of `read_log`, which
    would be parsed twice.
    """
    requests = rows.where("api_key is not null").withColumn("second", second_of("time"))
    traffic = requests.select(*ENTITY, "second", *(measured(name).alias(name) for name in SUMMED))
    day = F.floor(F.col("second") / F.lit(DAY_S)).alias("day")  # a number: a text would be made for each row
    opened = requests.where("connection is not null").groupBy(day, *ENTITY, "connection")
    return with_connections(traffic, opened.agg(F.min("second").alias("second")))


def with_connections(traffic: DataFrame, opened: DataFrame) -> DataFrame:
    """Return the rows of `usage_per_second` from their two parts.

    Args: `traffic`: ENTITY, second and SUMMED, added up or in parts; `opened`: ENTITY and second of each connection.
    """
    keys = (*ENTITY, "second")
    one_each = opened.select(*keys, F.lit(1).alias("connections"))
    found = traffic.unionByName(one_each, allowMissingColumns=True).groupBy(*keys)
    sums = (F.round(F.coalesce(F.sum(name), F.lit(0))).cast("bigint").alias(name) for name in MEASURES)
    return found.agg(*sums).select(day_of(F.col("second")).alias("date"), *keys, *MEASURES)


def usage_per_day(rows: DataFrame) -> DataFrame:
    """Return the usage of each entity in each day: date, principal, client_id, MEASURES, and NAME_peak by second."""
    return summed_up(usage_per_second(rows), "date", *ENTITY)


def usage(rows: DataFrame) -> DataFrame:
    """Return the usage of each entity: principal, client_id, MEASURES and NAME_peak; a connection counts once a day."""
    return summed_up(usage_per_second(rows), *ENTITY)


def summed_up(seconds: DataFrame, *keys: str) -> DataFrame:
    """Return sums and highest seconds of `usage_per_second` by some of its columns."""
    sums = [F.sum(name).alias(name) for name in MEASURES]
    peaks = [F.max(name).alias(f"{name}_peak") for name in MEASURES]
    return seconds.groupBy(*keys).agg(*sums, *peaks)


def top(used: DataFrame, by: str, limit: int) -> DataFrame:
    """Return the first entities by one of RANKS."""
    rank = reduce(add, [F.col(name) for name in RANKS[by]])
    keys = (name for name in (*ENTITY, "date", "second") if name in used.columns)
    return used.orderBy(rank.desc(), *(F.col(name).asc_nulls_first() for name in keys)).limit(limit)


def second_of(time: str) -> Column:
    """Return the second since 1970 of a column of times."""
    return F.expr(f"unix_micros({time}) div 1000000")


def day_of(second: Column) -> Column:
    """Return the UTC day of a second since 1970, such as "2026-01-02"."""
    days = F.floor(second / F.lit(DAY_S)).cast("int")
    return F.date_add(F.lit("1970-01-01").cast("date"), days).cast("string")


def measured(name: str) -> Column:
    """Return the value of a record for one of SUMMED; unknown sizes, as in a log of Apache Kafka, are 0."""
    weight = F.when(F.col("sampling") > 0, 1 / F.col("sampling")).otherwise(F.lit(1.0))
    zero = F.lit(0)
    if name == "requests":
        return F.coalesce("repeated", F.lit(1)) * weight
    if name == "request_time_us":
        # a record of several requests has the sum of their network times, and the handler time of the last one
        handled = F.coalesce("local_time_us", zero) * F.coalesce("repeated", F.lit(1))
        return (handled + F.coalesce("network_time_us", zero)) * weight
    if name == "mutations":
        # Of the values only two fields are named, so that no others are read; most requests have no mutation at all.
        kinds, values = F.col("updates.quota_type"), F.col("updates.value")
        asked = F.zip_with(kinds, values, lambda kind, value: F.when(kind == MUTATION, value).otherwise(F.lit(0.0)))
        total = F.when(F.array_contains(kinds, MUTATION), F.aggregate(asked, F.lit(0.0), add))
        return F.when(total.between(0, MOST_MUTATIONS), total).otherwise(F.lit(0.0)) * weight
    return F.coalesce(name, zero) * weight
