"""What-if: who would have been delayed under other quotas, by how much and when, through the sensors of a broker.

Functions on a request log's table, or on any DataFrame with its columns. It is an open loop (see `replay_core`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from kbroker.spark.session_kind import parallelism
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.whatif.client_sums import ClientSums, sums_schema
from kbroker.spark.whatif.counter_groups import Part, Shared, Sharing, Work, work_on_rows, work_on_table
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.replay_core import COUNTS, Replay, Windows, seconds_schema, verdict_schema
from kbroker.spark.whatif.replay_updates import Change, replay_updates, updates_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

ORDER_BY_DELAY = ("delay_ms", "logged_delay_ms", "requests")


def replay_table(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """By client and second what the log says and what `quotas` would have done: the columns of `seconds_schema`.

    Raises: TableError when the place is no table.
    """
    work = _work(quotas, windows, "seconds")
    return _added_up(work_on_table(spark, table, _sharing(quotas), work, seconds_schema(), dates))


def replay_clients(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """What `by_client` makes of `replay_table`, without a row per second ever leaving a task.

    Raises: TableError when the place is no table.
    """
    return clients_of_bins(replay_bins(spark, table, quotas, dates=dates, windows=windows))


def replay_bins(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    bin_s: int | None = None,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """Sums by client and bin of time: the columns of `sums_schema`. Args: `bin_s`: its length; None: one for all time.

    Raises: TableError when the place is no table.
    """

    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        replay, sums = Replay(quotas, windows), ClientSums(bin_s)
        for part, until_ms in parts:
            sums.add(replay.feed(part, until_ms))
        yield from sums.end()

    return work_on_table(spark, table, _sharing(quotas), work, sums_schema(), dates)


def replay_rows(rows: DataFrame, quotas: QuotaSet, *, windows: Windows | None = None) -> DataFrame:
    """The same on any rows of a request log. Slower: every row passes through a shuffle."""
    work = _work(quotas, windows, "seconds")
    return _added_up(work_on_rows(rows, _shared(quotas), work, seconds_schema()))


def verdicts_of_table(
    spark: SparkSession,
    table: TableName,
    quotas: QuotaSet,
    *,
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> DataFrame:
    """A row for every delay that `quotas` would have put on a request: the columns of `verdict_schema`."""
    return work_on_table(spark, table, _sharing(quotas), _work(quotas, windows, "verdicts"), verdict_schema(), dates)


def verdicts_of_rows(rows: DataFrame, quotas: QuotaSet, *, windows: Windows | None = None) -> DataFrame:
    """The same on any rows of a request log."""
    return work_on_rows(rows, _shared(quotas), _work(quotas, windows, "verdicts"), verdict_schema())


def by_client(seconds: DataFrame) -> DataFrame:
    """Each client's sums over all seconds, the longest delay first.

    Beside them: the seconds in which it sent anything (`active_seconds`), was delayed, and would have been delayed, and
    when that would have begun and ended.
    """
    from pyspark.sql import functions as F

    return (
        seconds.groupBy("principal", "client_id")
        .agg(
            F.count("*").alias("active_seconds"),
            *(F.sum(name).alias(name) for name in COUNTS),
            F.max("longest_delay_ms").alias("longest_delay_ms"),
            F.count_if(F.col("logged_delayed") > 0).alias("logged_delayed_seconds"),
            F.count_if(F.col("delayed") > 0).alias("delayed_seconds"),
            F.timestamp_seconds(F.min(F.when(F.col("delayed") > 0, F.col("second")))).alias("first_delay"),
            F.timestamp_seconds(F.max(F.when(F.col("delayed") > 0, F.col("second")))).alias("last_delay"),
        )
        .orderBy(*map(F.desc, ORDER_BY_DELAY), "principal", "client_id")
    )


def clients_of_bins(bins: DataFrame) -> DataFrame:
    """The same, in the same order, of `replay_bins`."""
    from pyspark.sql import functions as F

    sums = ("active_seconds", *COUNTS)
    found = bins.groupBy("principal", "client_id").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.max("longest_delay_ms").alias("longest_delay_ms"),
        *(F.sum(name).alias(name) for name in ("logged_delayed_seconds", "delayed_seconds")),
        F.timestamp_seconds(F.min("first_second")).alias("first_delay"),
        F.timestamp_seconds(F.max("last_second")).alias("last_delay"),
    )
    return found.orderBy(*map(F.desc, ORDER_BY_DELAY), "principal", "client_id")


def totals_of(clients: DataFrame) -> dict[str, int]:
    """What all clients of `by_client` have together: requests, logged_delay_ms, delayed, delay_ms, and `clients`."""
    from pyspark.sql import functions as F

    names = ("requests", "logged_delay_ms", "delayed", "delay_ms")
    row = clients.agg(*(F.sum(name).alias(name) for name in names), F.count("*").alias("clients")).collect()[0]
    return {name: row[name] or 0 for name in (*names, "clients")}


class Checked(NamedTuple):
    """A log compared with the replay of its values: verdicts that agree, that differ, and that only one of the two has.

    Left out of these are the verdicts that are `unknown`, because their counters lack values before them;
    `incomplete`: lives of counters that lack some, `missing`: how many values that are.
    """

    equal: int
    different: int
    only_logged: int
    only_replayed: int
    unknown: int
    incomplete: int
    missing: int


def replay_exact(
    rows: DataFrame, quotas: QuotaSet, changes: Sequence[Change] = (), windows: Windows | None = None
) -> DataFrame:
    """The delays that follow from the values in the log, in the broker's own order, beside the log's own verdicts.

    Args: `rows`: from the start of the broker on, of several brokers too; `quotas`: those in force then; `changes`:
    later ones.
    Returns: the columns of `updates_schema`.
    """
    from pyspark.sql import functions as F

    groups = 4 * parallelism(rows.sparkSession)
    plain = ("time", "broker", "sequence", "api_key", "api_version", "send_time_us", "response_queue_time_us")
    # Values and verdicts of one reading: of two the second would see more of a log that grows, and take for missing
    # what the first has not seen.
    one = rows.select(*plain, F.explode(_values_and_verdicts(rows)).alias("one"))
    update, verdict = F.col("one.updates"), F.col("one.verdicts")
    # Where a name is missing it is empty, as in `replay_updates`: a counter must not lie in two groups.
    names = [
        F.coalesce(update[name], verdict[name], F.lit("")) for name in ("quota_type", "user", "client_id")
    ]  # fmt: skip
    counter = F.xxhash64(F.coalesce("broker", F.lit(0)), *names)
    values = one.select(
        *plain,
        F.when(update.isNotNull(), F.array(update)).alias("updates"),
        F.when(verdict.isNotNull(), F.array(verdict)).alias("verdicts"),
        F.pmod(counter, F.lit(groups)).alias("group"),
    )

    def work(table: pa.Table) -> pa.Table:
        return replay_updates(table, quotas, changes, windows)

    from pyspark.sql.pandas.types import from_arrow_schema

    return values.groupBy("group").applyInArrow(work, from_arrow_schema(updates_schema()))


def _values_and_verdicts(rows: DataFrame) -> Column:
    """By row the elements of both lists in one; of the two fields of each, updates and verdicts, one is null."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StructField, StructType

    names = ("updates", "verdicts")
    element = StructType([StructField(name, cast(ArrayType, rows.schema[name].dataType).elementType) for name in names])

    def tagged(name: str) -> Column:
        def element_of(one: Column) -> Column:
            return F.struct(
                *((one if kind.name == name else F.lit(None).cast(kind.dataType)).alias(kind.name) for kind in element)
            )

        return F.coalesce(F.transform(name, element_of), F.array().cast(ArrayType(element)))

    return F.concat(*map(tagged, names))


