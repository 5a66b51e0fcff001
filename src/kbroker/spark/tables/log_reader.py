"""Read a request log with Spark, in any of its formats, as rows of the flat columns and reasons of rejected lines.

Formats are JSON objects of any version, lines of the log of Apache Kafka (KIP-673) and Arrow batches, in files or in a
topic. Spark's own parser reads the JSON, and Arrow is read by the batch: no record becomes a Python object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.common.request_log import COLUMNS, LIST, TIMESTAMP_US
from kbroker.spark.errors import PipelineError
from kbroker.spark.executors import require_server
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.arrow_log import decode_messages, message_schema
from kbroker.spark.tables.delta_table import Stream
from kbroker.spark.tables.log_files import NAME, LogFiles
from kbroker.spark.tables.log_store import found_files, require_logs
from kbroker.spark.tables.table_place import TablePlace

AUTO, JSON, ARROW = "auto", "json", "arrow"
FORMATS = (AUTO, JSON, ARROW)
KBROKER, KAFKA = "kbroker", "kafka"  # Spark's names of the sources of topics
INTERNAL_PREFIX = "__"
_BY_CONSUMER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
ARROW_HEADER = ("format", "arrow")

#: Columns of a rejected line: the reason, the line, and its place.
REASON, RAW, SOURCE, POSITION = "_reason", "_raw", "_source", "_position"
MAX_RAW_CHARACTERS = 65_536
#: The maximum that one record may count for: 1 PB, or 31 years of microseconds. Larger sums would not fit.
MOST = 1e15
MOST_DELAY_MS = MOST / 1000  # maximum delay of a throttle; delays are summed as integers
_KAFKA_LINE = r"Completed request:\s*(\{.*\})"
_KAFKA_STAMP = r"^\W{0,3}(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3,6})"


@dataclass(frozen=True)
class LogSource:
    """The place of a log: `paths` (files, folders, patterns), or a `topic` with `bootstrap_servers`.

    `connector`: Spark's source of the topic, "kbroker" or the official "kafka"; `format` of the records, "json" or
    "arrow"; "auto" reads both, but takes some more processor time; `options`: further options of the source, such as
    startingOffsets or, for the official one, kafka.security.protocol; `storage`: options of the store of `paths`, as
    delta-rs names them.
    """

    paths: tuple[str, ...] = ()
    bootstrap_servers: str = ""
    topic: str = ""
    connector: str = KBROKER
    format: str = AUTO
    options: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_files(
        cls, *paths: str | os.PathLike[str], format: str = AUTO, storage: Mapping[str, str] | None = None
    ) -> LogSource:
        """Return the source of files, folders of files, or patterns of names: paths, or URIs of a store.

        Raises: PipelineError for a URI of a store that delta-rs does not support.
        """
        places = [TablePlace.of(path, storage) for path in paths]
        # including those in this process's environment, which Spark's JVM and executors need not have
        known = {name: value for place in places for name, value in place.options}
        return cls(paths=tuple(place.uri for place in places), format=format, storage=known)

    @classmethod
    def of_topic(
        cls,
        bootstrap_servers: str,
        topic: str,
        *,
        connector: str = KBROKER,
        format: str = AUTO,
        options: Mapping[str, str] | None = None,
    ) -> LogSource:
        """Return the source of a topic."""
        return cls((), bootstrap_servers, topic, connector, format, options or {})

    def stream(self) -> Stream:
        """Return the description of the source that a table keeps."""
        return Stream(self.topic, self.bootstrap_servers, self.paths)


def read_log(spark: SparkSession, source: LogSource) -> DataFrame:
    """Return all records of a log: the flat columns and REASON, RAW, SOURCE, POSITION.

    Raises: PipelineError when there is no log, or an executor does not find its files.
    """
    return parse(read_lines(spark, source), source.format)


def read_lines(spark: SparkSession, source: LogSource) -> DataFrame:
    """Return all values of a log, not parsed yet. Raises: PipelineError as `read_log`."""
    raw = _load(spark, source, streaming=False)
    require_shared(spark, None, some_files(source))
    return _normal(raw, source)


def stream_log(
    spark: SparkSession, source: LogSource, max_per_batch: int | None = None, *, by_time: bool = False
) -> DataFrame:
    """Return the log as a stream of values that are not parsed yet: pass each batch to `parse`.

    Args: `max_per_batch`: records of a topic, bytes of files; `by_time`: limited batches end at the same time in each
    partition, where kbroker's source reads a topic.
    """
    return _normal(_load(spark, source, streaming=True, max_per_batch=max_per_batch, by_time=by_time), source)


def _load(
    spark: SparkSession, source: LogSource, *, streaming: bool, max_per_batch: int | None = None, by_time: bool = False
) -> DataFrame:
    require_server(spark)
    reader = spark.readStream if streaming else spark.read
    if not source.topic:
        require_logs(TablePlace.of(path, source.storage) for path in source.paths)
        if not streaming and not found_files(source.paths, source.storage):
            raise PipelineError(
                f"no file of a log in {', '.join(source.paths)}: expected files of lines or Arrow batches"
            )
        spark.dataSource.register(LogFiles)
        options = {"paths": json.dumps(source.paths), "storage": json.dumps(dict(source.storage))}
        if max_per_batch:
            options["maxBytesPerTrigger"] = str(max_per_batch)
        return reader.format(NAME).options(**options).load()
    return load_topic(spark, source, reader, max_per_batch, by_time=by_time)


def load_topic(
    spark: SparkSession, source: LogSource, reader: Any, max_per_batch: int | None, *, by_time: bool = False
) -> DataFrame:
    """Return the records of a topic from its start, with the columns of Spark's sources.

    Args: `reader`: `spark.read` or `spark.readStream`; others as `stream_log`.
    """
    if source.connector == KAFKA and source.topic.startswith(INTERNAL_PREFIX):
        spark.conf.set(_BY_CONSUMER, "true")  # with an admin client, Spark's own source skips such topics silently
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **source.options,
    }
    if max_per_batch:
        options["maxOffsetsPerTrigger"] = str(max_per_batch)
        if by_time and source.connector == KBROKER:
            options = {"maxOffsetsByTime": "true", **options}
    loaded: DataFrame = reader.format(source.connector).options(**options).load()
    return loaded


def some_files(source: LogSource) -> list[str]:
    """Return the existing files of a log on the file systems of this machine."""
    if source.topic:
        return []
    return [file.path for file in found_files(source.paths, source.storage) if not file.is_elsewhere]


def _normal(raw: DataFrame, source: LogSource) -> DataFrame:
    """Give topics the columns of files: value, arrow, source, position, stamp."""
    if not source.topic:
        return raw
    name, wanted = ARROW_HEADER
    is_arrow = F.exists("headers", lambda h: (h["key"] == name) & (h["value"].cast("string") == wanted))
    return raw.select(
        "value",
        F.coalesce(is_arrow, F.lit(False)).alias("arrow"),
        F.concat("topic", F.lit("-"), F.col("partition").cast("string")).alias("source"),
        F.col("offset").alias("position"),
        F.col("timestamp").alias("stamp"),
    )


def parse(raw: DataFrame, format: str = AUTO) -> DataFrame:
    """Parse the values of `stream_log` into one row per record, and one per value that is not a record.

    Returns: the flat columns, and REASON (null for a record), RAW, SOURCE, POSITION.
    """
    raw = raw.where("value is not null")  # a tombstone is skipped, like an empty line
    if format == JSON:
        reason = F.when(F.col("arrow"), F.lit("an Arrow batch, although the format is json"))
        return _parse_json(raw.select(F.col("value").cast("string").alias("text"), reason.alias("reason"), *_ORIGIN))
    decoded = raw.mapInArrow(decode_messages, message_schema())
    if format == ARROW:
        no_batch = F.when(F.col("text").isNotNull(), F.lit("not an Arrow batch (no header names the format)"))
        reason = F.coalesce("reason", no_batch, _impossible())
        return decoded.select(
            *log_schema.names(), reason.alias(REASON), F.rtrim(F.col("text"), F.lit("\r\n")).alias(RAW), *_renamed()
        )
    return _parse_json(decoded, beside=True)


_ORIGIN = ("source", "position", "stamp")


def _renamed() -> list[Column]:
    return [F.col("source").alias(SOURCE), F.col("position").alias(POSITION)]


def _parse_json(messages: DataFrame, beside: bool = False) -> DataFrame:
    """Parse text. Args: `beside`: rows without text are records already, in separate columns."""
    text = F.col("text")
    is_json = text.startswith("{")
    body = F.when(is_json, text).otherwise(F.regexp_extract(text, _KAFKA_LINE, 1))
    day, clock, part = (F.regexp_extract(text, _KAFKA_STAMP, group) for group in (1, 2, 3))
    stated = F.concat(day, F.lit("T"), clock, F.lit("."), part, F.lit("Z")).try_cast("timestamp")
    record = F.from_json(body, log_schema.json_schema("_corrupt"), {"columnNameOfCorruptRecord": "_corrupt"})
    lines = messages.where(
        text.isNull() | (F.length(F.trim(F.regexp_replace(F.substring(text, 1, 64), r"\s", ""))) > 0)
    )
    kept = log_schema.names() if beside else []
    found = lines.select(
        evaluated_once(record.alias("record"), F.when(~is_json, stated).alias("stated_time")),
        *(F.col(name).alias(f"arrow_{name}") for name in kept),
        *("text", "reason", *_ORIGIN),
    )
    columns = [_column(c.name, c.type, c.json, beside).alias(c.name) for c in COLUMNS]
    parsed = found.select(*columns, _reason().alias("reason"), "text", *_ORIGIN)
    timed = F.when(F.col("time").isNull() & F.col("reason").isNull(), F.lit("no time"))
    return parsed.select(
        *log_schema.names(),
        F.coalesce("reason", timed, _impossible()).alias(REASON),
        F.rtrim(F.substring("text", 1, MAX_RAW_CHARACTERS), F.lit("\r\n")).alias(RAW),
        *_renamed(),
    )


def evaluated_once(*columns: Column) -> Column:
    """Return named columns as a generator of one row.

    Spark moves a filter below a plain column and repeats the expression of the column wherever the filter uses it: a
    line was parsed up to 55 times.
    """
    return F.inline(F.array(F.struct(*columns)))


def _reason() -> Column:
    record = F.col("record")
    is_request = record["requestHeader"]["requestApiKey"].isNotNull() | record["quota"]["verdicts"].isNotNull()
    return (
        F.when(F.col("reason").isNotNull(), F.col("reason"))
        .when(F.col("text").isNull(), F.lit(None))
        .when(record.isNull(), F.lit("no record of a request in this line"))
        .when(record["_corrupt"].isNotNull(), F.lit("invalid JSON, or a field of another type"))
        .when(~is_request, F.lit("JSON that is not a record of a request"))
    )


def _impossible() -> Column:
    """Return the reason why no broker can have written the numbers of a record, null for all other records.

    One such record would distort the sums of its client, or end every view of the whole log.
    """
    zero, one = F.lit(0), F.lit(1)
    share, times = F.coalesce("sampling", F.lit(1.0)), F.coalesce("repeated", one)
    sizes = [F.coalesce(name, zero) for name in ("request_bytes", "response_bytes")]
    spent = [F.abs(F.coalesce(name, zero).cast("double")) for name in ("local_time_us", "network_time_us")]
    most = F.greatest(*(size.cast("double") for size in sizes), *(time * times for time in spent), times.cast("double"))

    def is_long(verdict: Column) -> Column:
        delays = [F.coalesce(verdict[name], zero).cast("double") for name in ("delay_asked_ms", "delay_served_ms")]
        return F.greatest(*map(F.abs, delays)) > MOST_DELAY_MS

    def is_large(update: Column) -> Column:
        return F.abs(update["value"]) > MOST  # so is NaN to Spark

    return (
        F.when(F.unix_micros("time") < 0, F.lit("a time before 1970"))
        .when(F.isnan(share) | (share <= 0) | (share > 1), F.lit("a sampling that is not a number above 0, up to 1"))
        .when(times < 1, F.lit("a record that is repeated less than once"))
        .when(F.least(*sizes) < 0, F.lit("a size below 0"))
        .when(
            (most / share > MOST) | F.exists("verdicts", is_long) | F.exists("updates", is_large),
            F.lit("a number that is too large"),
        )
    )


def _column(name: str, kind: str, path: str, beside: bool) -> Column:
    value = F.col("record")
    for part in path.split("."):
        value = value[part]
    if name == "transactional_id":
        value = log_schema.transactional_id(F.col("record")["request"])
    elif kind == TIMESTAMP_US:
        value = F.coalesce(_utc(value), F.col("stated_time"), F.col("stamp"))
    elif kind == LIST:
        value = value.cast(log_schema.spark_schema()[name].dataType)  # by position, because the names differ
    elif name.endswith("_us"):
        value = F.round(value * 1000).try_cast("bigint")
    if not beside:
        return value
    return F.when(F.col("text").isNull(), F.col(f"arrow_{name}")).otherwise(value)


def _utc(text: Column) -> Column:
    """Return the time of a text, which is UTC if the text has no zone, whatever the session's time zone."""
    with_zone = text.try_cast("timestamp")
    without = F.coalesce(F.concat(text, F.lit("Z")).try_cast("timestamp"), with_zone)
    return F.when(text.endswith("Z"), with_zone).otherwise(without)


def good(parsed: DataFrame) -> DataFrame:
    """Return the records, without the columns of rejected lines."""
    return parsed.where(f"{REASON} is null").drop(REASON, RAW, SOURCE, POSITION)


def rejected(parsed: DataFrame) -> DataFrame:
    """Return the rejected lines: source, position, reason, raw."""
    return parsed.where(f"{REASON} is not null").selectExpr(
        f"{SOURCE} as source", f"{POSITION} as position", f"{REASON} as reason", f"{RAW} as raw"
    )
