"""Follow a request log: its usage and throttles as a continuous query into a table of `views`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark import formatting as jobs
from kbroker.spark.errors import PipelineError
from kbroker.spark.executors import SHUFFLE_PARTITIONS, SPARKS_PARTITIONS
from kbroker.spark.failures import is_of_spark, sentence
from kbroker.spark.micro_batches import MicroBatches
from kbroker.spark.session_kind import changed_setting, parallelism
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables import log_reader
from kbroker.spark.tables.delta_table import REQUEST_LOG, VIEWS, Table, TableInfo
from kbroker.spark.tables.log_reader import REASON, LogSource, good
from kbroker.spark.tables.table_layout import PhaseCallback, Written
from kbroker.spark.tables.table_place import TableName, TablePlace
from kbroker.spark.tables.table_stream import Ingested, Parse, StreamOptions, TableStream, in_time
from kbroker.spark.watch import views
from kbroker.spark.watch.minutes import is_ahead, open_minutes

_STATE = "the checkpoint of `watch`, in which executors keep its state,"
_SEEN = "kbroker_watch"  # name of the observed metrics

#: Writes the page of a table; returns False if the table has no minute yet.
Refresh = Callable[[], bool]


@dataclass
class Watched(Ingested):
    """Result of one run.

    `records`: records read; `late`: rows for a minute that was already closed, which no view contains;
    `state_rows`, `state_bytes`: maximum size of Spark's state; `pages`: pages written.
    """

    records: int = 0
    late: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    pages: int = 0


def watch(
    spark: SparkSession,
    source: LogSource,
    table: TableName,
    options: StreamOptions | None = None,
    *,
    refresh: Refresh | None = None,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
    stopping: Callable[[], bool] = lambda: False,
    at: PhaseCallback | None = None,
) -> Watched:
    """Aggregate a log into a table of views until `stopping` returns true, or without `follow` until the log's end.

    Args: `refresh`: called on this thread when the table has changed, at most once an interval, and at the end;
    `clock`: limits the hours that are compacted; `progress`, `at`: as for `ingest`, with the additional phases
    computed and page.
    Raises: TableError, PipelineError as `ingest`.
    """
    chosen = options or StreamOptions(buckets=1, follow=True)
    columns = views.views_schema().jsonValue()
    wanted = TableInfo(VIEWS, chosen.buckets, views.SCHEMA_VERSION, columns)
    job = _Watch(spark, table, chosen, wanted, source.stream(), clock or SystemClock(), progress, at)
    return job.watch(source, stopping, refresh)


class _Watch(TableStream):
    """Stream whose batches are closed minutes. Threads: as `TableStream`."""

    done: Watched
    _refresh: Refresh | None = None
    _last_batch = -1
    _shown = -1  # table version shown by the page
    _looked_ms: int | None = None  # when the page was last compared with the table
    _page_failure = ""

    def watch(self, source: LogSource, stopping: Callable[[], bool], refresh: Refresh | None) -> Watched:
        self.done, self._refresh = Watched(), refresh
        if self.checkpoint.is_local and self.options.checkpoint is not None:
            folder = Path(self.checkpoint.uri)
            folder.mkdir(parents=True, exist_ok=True)
            require_shared(self.spark, folder, what=_STATE)

        def load() -> DataFrame:
            raw = log_reader.stream_log(self.spark, source, self.options.max_per_batch, by_time=True)
            parsed = in_time(log_reader.parse(raw, source.format), REQUEST_LOG)
            parsed = parsed.withColumn(REASON, F.coalesce(REASON, F.when(is_ahead(), F.lit("ahead of the clock"))))
            is_bad = F.col(REASON).isNotNull()
            counted = parsed.observe(
                _SEEN, F.count(F.lit(1)).alias("records"), F.count(F.when(is_bad, F.lit(1))).alias("rejected")
            )
            return open_minutes(good(counted), self.options.watermark_ms)

        def parse(closed: DataFrame) -> DataFrame:
            return views.rows_of(closed, lambda dates: views.known_connections(self.spark, self.table.place, dates))

        self.run(load, parse, stopping, log_reader.some_files(source))
        self._show()
        return self.done

    def _start(self, stream: DataFrame, checkpoint: TablePlace, batches: MicroBatches) -> StreamingQuery:
        """Start with one state partition per concurrent task; an existing checkpoint keeps its number of partitions.

        Each partition writes a few state files for every batch.
        """
        is_default = self.spark.conf.get(SHUFFLE_PARTITIONS) == str(SPARKS_PARTITIONS)
        partitions = str(max(2, parallelism(self.spark))) if is_default else None
        with changed_setting(self.spark, SHUFFLE_PARTITIONS, partitions):
            return super()._start(stream, checkpoint, batches)

    def write(self, batch: DataFrame, number: int, parse: Parse) -> None:
        # Computed once, even if the table already has the batch: computing it advances the state and the watermark.
        # With `cache()`, Spark 4.2 aggregated the whole log again for a union; the cause is unknown.
        closed = batch.localCheckpoint()
        self._at("computed")
        if closed.isEmpty():
            self._known()
            self.done.batches += 1
            self._at("done")
        else:
            super().write(closed, number, parse)

    def say_written(self, number: int, written: Written, refused: int, took: int) -> None:
        """Report a written batch if it closed minutes; `look` reports the records read."""
        if written.rows:
            super().say_written(number, written, refused, took)

    def look(self, query: StreamingQuery) -> None:
        """Report each batch, and update the page."""
        for done in _finished(query, self._last_batch):
            self._last_batch = done["batchId"]
            self._say(done)
        now_ms = self.clock.now_ms()
        if self._refresh is not None and (
            self._looked_ms is None or now_ms - self._looked_ms >= self.options.interval_ms
        ):
            self._show()

    def _say(self, done: Any) -> None:
        state = done["stateOperators"][0] if done["stateOperators"] else None
        counted = done["observedMetrics"].get(_SEEN)
        records, rejected = counts_of(counted) if counted is not None else (0, 0)
        late = state["numRowsDroppedByWatermark"] if state else 0
        self.done.records += records
        self.done.rejected += rejected
        self.done.late += late
        if state is None:
            return
        self.done.state_rows = max(self.done.state_rows, state["numRowsTotal"])
        self.done.state_bytes = max(self.done.state_bytes, state["memoryUsedBytes"])
        closed = done["eventTime"].get("watermark", "")
        self.progress(
            f"batch {done['batchId']}: {jobs.count(records)} records; open: {jobs.count(state['numRowsTotal'])} rows, "
            f"{jobs.size(state['memoryUsedBytes'])}"
            + (f"; closed until {_clock(closed)}" if closed and not closed.startswith("1970-01-01T00:00:00") else "")
            + (f"; {jobs.count(late)} rows arrived late and are left out of the views" if late else "")
            + (f"; {jobs.count(rejected)} lines are not records, or ahead of the clock" if rejected else "")
        )

    def _show(self) -> None:
        """Write the page again if the table has changed."""
        if self._refresh is None:
            return
        self._looked_ms = self.clock.now_ms()
        try:
            version = Table(self.table.place).version  # `self.table` belongs to the thread of the batches
            if version == self._shown or not self._refresh():
                return
            self._shown = version
            self.done.pages += 1
            self._page_failure = ""
        except Exception as error:
            # a full disk or a deleted folder must not stop the views
            if not isinstance(error, (OSError, PipelineError)) and not is_of_spark(error):
                raise
            reason = sentence(error) if is_of_spark(error) else str(error)
            if reason != self._page_failure:
                self._page_failure = reason
                self.progress(f"the page was not written: {reason}")
            return
        self._at("page")


def counts_of(observed: Row) -> Sequence[int]:
    """Return the values of observed metrics; Spark Connect reports them as `values` next to their `schema`."""
    found: Sequence[int] = observed.asDict().get("values", observed)
    return found


def _finished(query: StreamingQuery, after: int) -> Iterable[Any]:
    """Return the progress of the batches executed since batch `after`, in order."""
    last = query.lastProgress
    if last is None or last["batchId"] <= after:
        return []
    found = [last] if last["batchId"] == after + 1 else query.recentProgress
    by_number = {one["batchId"]: one for one in found if one["batchId"] > after and "addBatch" in one["durationMs"]}
    return [by_number[number] for number in sorted(by_number)]


def _clock(watermark: str) -> str:
    """Return Spark's watermark, such as "2026-01-02T03:04:05.000Z" (UTC), for people."""
    return f"{datetime.fromisoformat(watermark.replace('Z', '+00:00')):%Y-%m-%d %H:%M:%S} UTC"
