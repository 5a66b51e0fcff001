"""Archive any topic as Parquet: one row per record, its value as bytes, text, or columns of a schema; resumable.

The table has the layout of `ingest`: by date and hour of the records' timestamps, and by partition. It is written in
the same way, exactly once across kills and restarts, and its hours are compacted when they are closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark import formatting as jobs
from kbroker.spark.errors import PipelineError
from kbroker.spark.executors import require_server
from kbroker.spark.tables.delta_table import TOPIC, TableInfo
from kbroker.spark.tables.log_reader import POSITION, RAW, REASON, SOURCE, LogSource, evaluated_once, load_topic
from kbroker.spark.tables.table_layout import PhaseCallback
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.tables.table_stream import Ingested, StreamOptions, TableStream

BINARY, STRING, JSON = "binary", "string", "json"


@dataclass(frozen=True)
class RecordSchema:
    """Formats of stored keys and values: "binary", "string" (UTF-8), or "json".

    A JSON part needs its columns in SQL: "id bigint, tags array<string>". A record that does not match is stored
    separately. Columns may be added later; old rows have null there.
    """

    key: str = BINARY
    value: str = BINARY
    key_columns: str = ""
    value_columns: str = ""

    def check(self) -> None:
        """Validate the formats before Spark runs.

        Raises: PipelineError for missing columns, and for columns of a part that is not JSON.
        """
        for part, form, columns in (("key", self.key, self.key_columns), ("value", self.value, self.value_columns)):
            if form != JSON and columns:
                raise PipelineError(f"columns were given for the {part}, which is kept as {form}, not as json")
            if form == JSON and not columns:
                raise PipelineError(f'a {part} that is JSON needs its columns, such as "id bigint, name string"')

    def types(self) -> tuple[DataType, DataType]:
        """Return Spark's types of the key and the value; needs a session.

        Raises: PipelineError as `check`, and for columns that are misspelt.
        """
        self.check()
        return _type(self.key, self.key_columns), _type(self.value, self.value_columns)


def _type(form: str, columns: str) -> DataType:
    from pyspark.errors import PySparkException

    if form != JSON:
        return types.StringType() if form == STRING else types.BinaryType()
    try:
        return types.StructType.fromDDL(columns)
    except (PySparkException, ValueError) as error:
        raise PipelineError(f"{columns!r} are not valid columns: {' '.join(str(error).split())[:200]}") from None


def archive(
    spark: SparkSession,
    source: LogSource,
    table: TableName,
    schema: RecordSchema | None = None,
    options: StreamOptions | None = None,
    *,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
    stopping: Callable[[], bool] = lambda: False,
    at: PhaseCallback | None = None,
) -> Ingested:
    """Copy a topic into `table` until its end, or until `stopping` returns true; resume where the last run ended.

    Args and raises: as `kbroker.spark.tables.ingest.ingest`, and TableError for a schema that would lose columns.
    """
    kept = schema or RecordSchema()
    chosen = options or StreamOptions()
    wanted = TableInfo(TOPIC, chosen.buckets, columns=archive_schema(kept).jsonValue())
    job = TableStream(spark, table, chosen, wanted, source.stream(), clock or SystemClock(), progress, at)
    require_server(spark)
    return job.run(
        lambda: load_topic(spark, source, spark.readStream, job.options.max_per_batch),
        lambda batch: parse_records(batch, kept),
        stopping,
    )


def archive_schema(schema: RecordSchema) -> StructType:
    """Return the columns of an archive."""
    key, value = schema.types()
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    columns: list[tuple[str, DataType]] = [
        ("topic", types.StringType()),
        ("partition", types.IntegerType()),
        ("offset", types.LongType()),
        ("timestamp", types.TimestampType()),
        ("timestamp_type", types.IntegerType()),
        ("key", key),
        ("value", value),
        ("headers", types.ArrayType(header)),
    ]
    return types.StructType([types.StructField(name, kind) for name, kind in columns])


def parse_records(batch: DataFrame, schema: RecordSchema) -> DataFrame:
    """Return records of a topic as rows of `archive_schema`, and the reasons of those that do not match.

    Args: `batch`: key, value, topic, partition, offset, timestamp, timestampType, headers.
    """
    key_type, value_type = schema.types()
    forms = (("key", schema.key, key_type), ("value", schema.value, value_type))
    if objects := [_parsed(part, kind) for part, _, kind in forms if isinstance(kind, StructType)]:
        batch = batch.select("*", evaluated_once(*objects))
    (key, bad_key), (value, bad_value) = (_decoded(*form) for form in forms)
    text = F.col("value").cast("string")
    raw = F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("base64:"), F.base64("value")))
    return batch.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").cast("int").alias("timestamp_type"),
        key.alias("key"),
        value.alias("value"),
        "headers",
        F.coalesce(bad_key, bad_value).alias(REASON),
        raw.alias(RAW),
        F.concat("topic", F.lit("-"), F.col("partition").cast("string")).alias(SOURCE),
        F.col("offset").alias(POSITION),
    )


def _parsed(part: str, kind: StructType) -> Column:
    """Return the object in the JSON of a column, null if that is not UTF-8."""
    text = F.col(part).cast("string")
    checked = StructType([*kind.fields, types.StructField("_corrupt", types.StringType())])
    options = {"columnNameOfCorruptRecord": "_corrupt", "timeZone": "UTC"}
    record = F.from_json(F.when(F.is_valid_utf8(text), text), checked, options)
    return record.alias(f"_{part}")


def _decoded(part: str, form: str, kind: DataType) -> tuple[Column, Column]:
    """Return the value of a column, and the reason why a stored value does not match; null if it matches."""
    column = F.col(part)
    if form == BINARY:
        return column, F.lit(None).cast("string")
    text = column.cast("string")
    is_text = F.is_valid_utf8(text)
    no_text = F.when(~is_text, F.lit(f"the {part} is not UTF-8 text"))
    if form == STRING:
        return F.when(is_text, text), no_text
    assert isinstance(kind, StructType)
    record = F.col(f"_{part}")
    bad = F.when(
        column.isNotNull() & (record.isNull() | record["_corrupt"].isNotNull()),
        F.lit(f"the {part} is not JSON of these columns"),
    )
    fitting = F.when(record.isNotNull(), F.struct(*(record[name].alias(name) for name in kind.names)))
    return fitting, F.coalesce(no_text, bad)
