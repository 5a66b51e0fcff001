"""Work on all rows of clients that belong together, in one place each: who shares a counter must be judged in one row.

A unit is a set of clients (principal and client id) that share something, like a quota's counter, with each other. In a
table most units lie in one bucket: there is one task per bucket then, which reads the bucket's files with pyarrow and
nothing passes through Spark. A bucket of more rows than a task shall hold, or worth the cores that would be idle, is
worked on by several tasks; each reads its files and keeps the rows of its share of the units. Units that span buckets
are brought together by a shuffle of their rows alone; so are all units of a DataFrame that comes from elsewhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.spark.session_kind import in_tasks, no_rows, parallelism
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables.delta_table import DataFile, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.table_place import TableName, TablePlace
from kbroker.spark.whatif.replay_events import COLUMNS, numbered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Client = tuple[str | None, str | None]  # principal and client id
Shared = Callable[[str | None, str | None], Iterable[Hashable]]
Work = Callable[["pa.Table"], "pa.Table"]
SLOT = "slot"
ROWS_AT_ONCE = 65_536
TASK_ROWS = 2_000_000  # that a task holds at once, if they are not all of one unit: some 200 bytes each
WORTH_A_TASK = 50_000


def work_on_table(
    spark: SparkSession,
    table: TableName,
    shared: Shared,
    work: Work,
    schema: pa.Schema,
    dates: Sequence[str] | None = None,
) -> DataFrame:
    """`work` on the rows of each unit of a request log's table; several units may come in one call.

    Args: `shared`: what a client shares with others; those that have one thing in common are a unit. `work`: gets
        COLUMNS, in no order, and returns rows of `schema`. It runs in the executors, which read the files by
        pyarrow.
    Raises: TableError when the place is no table.
    """
    import pyarrow as pa

    found = Table(table)
    buckets: dict[int, list[DataFile]] = {}
    for one in found.files(dates):
        buckets.setdefault(one.bucket, []).append(one)
    place = found.place
    if not buckets:
        return no_rows(spark, _ddl(schema))
    if place.is_local:
        require_shared(spark, None, [place.file(one.path) for files in buckets.values() for one in files])
    paths = [(bucket, [one.path for one in files]) for bucket, files in sorted(buckets.items())]
    tasks = in_tasks(spark, paths, pa.schema({"bucket": pa.int32(), "files": pa.list_(pa.string())}))
    clients = tasks.mapInArrow(partial(_clients, place), "bucket int, principal string, client_id string").toArrow()
    known = list(zip(*(clients.column(name).to_pylist() for name in ("bucket", "principal", "client_id")), strict=True))
    spread = spread_clients(known, shared)
    shares = _shares(buckets, parallelism(spark))
    parts = [(files, number, shares[bucket]) for bucket, files in paths for number in range(shares[bucket])]
    kinds = {"files": pa.list_(pa.string()), "part": pa.int32(), "of": pa.int32()}
    together = _together((client[1:] for client in known), shared) if len(parts) > len(paths) else {}
    alone = in_tasks(spark, parts, pa.schema(kinds)).mapInArrow(_alone(place, work, spread, together), _ddl(schema))
    if not spread:
        return alone
    rows = tasks.mapInArrow(_spread(place, spread), _row_schema())
    return alone.unionByName(_grouped(rows, work, schema))


def _shares(buckets: Mapping[int, Sequence[DataFile]], slots: int) -> dict[int, int]:
    """By how many tasks each bucket is worked on."""
    found = {}
    for bucket, files in buckets.items():
        rows = sum(one.rows for one in files)
        idle = min(2 * slots // len(buckets), rows // WORTH_A_TASK)
        found[bucket] = max(1, -(-rows // TASK_ROWS), idle)
    return found


def _together(clients: Iterable[Client], shared: Shared) -> dict[Client, int]:
    """The number of its unit for each client that is not alone in one."""
    units = (unit for unit in units_of(clients, shared) if len(unit) > 1)
    return {client: number for number, unit in enumerate(units) for client in unit}


def work_on_rows(rows: DataFrame, shared: Shared, work: Work, schema: pa.Schema) -> DataFrame:
    """The same on any DataFrame with columns of the request log; missing ones are null."""
    from pyspark.sql import functions as F

    fields = {field.name: field.dataType for field in _row_schema().fields if field.name != SLOT}
    has = set(rows.columns)
    full = rows.select(*(F.col(n) if n in has else F.lit(None).cast(t).alias(n) for n, t in fields.items()))
    clients = full.select("principal", "client_id").distinct().collect()
    # as if each had a separate bucket, and then also those that share nothing: all go through the shuffle
    units = units_of(((row.principal, row.client_id) for row in clients), shared)
    slots = {client: number for number, unit in enumerate(units) for client in unit}

    def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield from _with_slots(pa.Table.from_batches([batch]), slots).to_batches()

    return _grouped(full.mapInArrow(place, _row_schema()), work, schema)


def units_of(clients: Iterable[Client], shared: Shared) -> list[list[Client]]:
    """Clients that share something, directly or by way of others; each client in one list."""
    parent: dict[Hashable, Hashable] = {}

    def root(one: Hashable) -> Hashable:
        while parent.setdefault(one, one) != one:
            parent[one] = parent[parent[one]]  # halves the way for the next one
            one = parent[one]
        return one

    everyone = list(dict.fromkeys(clients))
    for client in everyone:
        for thing in shared(*client):
            parent[root(("thing", thing))] = root(("client", client))
    units: dict[Hashable, list[Client]] = {}
    for client in everyone:
        units.setdefault(root(("client", client)), []).append(client)
    return list(units.values())


def spread_clients(places: Iterable[tuple[int, str | None, str | None]], shared: Shared) -> dict[Client, int]:
    """Clients of units that lie in more than one bucket, and the number of their unit."""
    buckets: dict[Client, set[int]] = {}
    for bucket, principal, client_id in places:
        buckets.setdefault((principal, client_id), set()).add(bucket)
    units = units_of(buckets, shared)
    spread = [unit for unit in units if len(set().union(*(buckets[client] for client in unit))) > 1]
    return {client: number for number, unit in enumerate(spread) for client in unit}


# ---------------------------------------------------------------- in the executors


def _clients(place: TablePlace, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for task in batch.to_pylist():
            table = read_columns(place, task["files"], ("principal", "client_id"))
            _, clients = numbered([table.column("principal"), table.column("client_id")])
            yield pa.record_batch(
                {
                    "bucket": pa.array([task["bucket"]] * len(clients), pa.int32()),
                    "principal": pa.array([client[0] for client in clients], pa.string()),
                    "client_id": pa.array([client[1] for client in clients], pa.string()),
                }
            )


def _alone(
    place: TablePlace, work: Work, spread: Mapping[Client, int], together: Mapping[Client, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Work on the rows of one bucket, or on one share of its units."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                mine = partial(_is_mine, spread, together, task["part"], task["of"])
                chosen = partial(_chosen, is_one=mine) if spread or task["of"] > 1 else _all
                yield from work(read_columns(place, task["files"], COLUMNS, chosen)).to_batches(
                    max_chunksize=ROWS_AT_ONCE
                )

    return run


def _is_mine(spread: Mapping[Client, int], together: Mapping[Client, int], part: int, of: int, client: Client) -> bool:
    if client in spread:
        return False
    unit = together.get(client)
    return of == 1 or (zlib.crc32(repr(client).encode()) if unit is None else unit) % of == part


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _spread(
    place: TablePlace, spread: Mapping[Client, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The rows that do not lie in one bucket."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                table = read_columns(place, task["files"], COLUMNS, partial(_chosen, is_one=spread.__contains__))
                yield from _with_slots(table, spread).to_batches(max_chunksize=ROWS_AT_ONCE)

    return run


def _chosen(table: pa.Table, is_one: Callable[[Client], bool]) -> pa.Table:
    """The rows of some clients."""
    import numpy as np
    import pyarrow as pa

    number, names = numbered([_column(table, "principal"), _column(table, "client_id")])
    wanted = np.array([is_one(name) for name in names], bool)
    return table.filter(pa.array(wanted[number])) if len(names) else table


def _column(table: pa.Table, name: str) -> Any:
    import pyarrow as pa

    has = name in table.column_names
    return table.column(name) if has else pa.chunked_array([pa.nulls(table.num_rows, pa.string())])


def _with_slots(table: pa.Table, slots: Mapping[Client, int]) -> pa.Table:
    """COLUMNS as their types are written down, and the number of the row's unit."""
    import numpy as np
    import pyarrow as pa

    from kbroker.spark.tables.log_schema import arrow_schema

    number, names = numbered([table.column("principal"), table.column("client_id")])
    slot = np.array([slots[name] for name in names], np.int32)
    fields = [arrow_schema().field(name) for name in COLUMNS]
    columns = [
        table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
        for f in fields
    ]
    return pa.table(
        [*columns, pa.array(slot[number] if len(names) else [], pa.int32())],
        schema=pa.schema([*fields, pa.field(SLOT, pa.int32())]),
    )


# ---------------------------------------------------------------- in the driver


def _grouped(rows: DataFrame, work: Work, schema: pa.Schema) -> DataFrame:
    """Work on units that were numbered; several of them come at once."""
    from pyspark.sql import functions as F

    groups = 4 * parallelism(rows.sparkSession)
    return rows.groupBy(F.pmod(F.xxhash64(SLOT), F.lit(groups))).applyInArrow(work, _ddl(schema))


def _row_schema() -> Any:
    from pyspark.sql.types import IntegerType, StructField, StructType

    from kbroker.spark.tables.log_schema import spark_schema

    by_name = {field.name: field for field in spark_schema().fields}
    return StructType([*(by_name[name] for name in COLUMNS), StructField(SLOT, IntegerType())])


def _ddl(schema: pa.Schema) -> Any:
    """An Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
