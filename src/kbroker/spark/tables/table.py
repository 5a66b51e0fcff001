"""Write and read the table of `ingest` with Spark: files are staged, renamed to unique names, then listed as live."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.common import request_log
from kbroker.spark.locations import local_path, spark_path
from kbroker.spark.session_kind import parallelism
from kbroker.spark.shared_folder import require_all_rows
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.manifest import (
    DEFAULT_BUCKETS,
    DELTA,
    STAGING,
    DataFile,
    Table,
    TableError,
    TableInfo,
    file_name,
    hour_folder,
    sync_folder,
)
from kbroker.spark.tables.schema_change import first_loss
from kbroker.spark.tables.table_layout import ORDER, PhaseCallback, Written, table_schema, with_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOT_SHARE = 1.5  # a bucket with more than so many times its fair share is written by several tasks,
SPLIT_ROWS = 50_000  # if each gets so many rows


def read_table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    dates: Sequence[str] | None = None,
) -> DataFrame:
    """The live rows of a table; columns that its older files lack are null.

    Args: `columns`: of the record, or date, hour, bucket; None: all. `dates`: only these days, as "2026-01-02".
    Raises: TableError when the folder is no table.
    """
    table = Table(local_path(path))
    info = table.info()
    if info.table_format == DELTA:
        from kbroker.spark.tables.delta import read_delta

        rows = read_delta(spark, table.path, info)
        rows = rows if dates is None else rows.where(rows["date"].isin(*dates))
    else:
        files = [str(file) for found in table.live_files(dates).values() for file in found]
        rows = read_files(spark, table, info, files)
    return rows if columns is None else rows.select(*columns)


def read_files(spark: SparkSession, table: Table, info: TableInfo, files: Sequence[str]) -> DataFrame:
    """The rows of some of a table's files."""
    from pyspark.sql.types import IntegerType, StringType, StructType

    schema = StructType(table_schema(info).fields)  # a copy: `add` changes its schema
    schema = schema.add("date", StringType()).add("hour", IntegerType()).add("bucket", IntegerType())
    if not files:
        return spark.createDataFrame([], schema)
    # the schema is said, never merged: merging opens the footer of every file
    return spark.read.schema(schema).option("basePath", spark_path(table.path)).parquet(*map(spark_path, files))


def write_table(
    rows: DataFrame,
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    buckets: int = DEFAULT_BUCKETS,
    at: PhaseCallback | None = None,
) -> Written:
    """Write rows with the columns of the request log as one batch of a table, made if it does not exist.

    Not for a table that a stream writes. The caller holds the table's lock (`lock_table`).

    Args: `batch`: its number; one that was written before is replaced. None: the next. `buckets`: of a new table.
    `at`: called with each phase that is done: staged, renamed, manifest.
    Raises: TableError for a table that belongs to a stream.
    """
    table = Table(local_path(path))
    info = open_table(table, TableInfo(buckets=buckets, schema_version=request_log.VERSION))
    if info.stream is not None:
        raise TableError(f"{path} belongs to a stream; write rows from elsewhere to another table")
    return write_batch(rows, table, info, table.next_batch() if batch is None else batch, at=at)


def open_table(table: Table, wanted: TableInfo) -> TableInfo:
    """The description of a table, stored if it is new or has got columns.

    Raises: TableError when the table is of another kind, or would lose columns.
    """
    if not table.exists():
        table.store_info(wanted)
        return wanted
    info = table.info()
    for name in ("kind", "table_format"):
        is_, asked = (str(getattr(one, name)).replace("_", " ") for one in (info, wanted))
        if is_ != asked:
            raise TableError(f"{table.path} is a table of {name.replace('_', ' ')} {is_}, not {asked}")
    if info.schema != wanted.schema:
        loss = first_loss(info.schema, wanted.schema)
        if loss is not None:
            raise TableError(f"{table.path}: columns can only be added, and {loss}")
        info = replace(info, schema=wanted.schema)
        table.store_info(info)
    if info.schema_version < wanted.schema_version:
        info = replace(info, schema_version=wanted.schema_version)
        table.store_info(info)
    return info


def write_batch(
    rows: DataFrame,
    table: Table,
    info: TableInfo,
    batch: int,
    *,
    hot: Mapping[int, int] | None = None,
    split_rows: int = SPLIT_ROWS,
    at: PhaseCallback | None = None,
) -> Written:
    """Stage the rows, rename the files to those of `batch`, name them in the manifests of their hours.

    Done again with the same rows it changes nothing. Args: `hot`: rows by bucket of the batch before, by which the
    writing of a bucket with a large share is split, into parts of `split_rows` at least.
    """
    reached = at or (lambda phase: None)
    staged = stage(
        with_place(rows, info.kind, info.buckets), table, info, f"batch-{batch:08d}", hot=hot, split_rows=split_rows
    )
    reached("staged")
    written = publish(table, staged, batch)
    reached("renamed")
    for (date, hour), files in written.items():
        found = table.hour(date, hour)
        if batch > found.compacted_through:
            table.store(found.with_batch(batch, files))
        reached("manifest")
    shutil.rmtree(staged)
    return _summary(written)