def check(replayed: DataFrame) -> Checked:
    """Count what `replay_exact` has found."""
    from pyspark.sql import functions as F

    delay, logged = F.col("delay_ms"), F.col("logged_ms")
    is_known, is_verdict = ~F.col("unknown"), F.col("missing") == 0
    row = replayed.agg(
        F.count_if(is_known & (delay == logged)),
        F.count_if(is_known & (delay != logged)),
        F.count_if(is_known & delay.isNull()),
        F.count_if(is_known & logged.isNull()),
        F.count_if(~is_known & is_verdict),
        F.count_if(~is_verdict),
        F.sum("missing"),
    ).collect()[0]
    return Checked(*(count or 0 for count in row))


def _shared(quotas: QuotaSet) -> Shared:
    def shared(principal: str | None, client_id: str | None) -> Iterable[Hashable]:
        judges = (quotas.judge(quota_type, principal, client_id) for quota_type in quotas.types)
        return [judge.tags for judge in judges if judge.limit is not None]

    return shared


def _sharing(quotas: QuotaSet) -> Sharing:
    return Sharing(quotas.sharing, _shared(quotas))


def _work(quotas: QuotaSet, windows: Windows | None, what: str) -> Work:
    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        replay = Replay(quotas, windows)
        for part, until_ms in parts:
            outcome = replay.feed(part, until_ms)
            yield outcome.seconds() if what == "seconds" else outcome.verdicts()

    return work


def _added_up(parts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in COUNTS]
    longest = F.max("longest_delay_ms").alias("longest_delay_ms")
    return parts.groupBy("principal", "client_id", "second").agg(*sums, longest)
