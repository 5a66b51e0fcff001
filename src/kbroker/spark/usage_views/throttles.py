"""Throttles of a request log: clients, quotas, numbers and lengths of delays, and each quota's share of all delay.

Functions on DataFrames with the columns of the request log.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

COLUMNS = ("principal", "client_id", "throttle_time_ms", "verdicts")
#: Tags of a quota's counter. A quota type of null: a delay whose cause is not in the log.
KEYS = ("quota_type", "user", "client_id", "ip")
COUNTED = ("verdicts", "refused", "delay_asked_ms", "delay_served_ms")


def throttles(rows: DataFrame) -> DataFrame:
    """Return one row per quota and client that it throttled, the longest delay first.

    Returns: KEYS; verdicts and refused: their numbers; delay_asked_ms: by the formula; delay_served_ms: the throttle
    time sent to clients; delay_max_ms: the longest one served; limit: the highest one that was exceeded; share: of all
    delay served, 0..1. A log of Apache Kafka has delays but no verdicts: they count under the client's own names.
    """
    held = rows.where((F.size("verdicts") > 0) | (F.col("throttle_time_ms") > 0))  # usually few
    judged = held.select(F.explode(verdicts_of_row()).alias("v")).select("v.*")
    return with_share(
        judged.groupBy(*KEYS).agg(
            F.count("*").alias("verdicts"),
            F.count(F.when(F.col("refused"), 1)).alias("refused"),
            F.coalesce(F.sum("delay_asked_ms"), F.lit(0)).alias("delay_asked_ms"),
            F.coalesce(F.sum("delay_served_ms"), F.lit(0)).alias("delay_served_ms"),
            F.coalesce(F.max("delay_served_ms"), F.lit(0)).alias("delay_max_ms"),
            F.max("limit").alias("limit"),
        )
    )


def added_up(parts: DataFrame, *keys: Column) -> DataFrame:
    """Return the sums of `throttles` from those of parts, such as minutes. Args: ``keys``: further keys."""
    sums = [F.sum(name).alias(name) for name in COUNTED]
    return parts.groupBy(*keys, *KEYS).agg(*sums, *(F.max(name).alias(name) for name in ("delay_max_ms", "limit")))


def verdicts_of_row() -> Column:
    """Return the verdicts of a row of the log: KEYS, limit, refused, delay_asked_ms, delay_served_ms of each.

    A delay without a verdict becomes a verdict with the client's own names and a quota type of null.
    """

    def null(kind: str) -> Column:
        return F.lit(None).cast(kind)

    kept = (*KEYS, "limit", "refused", "delay_asked_ms", "delay_served_ms")
    kinds = ("string", "string", "string", "string", "double", "boolean", "bigint", "bigint")
    stated = F.transform(
        "verdicts",
        lambda v: F.struct(*(v[name].cast(kind).alias(name) for name, kind in zip(kept, kinds, strict=True))),
    )
    values = (
        *(null("string"), F.col("principal"), F.col("client_id"), null("string"), null("double"), F.lit(False)),
        *(F.lit(0).cast("bigint"), F.col("throttle_time_ms").cast("bigint")),
    )
    unstated = F.array(F.struct(*(value.alias(name) for name, value in zip(kept, values, strict=True))))
    return F.when(F.size("verdicts") > 0, stated).when(F.col("throttle_time_ms") > 0, unstated)


def with_share(summed: DataFrame) -> DataFrame:
    """Return the rows of `throttles` from their sums: with each one's share of all delay, the longest delay first."""
    all_delay = F.sum("delay_served_ms").over(Window.partitionBy(F.lit(0)))
    share = F.when(all_delay > 0, F.col("delay_served_ms") / all_delay).otherwise(F.lit(0.0))
    ordered = [
        F.col("delay_served_ms").desc(),
        F.col("verdicts").desc(),
        *(F.col(key).asc_nulls_first() for key in KEYS),
    ]
    return summed.select("*", share.alias("share")).orderBy(*ordered)


def by_quota(found: DataFrame) -> DataFrame:
    """Return sums of `throttles` per quota type: quota_type, clients, verdicts, refused, delay_served_ms, share."""
    sums = [F.sum(name).alias(name) for name in ("verdicts", "refused", "delay_served_ms", "share")]
    counted = found.groupBy("quota_type").agg(F.count("*").alias("clients"), *sums)
    return counted.orderBy(F.col("delay_served_ms").desc(), F.col("quota_type").asc_nulls_first())