def _summary(written: Mapping[tuple[str, int], list[DataFile]]) -> Written:
    files = [file for found in written.values() for file in found]
    by_bucket: dict[int, int] = {}
    for file in files:
        by_bucket[file.bucket] = by_bucket.get(file.bucket, 0) + file.rows
    times = [file.max_time_us for file in files if file.max_time_us is not None]
    return Written(sum(by_bucket.values()), len(files), tuple(sorted(written)), max(times, default=None), by_bucket)


def stage(
    rows: DataFrame,
    table: Table,
    info: TableInfo,
    name: str,
    *,
    hot: Mapping[int, int] | None = None,
    split_rows: int = SPLIT_ROWS,
) -> Path:
    """Write rows (with their place) sorted into a staging folder that no other attempt shares, and return it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    spark = rows.sparkSession
    folder = table.path / STAGING / f"{name}-{uuid.uuid4().hex[:8]}"
    tasks = max(2, min(info.buckets, 2 * parallelism(spark)))
    parts = split(hot or {}, info.buckets, tasks, split_rows)
    keys: list[Any] = list(log_schema.PLACE)
    if parts:
        # rows of a hot bucket go to several tasks; each writes one sorted file
        of_bucket = F.create_map(*[F.lit(number) for pair in parts.items() for number in pair])
        spread = F.pmod(F.xxhash64(*ORDER[info.kind]), F.coalesce(of_bucket[F.col("bucket")], F.lit(1)))
        keys.append(spread)
    sorted_rows = rows.repartition(tasks, *keys).sortWithinPartitions(*log_schema.PLACE, *ORDER[info.kind])
    given = Observation()
    counted = sorted_rows.observe(given, F.count(F.lit(1)).alias("rows"))
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # no option of the writer
    try:
        counted.write.partitionBy(*log_schema.PLACE).option("compression", "zstd").parquet(spark_path(folder))
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", str(before))
    # without rows Spark plans nothing and has counted nothing
    require_all_rows(int(given.get.get("rows", 0)), lambda: _rows_in(folder), str(folder))
    return folder


def _rows_in(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in folder.glob("date=*/hour=*/bucket=*/*.parquet"))


def split(rows_by_bucket: Mapping[int, int], buckets: int, tasks: int, split_rows: int) -> dict[int, int]:
    """How many tasks shall write a bucket, for those that had more than HOT_SHARE times the fair share of the rows."""
    total = sum(rows_by_bucket.values())
    parts = {
        bucket: min(round(rows * tasks / total), tasks, rows // split_rows)
        for bucket, rows in rows_by_bucket.items()
        if rows > HOT_SHARE * total / buckets
    }
    return {bucket: number for bucket, number in parts.items() if number > 1}


def publish(
    table: Table,
    staged: Path,
    batch: int,
    generation: int | None = None,
    only: Path | None = None,
) -> dict[tuple[str, int], list[DataFile]]:
    """Move staged files to the names of `batch`, onto the disk; nothing reads them before a manifest names them.

    Args: `generation`: of the files; None: what the hour's manifest says for this batch. `only`: this hour's folder.
    Returns: the files by hour, without those of hours that were compacted beyond this batch.
    """
    found: dict[tuple[str, int], list[DataFile]] = {}
    files_of = staged.glob("date=*/hour=*/bucket=*/*.parquet") if only is None else only.glob("bucket=*/*.parquet")
    for source in sorted(files_of):
        place = dict(part.split("=", 1) for part in source.parent.relative_to(staged).parts)
        date, hour, bucket = place["date"], int(place["hour"]), int(place["bucket"])
        manifest = table.hour(date, hour)
        if generation is None and batch <= manifest.compacted_through:
            found.setdefault((date, hour), [])
            continue
        files = found.setdefault((date, hour), [])
        part = sum(file.bucket == bucket for file in files)
        number = manifest.generation_for(batch) if generation is None else generation
        name = f"{hour_folder(date, hour)}/bucket={bucket:02d}/{file_name(batch, number, part)}"
        target = table.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        files.append(_described(source, name, bucket, batch, number))
        _sync(source)
        source.replace(target)
        sync_folder(target.parent)
    return found


def _described(file: Path, name: str, bucket: int, batch: int, generation: int) -> DataFile:
    import pyarrow.parquet as pq

    footer = pq.read_metadata(file)
    low: list[int] = []
    high: list[int] = []
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if column.path_in_schema in ("time", "timestamp") and column.statistics and column.statistics.has_min_max:
                low.append(_micros(column.statistics.min))
                high.append(_micros(column.statistics.max))
    size = file.stat().st_size
    return DataFile(
        name, bucket, batch, generation, footer.num_rows, size, min(low, default=None), max(high, default=None)
    )


def _micros(time: Any) -> int:
    from datetime import datetime, timedelta, timezone

    return int((time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1))


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
