"""A Spark stream into a table, exactly once over kill and restart: what `ingest` and `archive` share.

Each micro-batch is staged, renamed to unique file names, and named in the manifests of its hours; only then does
Spark commit it. A batch that is repeated after a crash writes the same names again, so no crash adds or loses a row.
The stream keeps no state in Spark: what it must know are the offsets of its checkpoint and the table's manifests.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark import formatting as jobs
from kbroker.spark.errors import NO_WORKER, PipelineError
from kbroker.spark.failures import cause
from kbroker.spark.locations import spark_path
from kbroker.spark.micro_batches import MicroBatches
from kbroker.spark.shared_folder import require_all_rows, require_shared
from kbroker.spark.tables import compaction
from kbroker.spark.tables.log_reader import REASON, good, rejected
from kbroker.spark.tables.manifest import (
    DEFAULT_BUCKETS,
    DELTA,
    PARQUET,
    REJECTED,
    STAGING,
    Table,
    TableError,
    TableInfo,
)
from kbroker.spark.tables.table import SPLIT_ROWS, open_table, write_batch
from kbroker.spark.tables.table_layout import Compacted, PhaseCallback, Written
from kbroker.spark.tables.table_lock import lock_table

CHECKPOINT = "_checkpoint"
MINUTE_MS = 60_000
STOP_POLL_S = 1
WORKER_STARTS = 5  # how often a stream is begun again for want of a Python worker; each time took ten seconds

#: Takes a micro-batch apart, into the table's columns and REASON, RAW, SOURCE, POSITION.
Parse = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream into a table runs; times in milliseconds.

    `follow`: go on until stopped, else end when all that was there is read. `interval_ms`: between batches.
    `max_per_batch`: records of a topic, bytes of files. `watermark_ms`: an hour is closed when the youngest row is so
    much younger than its end. `grace_ms`: how long replaced files stay. `split_rows`: the least that a task gets of a
    bucket with much of the rows. `checkpoint`: by default inside the table.
    """

    buckets: int = DEFAULT_BUCKETS
    follow: bool = False
    interval_ms: int = 10_000
    max_per_batch: int | None = None
    watermark_ms: int = 10 * MINUTE_MS
    grace_ms: int = 60 * MINUTE_MS
    rejected_keep_ms: int = 7 * 24 * 60 * MINUTE_MS
    split_rows: int = SPLIT_ROWS
    checkpoint: Path | None = None
    table_format: str = PARQUET


@dataclass
class Ingested:
    """What one run did."""

    batches: int = 0
    rows: int = 0
    rejected: int = 0
    files: int = 0
    elapsed_ms: int = 0
    compacted: Compacted = field(default_factory=Compacted)


