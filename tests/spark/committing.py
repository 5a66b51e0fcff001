"""Program for the tests: the commits of a stream's batches to a table without Spark, and compactions of the table.

    python -m tests.spark.committing TABLE write APP BATCHES [wait]
    python -m tests.spark.committing TABLE compact TIMES [wait]

With `wait` it starts after a line of input, so that several processes start at the same time.
"""

import sys
from collections.abc import Mapping

import pyarrow as pa

from kbroker._core.clock import SystemClock
from kbroker.common.request_log import VERSION
from kbroker.spark.tables.compaction import compact
from kbroker.spark.tables.delta_table import HOUR_US, REQUEST_LOG, Table, TableInfo, bucket_of
from kbroker.spark.tables.file_writer import BUCKET, EPOCH_HOUR, data_file, write_files
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.day import Day, make_day

ROWS = 1_000
BUCKETS = 2


def day_of_batches() -> Day:
    """Return the day whose first rows are the rows of a batch."""
    return make_day(ROWS)


def two_hours() -> pa.Table:
    """Return the rows of each batch, those of the day's first two hours, which take few files."""
    import pyarrow.compute as pc

    rows = day_of_batches().rows
    return rows.filter(pc.less(pc.hour(rows["time"]), 2))


def placed(rows: pa.Table) -> pa.RecordBatch:
    """Return rows as executors get them: sorted by hour and bucket, with a column for each."""
    hours = [int(time) // HOUR_US for time in rows["time"].cast(pa.int64()).to_pylist()]
    names = zip(rows["principal"].to_pylist(), rows["client_id"].to_pylist(), strict=True)
    buckets = [bucket_of(principal, client_id, BUCKETS) for principal, client_id in names]
    found = rows.append_column(EPOCH_HOUR, pa.array(hours, pa.int32())).append_column(
        BUCKET, pa.array(buckets, pa.int32())
    )
    (batch,) = found.sort_by([(EPOCH_HOUR, "ascending"), (BUCKET, "ascending")]).combine_chunks().to_batches()
    return batch


def write(table: Table, app: str, number: int, rows: pa.RecordBatch) -> bool:
    """Write a batch of a stream, and return whether this call committed it."""
    found = write_files(table.place, REQUEST_LOG, f"{number:08d}", [rows])
    files = [data_file(row, REQUEST_LOG, 0) for batch in found for row in batch.to_pylist()]
    return table.commit(files, (app, number))


def main(table: str, what: str, *words: str, options: Mapping[str, str] | None = None) -> None:
    found = Table(TablePlace.of(table, options))
    rows = placed(two_hours())
    found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    if words[-1] == "wait":
        print("ready", flush=True)
        sys.stdin.readline()
    if what == "compact":
        for _ in range(int(words[0])):
            done = compact(found, 0, SystemClock().wall_ms(), everything=True)
            print("rewrote", done.files_before, flush=True)
        return
    app, batches = words[:2]
    for number in range(int(batches)):
        print("committed" if write(found, app, number, rows) else "left out", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
