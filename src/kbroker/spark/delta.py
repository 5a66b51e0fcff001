"""The same rows in a Delta table, for object stores and several readers' engines: `--table-format delta`.

Delta's own log takes the place of manifests: a batch is one transaction, named by the stream and its number, and a
transaction that is repeated changes nothing. Compaction is Delta's OPTIMIZE. Needs the jars of `kbroker pipeline jars`.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.spark import log_schema
from kbroker.spark.manifest import Table, TableInfo
from kbroker.spark.table import ORDER, TIME, Written, table_schema, with_place

#: What a session needs beside the jars.
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def write_delta(rows: DataFrame, table: Table, info: TableInfo, batch: int) -> Written:
    """Append a batch; one that was written before is left out by Delta. Args: `rows`: kept, for they are read twice."""
    youngest = F.max(F.unix_micros(TIME[info.kind]))
    found = rows.agg(F.count(F.lit(1)).alias("rows"), youngest.alias("to")).collect()[0]
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
        .save(str(table.path))
    )
    return Written(int(found["rows"]), 0, (), found["to"], {})


def read_delta(spark: SparkSession, path: Path, info: TableInfo) -> DataFrame:
    """All rows, with the columns that the table has not yet as nulls."""
    if not (path / "_delta_log").exists():
        return spark.createDataFrame([], table_schema(info)).selectExpr(
            "*", "cast(null as string) as date", "cast(null as int) as hour", "cast(null as int) as bucket"
        )
    return spark.read.format("delta").load(str(path))
