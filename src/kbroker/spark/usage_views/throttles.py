"""Who is throttled: by which quota, how often, how long, and each quota's share of all delay.

Functions on DataFrames with the columns of the request log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("principal", "client_id", "throttle_time_ms", "verdicts")
#: Whom a quota judged: the tags of its counter. A quota type of null: a delay whose cause the log does not state.
KEYS = ("quota_type", "user", "client_id", "ip")


def throttles(rows: DataFrame) -> DataFrame:
    """One row per quota and client that it throttled, the longest delay first.

    Returns: KEYS; verdicts and refused: how many; delay_asked_ms: by the formula; delay_served_ms: the
    throttle time sent to clients; delay_max_ms: the longest served; limit: the highest that was exceeded; share: of all
    delay served, 0..1. A log of Apache Kafka states a delay but no verdict: it counts under the client's own names.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    verdicts = rows.where("size(verdicts) > 0").select(F.explode("verdicts").alias("v")).select("v.*")
    judged = verdicts.select(*KEYS, "limit", "refused", "delay_asked_ms", "delay_served_ms")
    unpublished = rows.where("throttle_time_ms > 0 and (verdicts is null or size(verdicts) = 0)").selectExpr(
        "cast(null as string) as quota_type",
        "principal as user",
        "client_id",
        "cast(null as string) as ip",
        "cast(null as double) as limit",
        "false as refused",
        "cast(0 as bigint) as delay_asked_ms",
        "cast(throttle_time_ms as bigint) as delay_served_ms",
    )
    summed = (
        judged.unionByName(unpublished)
        .groupBy(*KEYS)
        .agg(
            F.count("*").alias("verdicts"),
            F.count(F.when(F.col("refused"), 1)).alias("refused"),
            F.coalesce(F.sum("delay_asked_ms"), F.lit(0)).alias("delay_asked_ms"),
            F.coalesce(F.sum("delay_served_ms"), F.lit(0)).alias("delay_served_ms"),
            F.coalesce(F.max("delay_served_ms"), F.lit(0)).alias("delay_max_ms"),
            F.max("limit").alias("limit"),
        )
    )
    all_delay = F.sum("delay_served_ms").over(Window.partitionBy(F.lit(0)))
    share = F.when(all_delay > 0, F.col("delay_served_ms") / all_delay).otherwise(F.lit(0.0))
    ordered = [
        F.col("delay_served_ms").desc(),
        F.col("verdicts").desc(),
        *(F.col(key).asc_nulls_first() for key in KEYS),
    ]
    return summed.select("*", share.alias("share")).orderBy(*ordered)


def by_quota(found: DataFrame) -> DataFrame:
    """The rows of `throttles` per quota type: quota_type, clients, verdicts, refused, delay_served_ms, share."""
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in ("verdicts", "refused", "delay_served_ms", "share")]
    return (
        found.groupBy("quota_type").agg(F.count("*").alias("clients"), *sums).orderBy(F.col("delay_served_ms").desc())
    )
