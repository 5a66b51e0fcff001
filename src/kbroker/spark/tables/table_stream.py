"""A Spark stream into a table, exactly once across kills and restarts: the base of `ingest`, `archive` and `watch`.

Executors write the files of a micro-batch, and the driver commits their names together with the stream's id and the
batch's number; only then does Spark commit the batch. A batch that is repeated after a crash finds its number in the
table and is left out, so no crash adds or loses a row. The state of the stream is the table's log and its checkpoint,
which contains more than offsets only for `watch`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark import formatting as jobs
from kbroker.spark.errors import LOST_PART, NO_WORKER, PipelineError
from kbroker.spark.failures import cause, lacking, with_workers
from kbroker.spark.micro_batches import MicroBatches
from kbroker.spark.session_kind import changed_setting
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables import compaction
from kbroker.spark.tables.checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    VERIFIES_EMPTY,
    last_batch,
    place_of_checkpoint,
    require_checkpoint,
    stream_id,
    verifies_empty,
)
from kbroker.spark.tables.compaction import HOUR_MS, RETENTION_MS
from kbroker.spark.tables.delta_table import (
    DEFAULT_BUCKETS,
    REJECTED,
    TIME,
    DataFile,
    Stream,
    Table,
    TableError,
    TableInfo,
)
from kbroker.spark.tables.file_writer import REJECTED_FILE, write_rejected
from kbroker.spark.tables.log_reader import REASON, good, rejected
from kbroker.spark.tables.table import SPLIT_ROWS, summary, write_rows
from kbroker.spark.tables.table_layout import Compacted, PhaseCallback, Written
from kbroker.spark.tables.table_place import TableName, TablePlace

MINUTE_MS = 60_000
STOP_POLL_S = 1
FIRST_US, END_US = -62_135_596_800_000_000, 253_402_300_800_000_000  # begin and end of the years 1 to 9999
STARTS = 5  # maximum number of restarts without a batch in between; each lasts 10 s if no Python worker starts
#: Failures after which the stream starts again from its checkpoint.
PASSING = {
    NO_WORKER: "a Python worker of Spark did not start in time",
    LOST_PART: "an executor of Spark has ended, and with it a part of this batch",
}

#: Advice of the source to its users, and the same for the user of a job.
ADVICE = {
    "set failOnDataLoss=false": "give --option failOnDataLoss=false",
    "give the query a new checkpointLocation": "begin a new table",
}

#: Parses a micro-batch into the table's columns and REASON, RAW, SOURCE, POSITION.
Parse = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of a stream into a table; times in milliseconds.

    `follow`: continue until stopped, else end when all existing records are read. `interval_ms`: between batches.
    `max_per_batch`: records of a topic, bytes of files. `watermark_ms`: an hour is closed when the latest row is
    later than its end by this time. `retention_ms`, `rejected_keep_ms`: time for which replaced files with earlier
    versions, and rejected lines, stay. `split_rows`: minimum number of rows for each of several tasks that write one
    bucket. `checkpoint`: a folder or a URI, by default inside the table, if that is on a disk or in HDFS.
    `short_retention`: permits a `retention_ms` below SHORTEST_RETENTION_MS.
    """

    buckets: int = DEFAULT_BUCKETS
    follow: bool = False
    interval_ms: int = 10_000
    max_per_batch: int | None = None
    watermark_ms: int = 10 * MINUTE_MS
    retention_ms: int = RETENTION_MS
    short_retention: bool = False
    rejected_keep_ms: int = 7 * 24 * HOUR_MS
    split_rows: int = SPLIT_ROWS
    checkpoint: str | os.PathLike[str] | None = None


