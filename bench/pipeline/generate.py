"""Generate a request log of any size, as a table or as the Arrow files that a broker writes.

    python bench/pipeline/generate.py sample --requests 2e6 --entities 5000 --days 2
    python bench/pipeline/generate.py logs --as arrow --requests 2e6      # input for `kbroker pipeline ingest`

Clients produce, fetch and administer in bursts, with a higher rate by day than by night. The first entity sends
--hot-share of all requests, the others by Zipf's law (--skew). The share --breaching of the entities exceeds its
quotas: their requests have verdicts, delays and refusals in the form of real ones. Each value of a counter is logged,
but not judged by a sensor: `kbroker pipeline replay --check` reports no missing values, and different verdicts.

Each block of the log follows from the seed and the block's number, so that the same options generate the same rows with
any number of processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.population import Population, Shape, population
from bench.pipeline.rows import block_rows
from kbroker.common import request_log
from kbroker.common.units import counted, rounded_bytes
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableError, TableInfo, bucket_of
from kbroker.spark.tables.file_writer import BUCKET, EPOCH_HOUR, data_file, write_files
from kbroker.spark.tables.table_place import TableName, TablePlace

HOURS_PER_VERSION = 24
Made = tuple[int, int, int]  # rows, files, bytes
Hour = range  # numbers of its blocks


def generate_table(table: TableName, shape: Shape, *, processes: int = 1) -> Made:
    """Generate a table of a request log; each day of the log becomes one version.

    Raises: TableError if the table has rows; PipelineError for an impossible shape.
    """
    shape.check()
    found = Table(table)
    if found.exists() and found.files():
        raise TableError(f"{found} has rows: name a new table")
    columns = log_schema.spark_schema().jsonValue()
    found.open(TableInfo(REQUEST_LOG, shape.buckets, request_log.VERSION, columns))
    now_ms = int(datetime.now(timezone.utc).timestamp() * 1000)
    rows = files = size = 0
    written = _for_each_hour(partial(_write_table, found.place, shape), shape, processes)
    for day in _chunks(written, HOURS_PER_VERSION):
        new = [data_file(row, REQUEST_LOG, now_ms) for hour in day for row in hour]
        found.commit(new)
        rows, files = rows + sum(one.rows for one in new), files + len(new)
        size += sum(one.size_bytes for one in new)
    return rows, files, size


def generate_files(folder: Path, shape: Shape, *, processes: int = 1) -> Made:
    """Generate a folder of Arrow files, one per hour, as a broker writes them to `kbroker.request.log.dir`.

    Raises: PipelineError for an impossible shape.
    """
    shape.check()
    folder.mkdir(parents=True, exist_ok=True)
    made = list(_for_each_hour(partial(_write_file, folder, shape), shape, processes))
    return sum(rows for rows, _ in made), len(made), sum(size for _, size in made)


def _for_each_hour(write: Callable[[Hour], Any], shape: Shape, processes: int) -> Iterator[Any]:
    """Yield the result of each hour, in order."""
    hours = [Hour(hour * shape.pieces, (hour + 1) * shape.pieces) for hour in range(shape.hours)]
    with ExitStack() as stack:
        if processes > 1:
            # no fork, because numpy and Arrow have threads
            context = multiprocessing.get_context("spawn")
            yield from stack.enter_context(ProcessPoolExecutor(processes, context)).map(write, hours)
        else:
            yield from map(write, hours)


def _chunks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _write_table(place: TablePlace, shape: Shape, hour: Hour) -> list[dict[str, Any]]:
    """Write the files of an hour. Returns: a row of `file_writer.WRITTEN` for each."""
    people, written = population(shape), []
    for block in hour:
        rows = in_table_order(people, block)
        for batch in write_files(place, REQUEST_LOG, f"{block:08d}", rows.to_batches()):
            written += batch.to_pylist()
    return written


def in_table_order(people: Population, block: int) -> pa.Table:
    """Return a block's rows with their hours and buckets, sorted by bucket, principal, client id and time."""
    rows, who = block_rows(people, block)
    hour = people.shape.span_us(block)[0] // 3_600_000_000
    is_request = rows["api_key"].is_valid().to_numpy()
    # names sort like their numbers; verdicts without a request have no name, and come first
    entity = np.where(is_request, people.user[who] * people.shape.entities + who, -1)
    bucket = np.where(is_request, people.bucket[who], bucket_of(None, None, people.shape.buckets)).astype(np.int32)
    order = np.lexsort((entity, bucket))
    return (
        rows.take(pa.array(order))
        .append_column(EPOCH_HOUR, pa.array(np.full(len(who), hour, np.int32)))
        .append_column(BUCKET, pa.array(bucket[order]))
        .combine_chunks()
    )


def _write_file(folder: Path, shape: Shape, hour: Hour) -> tuple[int, int]:
    """Write the Arrow file of an hour. Returns: its rows and bytes."""
    people, rows = population(shape), 0
    path = folder / f"requests-{hour.start // shape.pieces:06d}.arrows"
    part = f"{path}.part"
    with pa.OSFile(part, "wb") as file, pa.ipc.new_stream(file, log_schema.arrow_schema()) as writer:
        for block in hour:
            table, _ = block_rows(people, block)
            writer.write_table(table, max_chunksize=16_384)
            rows += table.num_rows
    os.replace(part, path)
    return rows, path.stat().st_size


def _count(text: str) -> int:
    number = float(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"expected a whole number such as 20e6, got {text!r}")
    return int(number)


def _day_us(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


def main(words: Sequence[str] | None = None) -> int:
    """Run the program. Returns: its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", metavar="TABLE|DIR", help="a table's folder or URI; with --as arrow a folder")
    parser.add_argument("--as", dest="form", choices=["table", "arrow"], default="table")
    parser.add_argument("--requests", type=_count, default=1_000_000, help="number of records, such as 20e6")
    parser.add_argument("--entities", type=_count, default=1_000, help="number of pairs of user and client id")
    parser.add_argument("--days", type=float, default=1.0, help="length of the log")
    parser.add_argument("--start", type=_day_us, default="2026-01-01", metavar="YYYY-MM-DD", help="first day")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same rows")
    parser.add_argument(
        "--hot-share", type=float, default=0.3, help="share of the requests that the first entity sends"
    )
    parser.add_argument("--skew", type=float, default=1.1, help="Zipf's exponent of the other entities")
    parser.add_argument("--breaching", type=float, default=0.1, help="share of the entities that exceed a quota")
    parser.add_argument("--buckets", type=_count, default=8, help="number of buckets of the table")
    parser.add_argument("--processes", type=_count, default=os.cpu_count() or 1)
    given = parser.parse_args(words)
    shape = Shape(
        given.requests, given.entities, given.seed, given.days, given.hot_share, given.skew, given.breaching,
        given.start, given.buckets,
    )  # fmt: skip
    try:
        if given.form == "table":
            rows, files, size = generate_table(given.place, shape, processes=given.processes)
        else:
            rows, files, size = generate_files(Path(given.place), shape, processes=given.processes)
    except PipelineError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(f"{counted(rows, 'request')} in {counted(files, 'file')} of {given.place} ({rounded_bytes(size)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
