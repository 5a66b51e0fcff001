"""Who uses the broker: bytes, requests, their time, mutations and connections of each entity, per day and second.

Functions on DataFrames with the columns of the request log: `read_table`, or the records of `read_log`.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What is measured. The time of a request is what its quota counts: of the handler and of the network thread.
MEASURES = ("requests", "request_bytes", "response_bytes", "request_time_us", "mutations", "connections")
ENTITY = ("principal", "client_id")
COLUMNS = (
    *("time", "api_key", *ENTITY, "connection", "request_bytes", "response_bytes", "local_time_us"),
    *("network_time_us", "sampling", "repeated", "updates"),
)
#: By which measures entities can be ranked.
RANKS = {
    "bytes": ("request_bytes", "response_bytes"),
    "requests": ("requests",),
    "request-time": ("request_time_us",),
    "mutations": ("mutations",),
    "connections": ("connections",),
}


def usage_per_second(rows: DataFrame) -> DataFrame:
    """What each entity used in each second: date, principal, client_id, second (since 1970), and MEASURES.

    A record that stands for several requests counts as often; one of a sample counts for those left out. A connection
    counts in the second of its first request of the day. One entity with most of the rows is no trouble: Spark adds up
    each task's rows first, so that what is shuffled is one row per task, entity and second.
    """
    from pyspark.sql import functions as F

    requests = rows.where("api_key is not null").select(
        F.expr("cast(date_add(date'1970-01-01', cast(unix_micros(time) div 86400000000 as int)) as string)").alias(
            "date"
        ),
        *ENTITY,
        F.expr("unix_micros(time) div 1000000").alias("second"),
        "connection",
        *(_measured(name).alias(name) for name in MEASURES if name != "connections"),
    )
    keys = ["date", *ENTITY]
    sums = [F.sum(name).alias(name) for name in MEASURES if name != "connections"]
    traffic = requests.groupBy(*keys, "second").agg(*sums)
    opened = (
        requests.where("connection is not null")
        .groupBy(*keys, "connection")
        .agg(F.min("second").alias("second"))
        .groupBy(*keys, "second")
        .agg(F.count("*").alias("connections"))
    )
    both = traffic.unionByName(opened, allowMissingColumns=True)
    return both.groupBy(*keys, "second").agg(
        *(F.round(F.coalesce(F.sum(name), F.lit(0))).cast("bigint").alias(name) for name in MEASURES)
    )


def usage_per_day(rows: DataFrame) -> DataFrame:
    """What each entity used in each day: date, principal, client_id, MEASURES, and of each the highest second."""
    return summed_up(usage_per_second(rows), "date", *ENTITY)


def usage(rows: DataFrame) -> DataFrame:
    """What each entity used in all: principal, client_id, MEASURES and NAME_peak; a connection counts once a day."""
    return summed_up(usage_per_second(rows), *ENTITY)


def summed_up(seconds: DataFrame, *keys: str) -> DataFrame:
    """Sums and highest seconds of `usage_per_second` by some of its columns."""
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in MEASURES]
    peaks = [F.max(name).alias(f"{name}_peak") for name in MEASURES]
    return seconds.groupBy(*keys).agg(*sums, *peaks)


def top(used: DataFrame, by: str, limit: int) -> DataFrame:
    """The entities with the most of one of RANKS, the first first."""
    from pyspark.sql import functions as F

    rank = reduce(add, [F.col(name) for name in RANKS[by]])
    return used.orderBy(rank.desc(), *(F.col(name).asc_nulls_first() for name in used.columns if name in ENTITY)).limit(
        limit
    )


def _measured(name: str) -> Column:
    """What a record counts for; unknown sizes (a log of Apache Kafka has none) count nothing."""
    from pyspark.sql import functions as F

    weight = F.when(F.col("sampling") > 0, 1 / F.col("sampling")).otherwise(F.lit(1.0))
    zero = F.lit(0)
    if name == "requests":
        return F.coalesce("repeated", F.lit(1)) * weight
    if name == "request_time_us":
        # of requests that share a record, the time of the network thread is summed, that of the handler the last one's
        handled = F.coalesce("local_time_us", zero) * F.coalesce("repeated", F.lit(1))
        return (handled + F.coalesce("network_time_us", zero)) * weight
    if name == "mutations":
        mutations = F.filter("updates", lambda u: u["quota_type"] == "ControllerMutation")
        return F.coalesce(F.aggregate(mutations, F.lit(0.0), lambda sum_, u: sum_ + u["value"]), F.lit(0.0)) * weight
    return F.coalesce(name, zero) * weight