class TableStream:
    """A running stream into a table. Threads: `write` on the thread of Spark's callback, the rest on the caller's."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        options: StreamOptions,
        wanted: TableInfo,
        clock: BaseClock,
        progress: jobs.Progress,
        at: PhaseCallback | None,
    ) -> None:
        self.spark, self.table, self.options = spark, Table(path), options
        self.wanted = replace(wanted, buckets=options.buckets, table_format=options.table_format)
        self.clock, self.progress = clock, progress
        self.done = Ingested()
        self._at: PhaseCallback = at or (lambda phase: None)
        self._hot: dict[int, int] = {}
        self._max_time_us: int | None = None
        self._unsettled: set[tuple[str, int]] = set()  # hours that are open, or have something to delete or rewrite
        self._info = self.wanted
        self._writing = threading.Lock()  # held for a whole batch, so that none is cut short by a stop
        self._stopped = False  # under _writing
        self._starts_left = WORKER_STARTS

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps the offsets."""
        return self.options.checkpoint or self.table.path / CHECKPOINT

    def run(
        self,
        load: Callable[[], DataFrame],
        parse: Parse,
        stopping: Callable[[], bool],
        files: Sequence[str] = (),
    ) -> Ingested:
        """Hold the lock, clean up after a killed run, stream, compact. Args: `files`: some of those that are read."""
        started = self.clock.now_ms()
        with lock_table(self.spark, self.table.path):
            require_shared(self.spark, self.table.path, files)
            self._info = self._open()
            self._clean()
            batches = MicroBatches(self.spark, lambda batch, number: self._take_turn(batch, number, parse))
            query = self._start(load(), batches)
            try:
                while self._await(query, stopping):
                    query = self._start(load(), batches)
            finally:
                with self._writing:
                    self._stopped = True
                query.stop()
                batches.close()
            if self._is_parquet:
                self._compact(self.spark)
        self.done.elapsed_ms = self.clock.now_ms() - started
        return self.done

    def _open(self) -> TableInfo:
        """Check that the table is ours: made by this checkpoint, from this source."""
        if not self._is_parquet:
            from kbroker.spark.tables.delta import require_delta

            require_delta(self.spark)
        info = open_table(self.table, self.wanted)
        if info.source != self.wanted.source:
            raise TableError(
                f"{self.table.path} is filled from {info.source or 'elsewhere'}, not from {self.wanted.source}"
            )
        known = _stream_id(self.checkpoint)
        if info.stream is not None and info.stream != known:
            raise TableError(
                f"{self.table.path} was filled with another checkpoint than {self.checkpoint}; without it records "
                "would be lost or doubled"
            )
        return info

    def _clean(self) -> None:
        shutil.rmtree(self.table.path / STAGING, ignore_errors=True)
        now_ms = self.clock.wall_ms()
        for file in (self.table.path / REJECTED).glob("batch-*"):
            if now_ms - file.stat().st_mtime * 1000 > self.options.rejected_keep_ms:
                file.unlink()
        if not self._is_parquet:
            return  # which of its files are live Delta alone knows
        dropped = self.table.drop_orphans()
        if dropped:
            self.progress(f"removed {dropped} files of a run that was killed")
        self._max_time_us = self.table.max_time_us()
        self._unsettled = {hour.key for hour in self.table.hours()}

    def _take_turn(self, batch: DataFrame, number: int, parse: Parse) -> None:
        with self._writing:
            if self._stopped:
                raise PipelineError("the stream was stopped before this batch")
            self.write(batch, number, parse)

    def _start(self, stream: DataFrame, batches: MicroBatches) -> StreamingQuery:
        writer = stream.writeStream.option("checkpointLocation", spark_path(self.checkpoint))
        if self.options.follow:
            writer = writer.trigger(processingTime=f"{self.options.interval_ms} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        query: StreamingQuery = batches.start(writer)
        return query

    def _await(self, query: StreamingQuery, stopping: Callable[[], bool]) -> bool:
        """Wait for the end; whether to start again from the checkpoint."""
        try:
            while not query.awaitTermination(STOP_POLL_S):
                if stopping():
                    break
            return False
        except StreamingQueryException as error:
            if NO_WORKER in str(error) and self._starts_left > 0:
                self._starts_left -= 1
                self.progress("a Python worker of Spark did not start in time; trying again")
                return True
            raise PipelineError(f"the stream ended: {cause(str(error))}") from error

    def write(self, batch: DataFrame, number: int, parse: Parse) -> None:
        """One micro-batch: rows into the table, the rest into `_rejected`; then what is due of compaction."""
        started = self.clock.now_ms()
        if self._info.stream is None:
            self._info = replace(self._info, stream=_stream_id(self.checkpoint))
            self.table.store_info(self._info)
        written, refused = self._take(parse(batch), number)
        self._at("rejected")
        self._hot = dict(written.rows_by_bucket)
        self._max_time_us = max(filter(None, [self._max_time_us, written.max_time_us]), default=None)
        self.done.batches += 1
        self.done.rows += written.rows
        self.done.rejected += refused
        self.done.files += written.files
        took = self.clock.now_ms() - started
        where = f" into {written.files} files of {len(written.hours)} hours" if self._is_parquet else ""
        self.progress(
            f"batch {number}: {jobs.count(written.rows)} rows{where}"
            + (f", {jobs.count(refused)} rejected" if refused else "")
            + f", {jobs.duration(took)}, {jobs.rate(written.rows, took)}"
        )
        if self._is_parquet:
            self._compact(batch.sparkSession, written.hours)
        self._at("done")

    @property
    def _is_parquet(self) -> bool:
        return self.options.table_format == PARQUET

    def _take(self, parsed: DataFrame, number: int) -> tuple[Written, int]:
        """Write what is good into the table and keep the rest; what was written, and how much was not."""
        bad = F.count(F.when(F.col(REASON).isNotNull(), F.lit(1))).alias("rejected")
        if self._is_parquet:
            counted = Observation()
            rows = good(parsed.observe(counted, bad))
            written = write_batch(
                rows, self.table, self._info, number, hot=self._hot, split_rows=self.options.split_rows, at=self._at
            )
            # of a batch of nothing, as of a log that is still to come, Spark plans nothing and has counted nothing
            refused = 0 if written.rows == 0 and parsed.isEmpty() else int(counted.get["rejected"])
            if refused:
                self._keep_rejected(rejected(parsed), number)
            return written, refused
        from kbroker.spark.tables.delta import write_delta

        parsed = parsed.persist()
        try:
            # counted first: it writes by a separate plan, in which nothing is observed, and leaves a repeated one out
            refused = int(parsed.agg(bad).collect()[0]["rejected"])
            written = write_delta(good(parsed), self.table, self._info, number, self._at)
            if refused:
                self._keep_rejected(rejected(parsed), number)
        finally:
            parsed.unpersist()
        return written, refused

    def _keep_rejected(self, others: DataFrame, number: int) -> None:
        folder = self.table.path / STAGING / f"rejected-{number:08d}"
        given = Observation()
        counted = others.coalesce(1).observe(given, F.count(F.lit(1)).alias("lines"))
        counted.write.mode("overwrite").json(spark_path(folder))
        require_all_rows(int(given.get.get("lines", 0)), lambda: _lines_in(folder), str(folder))
        (self.table.path / REJECTED).mkdir(exist_ok=True)
        for file in folder.glob("*.json"):
            file.replace(self.table.path / REJECTED / f"batch-{number:08d}.jsonl")
        shutil.rmtree(folder)

    @property
    def watermark_us(self) -> int:
        """Hours that end by then are closed. Never beyond the clock: one row of next year closes nothing."""
        if self._max_time_us is None:
            return 0
        youngest = min(self._max_time_us, self.clock.wall_ms() * 1000)
        return youngest - self.options.watermark_ms * 1000

    def _compact(self, spark: SparkSession, written: Collection[tuple[str, int]] = ()) -> None:
        watermark = self.watermark_us
        self._unsettled.update(written)
        done = compaction.compact(
            spark,
            self.table,
            self._info,
            closed_before_us=watermark,
            now_ms=self.clock.wall_ms(),
            grace_ms=self.options.grace_ms,
            hours=self._unsettled,
            at=self._at,
        )
        hours = [self.table.hour(*key) for key in self._unsettled]
        self._unsettled = {hour.key for hour in hours if hour.end_us > watermark or hour.retired}
        self.done.compacted += done
        if done.hours:
            self.progress(f"compacted {done.hours} hours: {done.files_before} files into {done.files_after}")


def _lines_in(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.json"))


def _stream_id(checkpoint: Path) -> str | None:
    """The id that Spark gave the stream of a checkpoint; None before its first start."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return None


def compact_table(
    spark: SparkSession,
    path: Path,
    *,
    grace_ms: int,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
) -> Compacted:
    """Rewrite each hour of a table to one file per bucket, open or not.

    Raises: TableError when the folder is no table, or another job writes it.
    """
    table, now_ms = Table(path), (clock or SystemClock()).wall_ms()
    info = table.info()
    with lock_table(spark, path):
        if info.table_format == DELTA:
            from kbroker.spark.tables.delta import optimize_delta

            done = optimize_delta(spark, path)
            progress(f"compacted {done.files_before} files into {done.files_after}")
            return done
        done = compaction.compact(
            spark, table, info, closed_before_us=0, now_ms=now_ms, grace_ms=grace_ms, everything=True
        )
    progress(f"compacted {done.hours} hours: {done.files_before} files into {done.files_after}")
    return done
