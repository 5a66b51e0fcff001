"""What the writers of a table share: the order and place of its rows, and what a write or a compaction reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.spark.tables import log_schema
from kbroker.spark.tables.manifest import HOUR_US, REQUEST_LOG, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: Order of the rows in a file, by the kind of table: what replay reads one after the other is together.
ORDER = {REQUEST_LOG: ("principal", "client_id", "sequence", "time"), "topic": ("topic", "partition", "offset")}
TIME = {REQUEST_LOG: "time", "topic": "timestamp"}

#: Called with the name of each phase that is done.
PhaseCallback = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch has added: rows, files, and their hours."""

    rows: int
    files: int
    hours: tuple[tuple[str, int], ...]
    max_time_us: int | None
    rows_by_bucket: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: hours rewritten, files before and after, rows moved, old files deleted."""

    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    deleted: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.hours + other.hours,
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.rows + other.rows,
            self.deleted + other.deleted,
        )


def table_schema(info: TableInfo) -> StructType:
    """The columns of a table's rows, without those of their place."""
    from pyspark.sql.types import StructType

    return log_schema.spark_schema() if info.schema is None else StructType.fromJson(info.schema)


def with_place(rows: DataFrame, kind: str, buckets: int) -> DataFrame:
    """Add date, hour and bucket. Independent of the session's time zone."""
    from pyspark.sql import functions as F

    hours = F.expr(f"cast(unix_micros({TIME[kind]}) div {HOUR_US} as int)")
    days = F.expr(f"cast(unix_micros({TIME[kind]}) div {24 * HOUR_US} as int)")
    return rows.select(
        "*",
        F.date_add(F.lit("1970-01-01").cast("date"), days).cast("string").alias("date"),
        F.pmod(hours, F.lit(24)).cast("int").alias("hour"),
        _bucket(kind, buckets).cast("int").alias("bucket"),
    )


def _bucket(kind: str, buckets: int) -> Column:
    from pyspark.sql import functions as F

    if kind != REQUEST_LOG:
        return F.pmod(F.col("partition"), F.lit(buckets))
    empty = F.lit("")
    entity = F.concat(F.coalesce("principal", empty), F.lit("\0"), F.coalesce("client_id", empty))
    return F.pmod(F.crc32(entity), F.lit(buckets))
