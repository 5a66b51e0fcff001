"""Write and read the table of `ingest` with Spark: executors write Parquet files, the driver commits their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from kbroker.spark.locations import spark_path
from kbroker.spark.session_kind import in_tasks, no_rows, parallelism
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.delta_table import HOUR_US, PLACE, REQUEST_LOG, TIME, TOPIC, DataFile, Table, TableInfo
from kbroker.spark.tables.file_reader import read_rows
from kbroker.spark.tables.file_writer import BUCKET, EPOCH_HOUR, WRITTEN, data_file, write_files
from kbroker.spark.tables.table_layout import ORDER, Written
from kbroker.spark.tables.table_place import TableName, TablePlace

HOT_SHARE = 1.5  # a bucket with more than this multiple of its fair share is written by several tasks
SPLIT_ROWS = 50_000  # minimum number of rows for each of these tasks
HOURS = 24  # number of hours expected in a stream's first batch


def read_table(
    spark: SparkSession, table: TableName, columns: Sequence[str] | None = None, dates: Sequence[str] | None = None
) -> DataFrame:
    """Return the rows of a table; columns that its older files lack are null.

    Args: `columns` of the record, or date, hour, bucket; None: all. `dates`: only these days, such as "2026-01-02".

    Spark reads a table on this machine's file systems; other tables are read by pyarrow in Spark's tasks, which needs
    no jar.
    Raises: TableError if the place is not a table.
    """
    found = Table(table)
    info, files = found.info(), found.files(dates)
    place = [StructField(name, StringType() if name == "date" else IntegerType()) for name in PLACE]
    full = StructType([*table_schema(info).fields, *place])
    schema = full if columns is None else StructType([full[name] for name in columns])
    if not files:
        return no_rows(spark, schema)
    names = [found.place.file(one.path) for one in files]
    if found.place.is_local:
        require_shared(spark, None, names)
    if not found.place.is_local or not all(one.path.startswith("date=") for one in files):
        return _read_by_pyarrow(spark, found.place, files, schema)
    # the schema is given, never merged: merging opens the footer of every file
    rows = spark.read.schema(full).option("basePath", spark_path(found.place.uri)).parquet(*map(spark_path, names))
    return rows.select(*schema.names)


def _read_by_pyarrow(
    spark: SparkSession, place: TablePlace, files: Sequence[DataFile], schema: StructType
) -> DataFrame:
    """Return the rows of files on an object store, read by one task each."""
    named = [(one.path, one.date, one.hour, one.bucket) for one in files]
    kinds = {"path": pa.string(), "date": pa.string(), "hour": pa.int32(), "bucket": pa.int32()}
    names = in_tasks(spark, named, pa.schema(kinds))
    return names.mapInArrow(partial(read_rows, place, schema), schema)


def summary(files: Sequence[DataFile]) -> Written:
    """Return the sums of the files added to a table."""
    by_bucket: dict[int, int] = {}
    for one in files:
        by_bucket[one.bucket] = by_bucket.get(one.bucket, 0) + one.rows
    times = [one.max_time_us for one in files if one.max_time_us is not None]
    hours = tuple(sorted({(one.date, one.hour) for one in files}))
    return Written(sum(by_bucket.values()), len(files), hours, max(times, default=None), by_bucket)


def write_rows(
    rows: DataFrame,
    place: TablePlace,
    info: TableInfo,
    name: str,
    *,
    hot: Mapping[int, int] | None = None,
    split_rows: int = SPLIT_ROWS,
    now_ms: int = 0,
) -> list[DataFile]:
    """Write rows as sorted files that are not yet part of the table.

    Args: `name` of the batch; `hot`: rows by bucket of the previous batch; a bucket with a large share is written by
    several tasks, of at least `split_rows` each; `now_ms`: since 1970.
    """
    spark = rows.sparkSession
    tasks = _tasks(hot or {}, info.buckets, parallelism(spark), split_rows)
    parts = split(hot or {}, info.buckets, tasks, split_rows)
    keys: list[Any] = [EPOCH_HOUR, BUCKET]
    known = [one["name"] for one in info.columns["fields"] if one["name"] in rows.columns]
    placed = _with_place(rows.select(*known), info)
    if parts:
        # rows of a hot bucket go to several tasks; each writes one sorted file
        of_bucket = F.create_map(*[F.lit(number) for pair in parts.items() for number in pair])
        keys.append(F.pmod(F.xxhash64(*ORDER[info.kind]), F.coalesce(of_bucket[F.col(BUCKET)], F.lit(1))))
    in_order = placed.repartition(tasks, *keys).sortWithinPartitions(EPOCH_HOUR, BUCKET, *ORDER[info.kind])
    found = in_order.mapInArrow(partial(write_files, place, info.kind, name), WRITTEN).toArrow().to_pylist()
    return [data_file(row, info.kind, now_ms) for row in found]


def _tasks(before: Mapping[int, int], buckets: int, slots: int, split_rows: int) -> int:
    """Return the number of tasks that write a batch: at most as many as the executors can run in two turns.

    One for each bucket, or more if the previous batch was large; the first batch may have rows of many hours.
    """
    wanted = max(buckets, sum(before.values()) // split_rows) if before else HOURS * buckets
    return max(2, min(wanted, 2 * slots))


def split(rows_by_bucket: Mapping[int, int], buckets: int, tasks: int, split_rows: int) -> dict[int, int]:
    """Return the number of tasks for each bucket with more than HOT_SHARE times the fair share of the rows."""
    total = sum(rows_by_bucket.values())
    parts = {
        bucket: min(round(rows * tasks / total), tasks, rows // split_rows)
        for bucket, rows in rows_by_bucket.items()
        if rows > HOT_SHARE * total / buckets
    }
    return {bucket: number for bucket, number in parts.items() if number > 1}


def table_schema(info: TableInfo) -> StructType:
    """Return the columns of a table's rows without the partition columns; of a log, those of this version."""
    return log_schema.spark_schema() if info.kind == REQUEST_LOG else StructType.fromJson(dict(info.columns))


def _with_place(rows: DataFrame, info: TableInfo) -> DataFrame:
    """Add the columns EPOCH_HOUR and BUCKET, whatever the session's time zone."""
    micros = F.unix_micros(TIME[info.kind])
    hours = (micros - F.pmod(micros, F.lit(HOUR_US))) / F.lit(HOUR_US)  # exact, and before 1970 too
    return rows.select(
        "*", hours.cast("int").alias(EPOCH_HOUR), _bucket(info.kind, info.buckets).cast("int").alias(BUCKET)
    )


def _bucket(kind: str, buckets: int) -> Column:
    if kind == TOPIC:
        return F.pmod(F.col("partition"), F.lit(buckets))
    empty = F.lit("")
    entity = F.concat(F.coalesce("principal", empty), F.lit("\0"), F.coalesce("client_id", empty))
    return F.pmod(F.crc32(entity), F.lit(buckets))
