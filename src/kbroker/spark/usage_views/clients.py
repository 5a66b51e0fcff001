"""Latency as clients measure it, from the log of their pushed metrics, beside the broker's, from its request log.

The client's latency includes the network and the client's own queue: they cause the difference from the broker's.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.spark.tables.log_reader import LogSource, read_lines
from kbroker.spark.usage_views.usage import ENTITY

PREFIX = "org.apache.kafka."
#: Pushed metrics of Java's client, librdkafka and franz-go, in milliseconds, by the columns of `latencies`.
METRICS = {
    "produce": f"{PREFIX}producer.node.request.latency",
    "fetch": f"{PREFIX}consumer.fetch.manager.fetch.latency",
}
APIS = {"produce": "PRODUCE", "fetch": "FETCH"}
#: Fields that are read from a line of the log of pushes.
_PUSH = (
    "time bigint, clientInstanceId string, clientId string, principal string, "
    "metrics array<struct<name: string, value: double>>"
)


def read_pushes(spark: SparkSession, source: LogSource) -> DataFrame:
    """Return one row per value that a client has pushed: time, ENTITY, instance, name, value.

    Lines of other kinds, such as those of a request log in the same folder, are left out.
    """
    lines = read_lines(spark, source).where("value is not null and not arrow")
    push = lines.select(F.from_json(F.col("value").cast("string"), _PUSH).alias("push"))
    whole = push.where("push.time is not null and push.clientInstanceId is not null and push.metrics is not null")
    values = whole.select(
        F.timestamp_millis(F.col("push.time")).alias("time"),
        F.col("push.principal").alias("principal"),
        F.col("push.clientId").alias("client_id"),
        F.col("push.clientInstanceId").alias("instance"),
        F.explode("push.metrics").alias("metric"),
    )
    return values.select("time", *ENTITY, "instance", "metric.name", "metric.value")


def latencies(pushed: DataFrame) -> DataFrame:
    """Return the latencies that each client has measured, in milliseconds.

    Returns: ENTITY; instances; NAME_ms: the mean of the averages that it pushed, without those of intervals in which it
    sent nothing; NAME_max_ms: the highest one. NAME is a key of METRICS.
    """
    found = [F.countDistinct("instance").alias("instances")]
    for name, metric in METRICS.items():
        found.append(F.avg(_of(f"{metric}.avg")).alias(f"{name}_ms"))
        found.append(F.max(_of(f"{metric}.max")).alias(f"{name}_max_ms"))
    return pushed.groupBy(*ENTITY).agg(*found)


def _of(metric: str) -> Column:
    return F.when((F.col("name") == metric) & (F.col("value") > 0), F.col("value"))


def served(rows: DataFrame) -> DataFrame:
    """Return the time from each client's requests to their responses in a request log, in milliseconds.

    Returns: ENTITY; broker_NAME_ms: mean; broker_NAME_max_ms: highest. A record of several requests counts that often.
    """
    weight = F.coalesce("repeated", F.lit(1)) * F.when(F.col("sampling") > 0, 1 / F.col("sampling")).otherwise(1.0)
    found = []
    for name, api in APIS.items():
        time_ms = F.when(F.col("api_name") == api, F.col("total_time_us") / 1000)
        weights = F.sum(F.when(time_ms.isNotNull(), weight))
        found.append((F.sum(time_ms * weight) / weights).alias(f"broker_{name}_ms"))
        found.append(F.max(time_ms).alias(f"broker_{name}_max_ms"))
    wanted = rows.where(F.col("api_name").isin(*APIS.values()))
    return wanted.groupBy(*ENTITY).agg(*found)


def compare(pushed: DataFrame, rows: DataFrame) -> DataFrame:
    """Return `latencies` and `served` of each client that has pushed, the largest difference first."""
    both = latencies(pushed).join(served(rows), list(ENTITY), "left")
    difference = F.greatest(*(F.col(f"{name}_ms") - F.col(f"broker_{name}_ms") for name in METRICS))
    return both.orderBy(difference.desc_nulls_last(), *(F.col(name).asc_nulls_first() for name in ENTITY))
