"""Work on all rows of clients that belong together, in one place each: who shares a counter must be judged in one row.

A unit is a set of clients (principal and client id) that share something, like a quota's counter, with each other. In a
table a client has one bucket, so where clients share nothing there is one task per bucket, which reads the bucket's
files with pyarrow hour by hour, and nothing passes through Spark; where cores would be idle there are several, each
of which reads the files and keeps the rows of its share of the clients. Units that span buckets are brought together by
a shuffle: of Arrow tables with the rows of an hour of some units, packed, as Spark needs to know no more than that.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.spark.session_kind import in_tasks, no_rows, parallelism
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables.delta_table import HOUR_US, DataFile, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.table_place import TableName, TablePlace
from kbroker.spark.whatif.quota_set import user_of
from kbroker.spark.whatif.replay_events import COLUMNS, numbered
from kbroker.spark.whatif.time_parts import settled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Client = tuple[str | None, str | None]  # principal and client id
Shared = Callable[[str | None, str | None], Iterable[Hashable]]
#: Rows with COLUMNS, and from when on the rows of the next part were judged; see `settled`.
Part = tuple["pa.Table", int | None]
#: Gets whole units in parts that follow each other in time, and yields tables of results.
Work = Callable[[Iterator[Part]], Iterator["pa.Table"]]
SLOT = "slot"
ROWS_AT_ONCE = 65_536
WORTH_A_TASK = 50_000  # rows
PACKED = "unit int, hour int, rows binary"
#: Names that repeat, read as numbers of a few distinct ones.
NAMES = (
    *("principal", "client_id", "updates.list.element.quota_type", "updates.list.element.user"),
    "updates.list.element.client_id",
)
#: Who shares something with whom: no client with another, clients of a user, of a client id, or other ones.
ALONE, BY_USER, BY_CLIENT_ID, MIXED = "alone", "user", "client-id", "mixed"


@dataclass(frozen=True)
class Sharing:
    """Which clients are a unit. `by`: ALONE, BY_USER, BY_CLIENT_ID, or MIXED: those that have a thing of `shared`."""

    by: str
    shared: Shared


def work_on_table(
    spark: SparkSession,
    table: TableName,
    sharing: Sharing,
    work: Work,
    schema: pa.Schema,
    dates: Sequence[str] | None = None,
) -> DataFrame:
    """`work` on the rows of each unit of a request log's table; several units may come in one call.

    Args: `work`: yields rows of `schema`. It runs in the executors, which read the files by pyarrow; no more of them
    than an hour of a bucket is in memory.
    Raises: TableError when the place is no table.
    """
    found = Table(table)
    files, place = found.files(dates), found.place
    if not files:
        return no_rows(spark, _ddl(schema))
    if place.is_local:
        require_shared(spark, None, [place.file(one.path) for one in files])
    if sharing.by == ALONE:
        return _tasks(spark, files, parallelism(spark)).mapInArrow(_alone(place, work, {}), _ddl(schema))
    tasks = _tasks(spark, files)
    units = 4 * parallelism(spark)
    if sharing.by != MIXED:
        return _shuffled(tasks, place, partial(_unit_by_name, sharing.by, units), units, work, schema)
    clients = tasks.mapInArrow(partial(_clients, place), "bucket int, principal string, client_id string").toArrow()
    spread = spread_clients(
        zip(*(clients.column(name).to_pylist() for name in ("bucket", "principal", "client_id")), strict=True),
        sharing.shared,
    )
    alone = tasks.mapInArrow(_alone(place, work, spread), _ddl(schema))
    if not spread:
        return alone
    return alone.unionByName(_shuffled(tasks, place, partial(_unit_by_slot, spread, units), units, work, schema))


def _tasks(spark: SparkSession, files: Iterable[DataFile], slots: int = 1) -> DataFrame:
    """A row for each bucket, or share of one, with its files by hours. Args: `slots`: tasks that can run at once."""
    import pyarrow as pa

    buckets: dict[int, dict[int, list[str]]] = {}
    rows: dict[int, int] = {}
    for one in files:
        buckets.setdefault(one.bucket, {}).setdefault(one.end_us // HOUR_US, []).append(one.path)
        rows[one.bucket] = rows.get(one.bucket, 0) + one.rows
    tasks, shares = [], _shares(rows, slots)
    for bucket, by_hour in sorted(buckets.items()):
        paths = [by_hour[hour] for hour in sorted(by_hour)]
        tasks += [(bucket, sorted(by_hour), paths, number, shares[bucket]) for number in range(shares[bucket])]
    kinds = {
        "bucket": pa.int32(), "hours": pa.list_(pa.int32()), "files": pa.list_(pa.list_(pa.string())),
        "part": pa.int32(), "of": pa.int32(),
    }  # fmt: skip
    return in_tasks(spark, tasks, pa.schema(kinds))


def _shares(rows: Mapping[int, int], slots: int) -> dict[int, int]:
    """By how many tasks each bucket is worked on, each of which reads all of it. Args: `rows`: by bucket."""
    return {bucket: max(1, min(2 * slots // len(rows), count // WORTH_A_TASK)) for bucket, count in rows.items()}


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

    def grouped(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables([schema.empty_table(), *work(iter([(table, None)]))])

    groups = 4 * parallelism(rows.sparkSession)
    placed = full.mapInArrow(place, _row_schema())
    return placed.groupBy(F.pmod(F.xxhash64(SLOT), F.lit(groups))).applyInArrow(grouped, _ddl(schema))


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


def _unit_by_name(by: str, units: int, client: Client) -> int:
    """The number of a client's unit, or of several, where clients of one name are one."""
    name = user_of(client[0]) if by == BY_USER else client[1] or ""
    return zlib.crc32(name.encode()) % units


