"""Stream a request log into a table that the other jobs read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common import request_log
from kbroker.spark import formatting as jobs
from kbroker.spark.tables import log_reader
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.manifest import REQUEST_LOG, TableInfo
from kbroker.spark.tables.table_layout import PhaseCallback
from kbroker.spark.tables.table_stream import Ingested, StreamOptions, TableStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(
    spark: SparkSession,
    source: LogSource,
    path: Path,
    options: StreamOptions | None = None,
    *,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
    stopping: Callable[[], bool] = lambda: False,
    at: PhaseCallback | None = None,
) -> Ingested:
    """Read a request log into the table at `path` until all is read, or until `stopping` says so.

    Args: `clock`: of the grace time, and the watermark's upper bound; `progress`: called with a line per batch; `at`:
    with each phase that is done (staged, renamed, manifest, committed, compact staged ...), for tests that end there.
    Raises: TableError when the table is another stream's, is being written, or holds something else; PipelineError for
    what ended the stream.
    """
    wanted = TableInfo(REQUEST_LOG, schema_version=request_log.VERSION, source=str(source))
    job = TableStream(spark, path, options or StreamOptions(), wanted, clock or SystemClock(), progress, at)
    return job.run(
        lambda: log_reader.stream_log(spark, source, job.options.max_per_batch),
        lambda batch: log_reader.parse(batch, source.format),
        stopping,
        log_reader.some_files(source),
    )
