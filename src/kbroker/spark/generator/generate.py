"""Spark jobs that make a request log: as a table, or as the Arrow files that a broker leaves.

A task makes blocks of the log by itself, each from the seed and its number, so the same shape gives the same rows
whatever the number of tasks. Nothing passes through a shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker._core.clock import SystemClock
from kbroker.common import request_log
from kbroker.spark import formatting as jobs
from kbroker.spark.generator.population import Population, Shape, population
from kbroker.spark.generator.rows import block_rows
from kbroker.spark.locations import local_path
from kbroker.spark.session_kind import in_tasks
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableError, TableInfo, bucket_of
from kbroker.spark.tables.file_writer import BUCKET, EPOCH_HOUR, WRITTEN, data_file, write_files
from kbroker.spark.tables.table import summary
from kbroker.spark.tables.table_place import TableName, TablePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_HOURS_AT_ONCE = 24  # of a table, that become one version
_FILES = "path string, rows bigint, size_bytes bigint"
Made = tuple[int, int, int]  # rows, files, bytes


def generate_table(
    spark: SparkSession, table: TableName, shape: Shape, *, progress: jobs.Progress = jobs.silent
) -> Made:
    """Make a table of a request log; each day of it becomes one version.

    Raises: TableError when there is something in the table; PipelineError for a shape that cannot be, or executors that
    do not see its folder.
    """
    shape.check()
    found, clock = Table(table), SystemClock()
    if found.exists() and found.files():
        raise TableError(f"{found} has rows already: name a new table")
    if found.place.is_local:
        require_shared(spark, Path(found.place.uri))
    columns = log_schema.spark_schema().jsonValue()
    found.open(TableInfo(REQUEST_LOG, shape.buckets, request_log.VERSION, columns))
    rows = files = size = 0
    for first in range(0, shape.hours, _HOURS_AT_ONCE):
        started = clock.now_ms()
        some = _hours(shape, first, min(first + _HOURS_AT_ONCE, shape.hours))
        write = partial(_write_table, found.place, shape)
        made = in_tasks(spark, some, _blocks_schema()).mapInArrow(write, WRITTEN).toArrow().to_pylist()
        new = [data_file(row, REQUEST_LOG, clock.wall_ms()) for row in made]
        found.commit(new)
        written, took = summary(new), clock.now_ms() - started
        rows, files = rows + written.rows, files + written.files
        size += sum(one.size_bytes for one in new)
        progress(f"{jobs.count(rows)} of {jobs.count(shape.requests)} requests, {jobs.rate(written.rows, took)}")
    return rows, files, size


def generate_files(
    spark: SparkSession, folder: str | os.PathLike[str], shape: Shape, *, progress: jobs.Progress = jobs.silent
) -> Made:
    """Make a folder of Arrow files, one for each hour, as `kbroker.request.log.dir` gets them.

    Raises: PipelineError for a shape that cannot be, a URI of a store, or executors that do not see the folder.
    """
    shape.check()
    place = local_path(folder)
    place.mkdir(parents=True, exist_ok=True)
    require_shared(spark, place)
    tasks = in_tasks(spark, _hours(shape, 0, shape.hours), _blocks_schema())
    made = tasks.mapInArrow(partial(_write_files, str(place.absolute()), shape), _FILES).toArrow().to_pylist()
    progress(f"{jobs.counted(sum(one['rows'] for one in made), 'request')} in {jobs.counted(len(made), 'file')}")
    return sum(one["rows"] for one in made), len(made), sum(one["size_bytes"] for one in made)


def _hours(shape: Shape, first: int, end: int) -> list[tuple[int, int]]:
    """The first and the last block of each hour that has rows."""
    pieces = shape.pieces
    return [(hour * pieces, (hour + 1) * pieces - 1) for hour in range(first, end)]


def _blocks_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema({"first": pa.int32(), "last": pa.int32()})


# ---------------------------------------------------------------- in the executors


def _write_table(place: TablePlace, shape: Shape, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    people = population(shape)
    for block in _blocks(batches):
        rows = in_table_order(people, block)
        if rows.num_rows:
            yield from write_files(place, REQUEST_LOG, f"{block:08d}", rows.to_batches())


def in_table_order(people: Population, block: int) -> pa.Table:
    """A block's rows as a table's writer wants them: with their places, by bucket, principal, client id and time."""
    import numpy as np
    import pyarrow as pa

    rows, who = block_rows(people, block)
    hour = people.shape.span_us(block)[0] // 3_600_000_000
    is_request = rows["api_key"].is_valid().to_numpy()
    # names sort as their numbers do; verdicts without a request have none, and come first
    entity = np.where(is_request, people.user[who] * people.shape.entities + who, -1)
    bucket = np.where(is_request, people.bucket[who], bucket_of(None, None, people.shape.buckets)).astype(np.int32)
    order = np.lexsort((entity, bucket))
    return (
        rows.take(pa.array(order))
        .append_column(EPOCH_HOUR, pa.array(np.full(len(who), hour, np.int32)))
        .append_column(BUCKET, pa.array(bucket[order]))
        .combine_chunks()
    )


def _write_files(folder: str, shape: Shape, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    people = population(shape)
    schema = log_schema.arrow_schema()
    for batch in batches:
        for task in batch.to_pylist():
            path = f"{folder}/requests-{task['first'] // shape.pieces:06d}.arrows"
            rows = 0
            with pa.OSFile(f"{path}.part", "wb") as file, pa.ipc.new_stream(file, schema) as writer:
                for block in range(task["first"], task["last"] + 1):
                    table, _ = block_rows(people, block)
                    writer.write_table(table, max_chunksize=16_384)
                    rows += table.num_rows
            os.replace(f"{path}.part", path)
            yield pa.RecordBatch.from_pydict({"path": [path], "rows": [rows], "size_bytes": [os.path.getsize(path)]})


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        for task in batch.to_pylist():
            yield from range(task["first"], task["last"] + 1)