@dataclass
class Ingested:
    """The result of one run."""

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
        table: TableName,
        options: StreamOptions,
        wanted: TableInfo,
        reads: Stream,
        clock: BaseClock,
        progress: jobs.Progress,
        at: PhaseCallback | None,
    ) -> None:
        compaction.require_retention(options.retention_ms, short=options.short_retention)
        self.spark, self.table, self.options = spark, Table(table), options
        self.wanted, self.reads = replace(wanted, buckets=options.buckets), reads
        self.clock, self.progress = clock, progress
        self.done = Ingested()
        self._at: PhaseCallback = at or (lambda phase: None)
        self._hot: dict[int, int] = {}
        self._max_time_us: int | None = None
        self._info = self.wanted
        self._stream: str | None = None  # Spark's id of the stream, once it has begun
        self._vacuumed_ms: int | None = None
        self._writing = threading.Lock()  # held for a whole batch, so that a stop interrupts none
        self._stopped = False  # guarded by _writing
        self._starts_left = STARTS

    @property
    def checkpoint(self) -> TablePlace:
        """The place of the offsets. Raises: TableError if it must be named and is not."""
        return place_of_checkpoint(self.options.checkpoint, self.table.place)

    def run(
        self, load: Callable[[], DataFrame], parse: Parse, stopping: Callable[[], bool], files: Sequence[str] = ()
    ) -> Ingested:
        """Stream until the end or until `stopping`, compact, and delete replaced files; return what was done.

        Args: `files`: some of those that are read.
        """
        started = self.clock.now_ms()
        checkpoint = self.checkpoint
        require_checkpoint(self.spark, checkpoint)
        require_shared(self.spark, Path(self.table.place.uri) if self.table.place.is_local else None, files)
        stream = with_workers(load)
        self._open()
        batches = MicroBatches(self.spark, lambda batch, number: self._take_turn(batch, number, parse))
        verifies = changed_setting(self.spark, VERIFIES_EMPTY, verifies_empty(checkpoint))  # Spark reads it later
        with verifies, closing(batches):
            query = with_workers(lambda: self._start(stream, checkpoint, batches))  # Spark Connect plans it only now
            try:
                while self._await(query, stopping):
                    query = with_workers(lambda: self._start(load(), checkpoint, batches))
            finally:
                with self._writing:
                    self._stopped = True
                query.stop()
        self._compact()
        self._vacuum(everything=True)
        self.done.elapsed_ms = self.clock.now_ms() - started
        return self.done

    def _open(self) -> None:
        """Check that the table fits, and that no other stream writes the same records to it."""
        self._stream = stream_id(self.checkpoint)
        known = self.table.streams() if self.table.exists() else {}
        mine = known.get(self._stream or "")
        if mine is not None and str(mine) != str(self.reads):
            raise TableError(f"{self.table} is filled from {mine}, not from {self.reads}")
        left_out = None if mine is None else self.reads.leaves_out(mine)
        if left_out is not None:
            raise TableError(
                f"{self.table} is filled from {left_out} with the checkpoint {self.checkpoint}, which would forget how "
                "far that was read: name it too, or give the other log another --checkpoint"
            )
        for name, other in known.items():
            if name != self._stream and other.overlaps(self.reads):
                raise TableError(
                    f"{self.table} was filled from {other} with another checkpoint than {self.checkpoint}; without it "
                    "records would be lost or duplicated"
                )
        if self._stream is not None:
            self._require_same_batches(self._stream, is_known=mine is not None)
        self._info = self.table.open(self.wanted)
        times = [one.max_time_us for one in self.table.files() if one.max_time_us is not None]
        self._max_time_us = max(times, default=None)
        now_ms = self.clock.wall_ms()
        for file, written_s in self.table.place.listed(REJECTED):
            if now_ms - written_s * 1000 > self.options.rejected_keep_ms:
                self.table.place.delete(file)

    def _require_same_batches(self, stream: str, *, is_known: bool) -> None:
        """Check that a checkpoint and the table continue from the same batch: only its number identifies a batch.

        Raises: TableError for the checkpoint of a stream into another table, or one that is older than the table.
        """
        checkpoint = self.checkpoint
        if not is_known:
            if last_batch(checkpoint, COMMITS) >= 0:
                raise TableError(
                    f"{checkpoint} is the checkpoint of a stream into another table than {self.table}, or this one was "
                    "deleted since: what was read before would be missing in it. Name a new --checkpoint"
                )
            return
        planned, written = last_batch(checkpoint, OFFSETS), self.table.committed(stream)
        if planned < written:
            has = f"ends with batch {planned}" if planned >= 0 else "has no batch"
            raise TableError(
                f"{checkpoint} {has} and {self.table} has batch {written} of its stream: the checkpoint was deleted in "
                "part, or is an older copy, and new records would be taken for those of old batches. Restore the "
                "newest one, or read the log again into a new table"
            )

    def _take_turn(self, batch: DataFrame, number: int, parse: Parse) -> None:
        with self._writing:
            if self._stopped:
                raise PipelineError("the stream was stopped before this batch")
            self.write(batch, number, parse)
            self._starts_left = STARTS

    def _start(self, stream: DataFrame, checkpoint: TablePlace, batches: MicroBatches) -> StreamingQuery:
        writer = stream.writeStream.option("checkpointLocation", checkpoint.spark_uri)
        if self.options.follow:
            writer = writer.trigger(processingTime=f"{self.options.interval_ms} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        query: StreamingQuery = batches.start(writer)
        return query

    def _await(self, query: StreamingQuery, stopping: Callable[[], bool]) -> bool:
        """Wait for the end; return whether to start again from the checkpoint."""
        try:
            while not query.awaitTermination(STOP_POLL_S):
                self.look(query)
                if stopping():
                    break
            self.look(query)
            return False
        except StreamingQueryException as error:
            passing = next((said for text, said in PASSING.items() if text in str(error)), None)
            if passing is not None and self._starts_left > 0:
                self._starts_left -= 1
                self.progress(f"{passing}; trying again")
                return True
            reason = lacking(str(error)) or cause(str(error))
            for advice, ours in ADVICE.items():
                reason = reason.replace(advice, ours)
            raise PipelineError(f"the stream ended: {reason}") from error

    def look(self, query: StreamingQuery) -> None:
        """Hook for progress, called regularly while the stream runs, on the thread of `run`, and once at its end."""

    def write(self, batch: DataFrame, number: int, parse: Parse) -> None:
        """Write one micro-batch: rows into the table, the rest into `_rejected`; then compact the due buckets."""
        started = self.clock.now_ms()
        app = self._known()
        self.table.refresh()
        if number <= self.table.committed(app):
            self.progress(f"batch {number}: is already in the table")
            self._at("done")
            return
        parsed = in_time(parse(batch), self._info.kind)
        files, refused = self._write_files(parsed, f"{number:08d}")
        self._at("written")
        if refused:
            self._keep_rejected(rejected(parsed), f"batch-{number:08d}-{app[:8]}")
        self._at("rejected")
        self._keep_offsets(number)
        committed = not files or self.table.commit(files, (app, number))
        self._at("committed")
        written = summary(files if committed else [])
        self._hot = dict(written.rows_by_bucket)
        self._max_time_us = max(filter(None, [self._max_time_us, written.max_time_us]), default=None)
        self.done.batches += 1
        self.done.rows += written.rows
        self.done.rejected += refused
        self.done.files += written.files
        took = self.clock.now_ms() - started
        self.say_written(number, written, refused, took)
        self._compact()
        self._vacuum(everything=False)
        self._at("done")

    def say_written(self, number: int, written: Written, refused: int, took: int) -> None:
        """Report the files of a batch, written in `took` milliseconds."""
        self.progress(
            f"batch {number}: {jobs.counted(written.rows, 'row')} into {jobs.counted(written.files, 'file')} of "
            + jobs.counted(len(written.hours), "hour")
            + (f", {jobs.count(refused)} rejected" if refused else "")
            + f", {jobs.duration(took)}, {jobs.rate(written.rows, took)}"
        )

    def _known(self) -> str:
        """Return the id of this stream, which is added to the table if new. Raises: PipelineError if it has none."""
        if self._stream is None or self.done.batches == 0:
            self._stream = stream_id(self.checkpoint)
            if self._stream is None:
                raise PipelineError(f"Spark has left no id in the checkpoint {self.checkpoint}")
            known = self.table.streams().get(self._stream)
            if known is None or known.paths != self.reads.paths:
                self.table.add_stream(self._stream, self.reads)
        return self._stream

    def _keep_offsets(self, number: int) -> None:
        """Flush Spark's plan of a batch to the disk, which Spark does not do, before the batch is in the table.

        Otherwise a power cut could lose the plan and keep the batch, and other records would get its number.
        """
        checkpoint = self.checkpoint
        if checkpoint.is_local:
            checkpoint.sync(METADATA)
            checkpoint.sync(f"{OFFSETS}/{number}")

    def _write_files(self, parsed: DataFrame, name: str) -> tuple[list[DataFile], int]:
        """Write files that are not yet part of the table; return them and the number of rejected lines.

        Raises: PipelineError when the number of rows in the files differs from that of the read ones.
        """
        is_bad = F.col(REASON).isNotNull()
        counts = (F.count(F.lit(1)).alias("all"), F.count(F.when(is_bad, F.lit(1))).alias("rejected"))
        counted = Observation()
        files = write_rows(
            good(parsed.observe(counted, *counts)), self.table.place, self._info, name,
            hot=self._hot, split_rows=self.options.split_rows, now_ms=self.clock.wall_ms(),
        )  # fmt: skip
        rows = sum(one.rows for one in files)
        # Spark does not observe an empty batch, nor one that its adaptive plan has found to have no rows to write.
        seen = counted.get if files else {"all": -1, "rejected": 0}
        if rows + seen["rejected"] != seen["all"]:
            # the observations of a task that Spark ran twice are counted twice
            seen = parsed.agg(*counts).collect()[0].asDict()
        if rows + seen["rejected"] != seen["all"]:
            raise PipelineError(
                f"of {seen['all']:,} records {seen['rejected']:,} were rejected and {rows:,} written: the batch was "
                "not committed"
            )
        return files, int(seen["rejected"])

    def _keep_rejected(self, others: DataFrame, name: str) -> None:
        lines = others.select(F.to_json(F.struct(*others.columns)).alias("line")).coalesce(1)
        found = lines.mapInArrow(partial(write_rejected, self.table.place, name), REJECTED_FILE).collect()
        self.table.require((row["path"], row["size_bytes"]) for row in found)

    @property
    def watermark_us(self) -> int:
        """Hours that end by this time are closed; a row ahead of the clock closes no more than one of now would."""
        if self._max_time_us is None:
            return 0
        youngest = min(self._max_time_us, self.clock.wall_ms() * 1000)
        return youngest - self.options.watermark_ms * 1000

    def _compact(self) -> None:
        done = compaction.compact(self.table, self.watermark_us, SystemClock().wall_ms())
        self.done.compacted += done
        if done.hours:
            self.progress(done.line())
            self._at("compacted")

    def _vacuum(self, *, everything: bool) -> None:
        now_ms = self.clock.now_ms()
        if everything or self._vacuumed_ms is None or now_ms - self._vacuumed_ms > HOUR_MS:
            self._vacuumed_ms = now_ms
            deleted = compaction.vacuum(self.table, self.options.retention_ms, everything=everything)
            self.done.compacted += Compacted(deleted=deleted)


def in_time(parsed: DataFrame, kind: str) -> DataFrame:
    """Reject records that belong to no hour: without a time, or with one outside the calendar."""
    micros = F.unix_micros(TIME[kind])
    wrong = F.when(micros.isNull(), F.lit("no time")).when(
        (micros < FIRST_US) | (micros >= END_US), F.lit("a time outside of the years 1 to 9999")
    )
    return parsed.withColumn(REASON, F.coalesce(REASON, wrong))
