"""Streaming reads: Spark's interface over `StreamProgress`.

Spark runs the planning side in a separate process for each query, with one connection to each leader.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kbroker.spark.datasource.error_messages import SourceError, plainly
from kbroker.spark.datasource.offset_lookup import Lookup
from kbroker.spark.datasource.offsets import INITIAL_OFFSET, SourceOffset, is_initial
from kbroker.spark.datasource.options import ReadOptions
from kbroker.spark.datasource.planning import split
from kbroker.spark.datasource.reader import read_partition
from kbroker.spark.datasource.stream_progress import StreamProgress

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class KbrokerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query.

    The initial offset is a mark, because Spark calls `initialOffset` more than once and does not store its result. The
    start of the first batch is part of its end offset, which Spark writes into the checkpoint before it runs the batch.

    Threads: one at a time; pickled to the workers, which only read.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}  # the connection is not pickled

    @functools.cached_property
    def progress(self) -> StreamProgress:
        """The progress of the stream; the first use opens its cluster."""
        return StreamProgress(Lookup(self.options.client.connect(), self.options), self.options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the mark of a query that has no batch yet."""
        return INITIAL_OFFSET

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`, unless its trigger is once."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current end offsets."""
        self.progress.stop_at_now()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; exactly `start` when there is nothing new."""
        last = None if is_initial(start) else SourceOffset.from_json(start)
        end = self.progress.next_end(last, all_there_is=isinstance(limit, ReadAllAvailable))
        return start if end is last else end.to_json()

    @plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets of the last look-up, for the query's progress; None before the first."""
        found = self.progress.lookup.last_ends()
        return None if found is None else SourceOffset(found.offsets, found.topic_ids).to_json()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets; the end of the first batch also has its start."""
        until = SourceOffset.from_json(end)
        if not is_initial(start):
            begin = SourceOffset.from_json(start)
        else:
            begin = until.start if until.start is not None else self.progress.begin()
        ranges = self.progress.ranges(begin, until)
        return [InputPartition(one) for one in split(ranges, self.options.min_partitions, self.options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Return the Arrow batches of one range."""
        return read_partition(partition, self.options, self.columns)

    def stop(self) -> None:
        """Close the cluster. Spark does not always call it."""
        opened = self.__dict__.pop("progress", None)
        if opened is not None:
            opened.lookup.cluster.close()


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a query with wrong options: each of its calls raises the error.

    If a source raises instead of returning a reader, Spark 4.2 fails in the handling and shows its own error last.
    """

    def __init__(self, failure: SourceError) -> None:
        self.failure = failure

    def _refuse(self, *args: Any, **named: Any) -> Any:
        """Fail each call with the error of the stream. Raises: SourceError."""
        raise self.failure

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = latestOffset = partitions = read = _refuse
