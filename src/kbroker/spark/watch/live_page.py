"""Live page of `watch`: the report of the latest views, without the parts that need a replay."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark.report.data import BINS, TOP, ReportData, over_time, shown_clients, sums_of_clients, with_keys
from kbroker.spark.report.page import render
from kbroker.spark.report.throttled import gather_throttles
from kbroker.spark.report.write import write_page
from kbroker.spark.tables.delta_table import Table
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.usage_views.throttles import KEYS
from kbroker.spark.usage_views.usage import ENTITY
from kbroker.spark.watch.minutes import MINUTE_S, THROTTLES, USAGE
from kbroker.spark.watch.views import throttles_of_views, usage_of

_OVER_TIME = ("requests", "request_bytes", "response_bytes")


def write_live_page(
    spark: SparkSession, table: TableName, output: Path, *, span_ms: int, every_ms: int, clock: BaseClock | None = None
) -> bool:
    """Write the page about the last `span_ms` of a table of views, by its latest minute, in one step.

    Args: `every_ms`: refresh interval of the browser; `clock`: for the time shown on the page.
    Returns: False if the table has no minute yet. Raises: OSError, TableError.
    """
    data = gather_views(spark, table, span_ms)
    if data is None:
        return False
    made_at = datetime.fromtimestamp((clock or SystemClock()).wall_ms() / 1000, timezone.utc)
    write_page(output, render(data, made_at, again_s=max(1, every_ms // 1000)))
    return True


def gather_views(spark: SparkSession, table: TableName, span_ms: int) -> ReportData | None:
    """Reduce the last `span_ms` of a table of views to the size of a page; None if the table has no minute."""
    found = Table(table)
    times = [one.max_time_us for one in found.files() if one.max_time_us is not None]
    if not times:
        return None
    youngest = max(times) // 1_000_000 // MINUTE_S * MINUTE_S + MINUTE_S
    span_s = max(MINUTE_S, span_ms // 1000)
    rows = read_table(spark, found.at_version, dates=_days(youngest - span_s, youngest))
    second = F.unix_seconds("time")
    rows = rows.where((second >= youngest - span_s) & F.col("view").isin(USAGE, THROTTLES)).cache()
    try:
        oldest = rows.agg(F.min(F.unix_seconds("time"))).collect()[0][0]
        if oldest is None:
            return None
        start = int(oldest)
        bin_s = MINUTE_S * max(1, -(-(youngest - start) // MINUTE_S // BINS))
        bins = -(-(youngest - start) // bin_s)
        place = F.floor((F.unix_seconds("time") - start) / bin_s).cast("int").alias("place")
        return _gathered(rows, found, start, bin_s, bins, place)
    finally:
        rows.unpersist()


def _gathered(rows: DataFrame, table: Table, start: int, bin_s: int, bins: int, place: Column) -> ReportData:
    used = rows.where(F.col("view") == USAGE)
    sums = [F.sum(name).alias(name) for name in _OVER_TIME]
    summed = [row.asDict() for row in usage_of(rows).collect()]
    ranked = sorted(summed, key=lambda r: (-r["request_bytes"] - r["response_bytes"], -r["requests"]))
    everything = used.groupBy(place).agg(*sums).collect()
    cells: list[Any] = []
    if ranked:
        cells = with_keys(used, ENTITY, ranked[:TOP]).groupBy(*ENTITY, place).agg(*sums).collect()
    throttled = gather_throttles(throttles_of_views(rows))
    delayed = [row for row in throttled.rows[:TOP] if row.delay_ms]
    delays: list[Any] = []
    if delayed:
        own = with_keys(rows.where(F.col("view") == THROTTLES), KEYS, [row._asdict() for row in delayed])
        delays = own.groupBy(*KEYS, place).agg(F.sum("delay_served_ms").alias("ms")).collect()
    held = []
    for one in delayed:
        of_one = [cell for cell in delays if all(cell[name] == getattr(one, name) for name in KEYS)]
        held.append((f"{one.quota}: {one.who}", over_time(of_one, bins, ["ms"])["ms"]))
    return ReportData(
        f"views {table}",
        start,
        start + bins * bin_s,
        bin_s,
        shown_clients(ranked[:TOP], cells, bins, _OVER_TIME),
        **sums_of_clients(ranked, everything, bins, TOP, _OVER_TIME),
        throttles=throttled,
        held=held,
    )


def _days(start_s: int, end_s: int) -> list[str]:
    first, last = (datetime.fromtimestamp(max(0, second), timezone.utc).date() for second in (start_s, end_s))
    return [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]
