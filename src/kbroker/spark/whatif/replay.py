"""Replay of a request log's table, or of any DataFrame with its columns, under other quotas; see `feed`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kbroker.spark.tables.table_place import TableName
from kbroker.spark.whatif.feed import Outcome, Replay, Windows
from kbroker.spark.whatif.group import Shared, Sharing, Work, work_on_rows, work_on_table
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.read import Part
from kbroker.spark.whatif.sum import (
    SECONDS_SCHEMA,
    SUMS_SCHEMA,
    VERDICT_SCHEMA,
    ClientSums,
    added_up,
    second_rows,
    verdict_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def replay_table(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """Return by client and second the logged delays and those under `quotas`, as SECONDS_SCHEMA.

    Raises: TableError when the place is not a table.
    """
    work = _work(quotas, windows, second_rows)
    return added_up(work_on_table(spark, table, _sharing(quotas), work, SECONDS_SCHEMA, dates))


def replay_rows(rows: DataFrame, quotas: QuotaSet, *, windows: Windows | None = None) -> DataFrame:
    """Return the result of `replay_table` for any rows of a request log; slower, because all pass through a shuffle."""
    return added_up(work_on_rows(rows, _shared(quotas), _work(quotas, windows, second_rows), SECONDS_SCHEMA))


def replay_bins(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    bin_s: int | None = None,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """Return sums by client and bin of time, as SUMS_SCHEMA, made in the tasks, which yield no row per second.

    Args: `bin_s`: length of a bin; None: one for all time.
    Raises: TableError when the place is not a table.
    """

    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        replay, sums = Replay(quotas, windows), ClientSums(bin_s)
        for part, until_ms in parts:
            sums.add(replay.feed(part, until_ms))
        yield from sums.end()

    return work_on_table(spark, table, _sharing(quotas), work, SUMS_SCHEMA, dates)


def verdicts_of_table(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """Return a row for each delay under `quotas`, as VERDICT_SCHEMA. Raises: TableError."""
    return work_on_table(spark, table, _sharing(quotas), _work(quotas, windows, verdict_rows), VERDICT_SCHEMA, dates)


def verdicts_of_rows(rows: DataFrame, quotas: QuotaSet, *, windows: Windows | None = None) -> DataFrame:
    """Return the result of `verdicts_of_table` for any rows of a request log."""
    return work_on_rows(rows, _shared(quotas), _work(quotas, windows, verdict_rows), VERDICT_SCHEMA)


def _shared(quotas: QuotaSet) -> Shared:
    def shared(principal: str | None, client_id: str | None) -> Iterable[Hashable]:
        judges = (quotas.judge(quota_type, principal, client_id) for quota_type in quotas.types)
        return [judge.tags for judge in judges if judge.limit is not None]

    return shared


def _sharing(quotas: QuotaSet) -> Sharing:
    return Sharing(quotas.sharing, _shared(quotas))


def _work(quotas: QuotaSet, windows: Windows | None, result: Callable[[Outcome], pa.Table]) -> Work:
    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        replay = Replay(quotas, windows)
        for part, until_ms in parts:
            yield result(replay.feed(part, until_ms))

    return work
