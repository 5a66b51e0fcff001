"""Write the report of a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.errors import PipelineError
from kbroker.spark.report.data import Quotas, gather
from kbroker.spark.report.page import render
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.replay import replay_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.whatif.recommend import Recommendation
    from kbroker.spark.whatif.replay_core import Windows


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
    """Replay a request log's table under `proposed` and write the page. Args: `made_at`: the time that it states.

    Returns: its size in bytes.

    Raises: PipelineError when the table has no requests (of those days).
    """
    seconds = replay_table(spark, table, QuotaSet(proposed), dates=dates, windows=windows)
    data = gather(seconds, f"table {table}", proposed, recommendation=recommendation, current=current)
    if data is None:
        raise PipelineError(f"{table} has no requests to report on")
    page = render(data, made_at).encode()
    Path(output).write_bytes(page)
    return len(page)
