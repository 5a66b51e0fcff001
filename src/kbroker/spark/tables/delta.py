"""The same rows in a Delta table, for engines that read Delta: `--table-format delta`.

Delta's own log takes the place of manifests: a batch is one transaction, named by the stream and its number, and a
transaction that is repeated changes nothing. Compaction is Delta's OPTIMIZE; what it replaced stays until somebody runs
VACUUM. Description, checkpoint and lock lie beside it as with Parquet, on a file system. Needs the jars of
`kbroker pipeline jars --delta`.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.spark.errors import PipelineError
from kbroker.spark.locations import spark_path
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.manifest import Table, TableInfo
from kbroker.spark.tables.table_layout import (
    ORDER,
    TIME,
    Compacted,
    PhaseCallback,
    Written,
    table_schema,
    with_place,
)

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
#: What a session needs beside the jars; `build_session(delta=True)` sets it.
SETTINGS = {
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "4",  # of its 50 nearly all are tasks of nothing here
}


def require_delta(spark: SparkSession) -> None:
    """Check that a session can read and write Delta tables.

    Raises: PipelineError that says how to start one.
    """
    if _EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise PipelineError("this Spark session has no Delta Lake; start one with build_session(delta=True)")


def write_delta(rows: DataFrame, table: Table, info: TableInfo, batch: int, at: PhaseCallback) -> Written:
    """Append a batch; one that was written before is left out by Delta.

    Args: `rows`: kept, for they are read twice; `at`: called with the phases counted and committed.
    """
    youngest = F.max(F.unix_micros(TIME[info.kind]))
    found = rows.agg(F.count(F.lit(1)).alias("rows"), youngest.alias("to")).collect()[0]
    at("counted")
    placed = with_place(rows, info.kind, info.buckets)
    (
        placed.repartition(info.buckets, *log_schema.PLACE)
        .sortWithinPartitions(*log_schema.PLACE, *ORDER[info.kind])
        .write.format("delta")
        .mode("append")
        .option("txnAppId", str(info.stream))
        .option("txnVersion", str(batch))
        .option("mergeSchema", "true")  # columns are only ever added
        .partitionBy(*log_schema.PLACE)
        .save(spark_path(table.path))
    )
    at("committed")
    return Written(int(found["rows"]), 0, (), found["to"], {})


def read_delta(spark: SparkSession, path: Path, info: TableInfo) -> DataFrame:
    """All rows, with the columns that the table has not yet as nulls.

    Raises: PipelineError for a session without Delta.
    """
    require_delta(spark)
    wanted = [(field.name, field.dataType) for field in table_schema(info).fields]
    if not (path / "_delta_log").exists():
        return spark.createDataFrame([], table_schema(info)).selectExpr(
            "*", "cast(null as string) as date", "cast(null as int) as hour", "cast(null as int) as bucket"
        )
    rows = spark.read.format("delta").load(spark_path(path))
    has = set(rows.columns)
    return rows.select(
        *(F.col(name) if name in has else F.lit(None).cast(kind).alias(name) for name, kind in wanted),
        *log_schema.PLACE,
    )


def optimize_delta(spark: SparkSession, path: Path) -> Compacted:
    """Make the files of an hour and bucket one.

    Raises: PipelineError for a session without Delta.
    """
    require_delta(spark)
    if not (path / "_delta_log").exists():
        return Compacted()
    named = spark_path(path).replace("`", "``")
    metrics = spark.sql(f"OPTIMIZE delta.`{named}`").collect()[0]["metrics"]
    return Compacted(files_before=int(metrics["numFilesRemoved"]), files_after=int(metrics["numFilesAdded"]))
