"""Stream a request log into a table that the other jobs read."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common import request_log
from kbroker.spark import formatting as jobs
from kbroker.spark.tables import log_reader, log_schema
from kbroker.spark.tables.delta_table import REQUEST_LOG, TableInfo
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table_layout import PhaseCallback
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.tables.table_stream import Ingested, StreamOptions, TableStream


def ingest(
    spark: SparkSession,
    source: LogSource,
    table: TableName,
    options: StreamOptions | None = None,
    *,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
    stopping: Callable[[], bool] = lambda: False,
    at: PhaseCallback | None = None,
) -> Ingested:
    """Read a request log into `table` until all is read, or until `stopping` returns True.

    Args: `clock`: the watermark's upper bound; `progress`: called with a line per batch; `at`:
    with each phase that is done (written, rejected, committed, compacted, done), for tests that end there.
    Raises: TableError when the table is filled from this log by another stream, or holds something else; PipelineError
    with the reason why the stream ended.
    """
    chosen = options or StreamOptions()
    wanted = TableInfo(REQUEST_LOG, chosen.buckets, request_log.VERSION, log_schema.spark_schema().jsonValue())
    job = TableStream(spark, table, chosen, wanted, source.stream(), clock or SystemClock(), progress, at)
    return job.run(
        lambda: log_reader.stream_log(spark, source, job.options.max_per_batch),
        lambda batch: log_reader.parse(batch, source.format),
        stopping,
        log_reader.some_files(source),
    )
