"""Batch reading: offsets are looked up once, when the query is planned, and tasks read these ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kbroker.common.topic_names import TopicPartition
from kbroker.spark.datasource.cluster_cache import cluster_for
from kbroker.spark.datasource.error_messages import offsets_held, plain_items, plainly
from kbroker.spark.datasource.offset_lookup import Lookup
from kbroker.spark.datasource.options import KEEP_ON, ReadOptions
from kbroker.spark.datasource.planning import OffsetRange, split
from kbroker.spark.datasource.range_reader import RangeReader
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.worker_memory import freeze_modules

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def read_partition(partition: InputPartition, options: ReadOptions, columns: Sequence[str]) -> Iterator[RecordBatch]:
    """Return the Arrow batches of one task's range, in a worker of an executor."""
    wanted: OffsetRange | None = partition.value
    if wanted is None:  # the partition that Spark adds when none was planned
        return iter(())

    def batches() -> Iterator[Any]:
        cluster = cluster_for(options.client)
        freeze_modules()
        yield from RangeReader(cluster, wanted, columns, options.fetch, options.fail_on_data_loss)

    return plain_items(batches())


class KbrokerReader(DataSourceReader):
    """Reader of a batch query.

    Threads: one at a time; pickled to the workers, it holds no connection.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Look up the offsets, and return their ranges."""
        with self.options.client.connect() as cluster:
            ranges = plan(Lookup(cluster, self.options), self.options)
        freeze_modules()
        return [InputPartition(one) for one in split(ranges, self.options.min_partitions, self.options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Return the Arrow batches of one range."""
        return read_partition(partition, self.options, self.columns)


def plan(lookup: Lookup, options: ReadOptions) -> list[OffsetRange]:
    """Return one range per partition.

    Raises: PipelineError for topics that do not exist, or offsets outside the logs.
    """
    partitions = lookup.partitions()
    missing = lookup.missing()
    if missing:
        raise PipelineError(f"topic {missing[0]!r} does not exist" + (f" (nor {missing[1:]})" if missing[1:] else ""))
    if not partitions:
        raise PipelineError(f"subscribePattern {options.topics.pattern!r} fits no topic")
    begins = lookup.resolve(options.start, partitions)
    ends = lookup.resolve(options.end, partitions)
    if options.start.offsets or options.end.offsets:
        begins, ends = _inside(lookup, options, begins, ends)
    ids = lookup.topic_ids()
    return [OffsetRange(*tp, begins[tp], max(begins[tp], ends[tp]), ids.get(tp[0])) for tp in partitions]


def _inside(
    lookup: Lookup, options: ReadOptions, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Check that named offsets are in order and, unless loss is allowed, exist; return the offsets within the logs."""
    earliest, latest = lookup.earliest(begins), lookup.latest(begins)
    for tp in begins:
        name = f"partition {tp[0]}-{tp[1]}"
        if begins[tp] > ends[tp] and options.start.offsets and options.end.offsets:
            raise PipelineError(f"{name}: startingOffsets {begins[tp]} is above endingOffsets {ends[tp]}")
        if options.fail_on_data_loss and not earliest[tp] <= begins[tp] <= max(latest[tp], earliest[tp]):
            raise PipelineError(
                f"{name} has {offsets_held(earliest[tp], latest[tp])}, it cannot be read from {begins[tp]} on; "
                f"{KEEP_ON}"
            )
        if options.fail_on_data_loss and ends[tp] > latest[tp]:
            raise PipelineError(f"{name} ends at {latest[tp]}, it cannot be read up to {ends[tp]}; {KEEP_ON}")
    begins = {tp: min(max(begin, earliest[tp]), latest[tp]) for tp, begin in begins.items()}
    return begins, {tp: min(end, latest[tp]) for tp, end in ends.items()}