def _unit_by_slot(spread: Mapping[Client, int], units: int, client: Client) -> int:
    """The number of a client's unit, or of several, where they were looked for; -1 of one that has one bucket."""
    return spread[client] % units if client in spread else -1


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _hours(
    place: TablePlace, task: dict[str, Any], chosen: Callable[[pa.Table], pa.Table] = _all
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a bucket by hours."""
    for hour, files in zip(task["hours"], task["files"], strict=True):
        yield hour, read_columns(place, files, COLUMNS, chosen, NAMES)


def _clients(place: TablePlace, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for task in batch.to_pylist():
            found: dict[Client, None] = {}
            for files in task["files"]:
                table = read_columns(place, files, ("principal", "client_id"), names=("principal", "client_id"))
                found |= dict.fromkeys(numbered([table.column("principal"), table.column("client_id")])[1])
            yield pa.record_batch(
                {
                    "bucket": pa.array([task["bucket"]] * len(found), pa.int32()),
                    "principal": pa.array([client[0] for client in found], pa.string()),
                    "client_id": pa.array([client[1] for client in found], pa.string()),
                }
            )


def _alone(
    place: TablePlace, work: Work, spread: Mapping[Client, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Work on the rows of one bucket, without those of units that lie in several."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                chosen = _all
                if spread or task["of"] > 1:
                    chosen = partial(_chosen, is_one=partial(_is_mine, spread, task["part"], task["of"]))
                for found in work(settled(table for _, table in _hours(place, task, chosen))):
                    yield from found.to_batches(max_chunksize=ROWS_AT_ONCE)

    return run


def _is_mine(spread: Mapping[Client, int], part: int, of: int, client: Client) -> bool:
    return client not in spread and (of == 1 or zlib.crc32(repr(client).encode()) % of == part)


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


def _packed(
    place: TablePlace, unit_of: Callable[[Client], int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of each hour and unit as PACKED."""
    import numpy as np
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    for batch in batches:
        for task in batch.to_pylist():
            for hour, table in _hours(place, task):
                number, names = numbered([table.column("principal"), table.column("client_id")])
                unit = np.array([unit_of(client) for client in names], np.int32)[number]
                order = np.argsort(unit, kind="stable")
                in_order = table.take(pa.array(order[np.searchsorted(unit[order], 0) :]))
                chosen = unit[order][len(unit) - in_order.num_rows :]
                starts = np.flatnonzero(np.diff(chosen, prepend=-1)).tolist()
                for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
                    for begin in range(start, end, ROWS_AT_ONCE):
                        some = in_order.slice(begin, min(end - begin, ROWS_AT_ONCE)).combine_chunks()
                        sink = pa.BufferOutputStream()
                        with pa.ipc.new_stream(sink, some.schema, options=options) as writer:
                            writer.write_table(some)
                        packed = pa.array([sink.getvalue().to_pybytes()], pa.binary())
                        place_of = [pa.array([one], pa.int32()) for one in (chosen[start], hour)]
                        yield pa.RecordBatch.from_arrays([*place_of, packed], names=["unit", "hour", "rows"])


def _unpacked(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Work on units whose rows come as PACKED, in order."""
    rows = (
        (unit, hour, packed)
        for batch in batches
        for unit, hour, packed in zip(*(batch.column(name) for name in ("unit", "hour", "rows")), strict=True)
    )
    for _, of_unit in itertools.groupby(rows, key=lambda row: row[0].as_py()):
        hours = (_joined(some) for _, some in itertools.groupby(of_unit, key=lambda row: row[1].as_py()))
        for found in work(settled(hours)):
            yield from found.to_batches(max_chunksize=ROWS_AT_ONCE)


def _joined(rows: Iterable[tuple[Any, Any, Any]]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(
        [pa.ipc.open_stream(packed.as_buffer()).read_all() for *_, packed in rows], promote_options="permissive"
    )


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


def _shuffled(
    tasks: DataFrame, place: TablePlace, unit_of: Callable[[Client], int], units: int, work: Work, schema: pa.Schema
) -> DataFrame:
    """Work on units that lie in several buckets."""
    packed = tasks.mapInArrow(partial(_packed, place, unit_of), PACKED)
    in_order = packed.repartitionById(units, "unit").sortWithinPartitions("unit", "hour")
    return in_order.mapInArrow(partial(_unpacked, work), _ddl(schema))


def _row_schema() -> Any:
    from pyspark.sql.types import IntegerType, StructField, StructType

    from kbroker.spark.tables.log_schema import spark_schema

    by_name = {field.name: field for field in spark_schema().fields}
    return StructType([*(by_name[name] for name in COLUMNS), StructField(SLOT, IntegerType())])


def _ddl(schema: pa.Schema) -> Any:
    """An Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
