"""Write the report of a table."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

from kbroker.spark.errors import PipelineError
from kbroker.spark.report.data import BINS, Quotas, gather
from kbroker.spark.report.page import render
from kbroker.spark.report.throttled import gather_throttles
from kbroker.spark.tables.delta_table import HOUR_US, DataFile, Table
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.usage_views.throttles import COLUMNS, throttles
from kbroker.spark.whatif.feed import Windows
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.recommend import Recommendation
from kbroker.spark.whatif.replay import replay_bins


def write_report(
    spark: SparkSession,
    table: TableName,
    output: str | os.PathLike[str],
    proposed: Quotas,
    made_at: datetime,
    *,
    recommendation: Recommendation | None = None,
    current: Quotas | None = None,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> int:
    """Replay a request log's table under `proposed` and write the page, which is about one version of the table.

    Args: `made_at`: the time stated on the page.
    Returns: its size in bytes.
    Raises: PipelineError if the table has no requests (on those dates).
    """
    found = Table(table)
    bin_s, place = _bin_seconds(found.files(dates)), found.at_version
    bins = replay_bins(spark, place, QuotaSet(proposed), bin_s=bin_s, dates=dates, windows=windows)
    held = gather_throttles(throttles(read_table(spark, place, COLUMNS, dates)))
    data = gather(bins, bin_s, f"table {table}", proposed, held, recommendation=recommendation, current=current)
    if data is None:
        raise PipelineError(f"{table} has no requests to report on")
    return write_page(output, render(data, made_at))


def write_page(output: str | os.PathLike[str], text: str) -> int:
    """Replace a page as a whole, so that a browser never reads half of one. Returns: its size in bytes.

    Raises: OSError; the previous page remains.
    """
    page, place = text.encode(), Path(output)
    if place.exists() and not place.is_file():
        place.write_bytes(page)  # a pipe or a terminal cannot be replaced
        return len(page)
    place = place.resolve()
    new = place.with_name(f".{place.name}.new")
    try:
        new.write_bytes(page)
        if place.exists():
            shutil.copymode(place, new)
        os.replace(new, place)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    return len(page)


def _bin_seconds(files: Sequence[DataFile]) -> int:
    """Return the length of a time bin in seconds, with which BINS bins span the files."""
    begins = [one.end_us - HOUR_US if one.min_time_us is None else one.min_time_us for one in files]
    ends = [one.end_us if one.max_time_us is None else one.max_time_us for one in files]
    return max(1, -(-(max(ends, default=1) - min(begins, default=0)) // (BINS * 1_000_000)))
