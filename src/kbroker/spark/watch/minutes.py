"""Continuous query of `watch`, which aggregates the records of a request log by minute, and emits each minute once.

Spark's state holds the open minutes: a row per second and entity, per connection, and per quota and throttled client.
A minute is closed, and removed from the state, when the latest record is later than its end by the watermark delay.
A record of a closed minute is late: it is counted as such, and left out of the views.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kbroker.spark.usage_views import throttles
from kbroker.spark.usage_views.usage import DAY_S, SUMMED, day_of, measured, second_of

USAGE, THROTTLES, CONNECTION = "usage", "throttles", "connection"
MINUTE_S = 60
AHEAD_S = 600

#: Keys of a row of the state. `second`: that of a usage, or the first one of a throttle's minute or a connection's day.
_KEYS = {
    "view": "string",
    "second": "bigint",
    "principal": "string",
    "client_id": "string",
    "connection": "string",
    "quota_type": "string",
    "user": "string",
    "ip": "string",
}
_VALUES = {
    **dict.fromkeys(SUMMED, "double"),
    "first_second": "bigint",
    **dict.fromkeys(throttles.COUNTED, "bigint"),
    "limit": "double",
}
_EVENT = "_event_time"


def open_minutes(rows: DataFrame, watermark_ms: int) -> DataFrame:
    """Return the stream of closed minutes: `minute` (a window) and the columns of _KEYS and _VALUES, and delay_max_ms.

    Args: `rows`: a stream with the columns of the request log.

    The latest record closes minutes, so records ahead of the clock must be filtered out: see `is_ahead`.
    """
    timed = rows.withColumn(_EVENT, F.col("time")).withWatermark(_EVENT, f"{watermark_ms} milliseconds")
    found = timed.select(_EVENT, F.explode(_facts()).alias("fact")).select(_EVENT, "fact.*")
    minute = F.window(_EVENT, f"{MINUTE_S} seconds").alias("minute")
    return found.groupBy(minute, *_KEYS).agg(
        *(F.sum(name).alias(name) for name in (*SUMMED, *throttles.COUNTED)),
        F.min("first_second").alias("first_second"),
        F.max("delay_served_ms").alias("delay_max_ms"),
        F.max("limit").alias("limit"),
    )


def is_ahead() -> Column:
    """Return the condition that a record is too far ahead of the clock; it would close all minutes before it."""
    now = F.current_timestamp()  # in a stream the time of the batch, the same if it is repeated
    return F.col("time") > now + F.expr(f"interval {AHEAD_S} seconds")


def traffic_of(closed: DataFrame) -> DataFrame:
    """Return the rows of closed minutes that `with_connections` takes as traffic."""
    rows = closed.where(F.col("view") == USAGE)
    return rows.select("principal", "client_id", "second", *SUMMED)


def connections_of(closed: DataFrame) -> DataFrame:
    """Return the connections of closed minutes, once a day: date, principal, client_id, connection, first second."""
    rows = closed.where(F.col("view") == CONNECTION)
    keys = (day_of(F.col("second")).alias("date"), "principal", "client_id", "connection")
    return rows.groupBy(*keys).agg(F.min("first_second").alias("second"))


def throttles_of(closed: DataFrame) -> DataFrame:
    """Return the sums of `throttles` of closed minutes, and the `minute` (seconds since 1970)."""
    return throttles.added_up(closed.where(F.col("view") == THROTTLES), F.col("second").alias("minute"))


def _facts() -> Column:
    """Return the state rows of a record: an array of rows with the columns of _KEYS and _VALUES."""
    second = second_of("time")
    entity = {"principal": F.col("principal"), "client_id": F.col("client_id")}
    day = F.lit(DAY_S) * F.floor(second / F.lit(DAY_S))
    minute = F.lit(MINUTE_S) * F.floor(second / F.lit(MINUTE_S))
    used = _fact(view=F.lit(USAGE), second=second, **entity, **{name: measured(name) for name in SUMMED})
    opened = _fact(view=F.lit(CONNECTION), second=day, **entity, connection=F.col("connection"), first_second=second)

    def throttled(verdict: Column) -> Column:
        return _fact(
            view=F.lit(THROTTLES),
            second=minute,
            verdicts=F.lit(1),
            refused=F.coalesce(verdict["refused"], F.lit(False)).cast("int"),
            **{name: verdict[name] for name in (*throttles.KEYS, "limit")},
            **{name: F.coalesce(verdict[name], F.lit(0)) for name in ("delay_asked_ms", "delay_served_ms")},
        )

    is_request = F.col("api_key").isNotNull()
    verdicts = F.transform(throttles.verdicts_of_row(), throttled)
    none = F.filter(F.array(used), lambda fact: F.lit(False))
    return F.concat(
        F.when(is_request, F.array(used)).otherwise(none),
        F.when(is_request & F.col("connection").isNotNull(), F.array(opened)).otherwise(none),
        F.coalesce(verdicts, none),
    )


def _fact(**known: Column) -> Column:
    return F.struct(*(known.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in (_KEYS | _VALUES).items()))
