"""Work on the rows of a request log by units: sets of clients that share something, such as a counter, with each other.

A client is a principal and a client id. All rows of a unit are handled in one place, in the order of time. In a table
the rows of a client are in one bucket. Where clients share nothing, one task per bucket reads the bucket's files by
pyarrow, hour by hour, and nothing passes through Spark; where cores would be idle there are several tasks, each of
which reads the files and keeps the rows of its share of the clients. Units that span buckets are brought together by a
shuffle of Arrow tables, packed as binary: Spark needs only their unit and hour.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from kbroker.spark.session_kind import in_tasks, no_rows, parallelism
from kbroker.spark.shared_folder import require_shared
from kbroker.spark.tables.delta_table import HOUR_US, DataFile, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.log_schema import arrow_schema, spark_schema
from kbroker.spark.tables.table_place import TableName, TablePlace
from kbroker.spark.whatif.quota_set import user_of
from kbroker.spark.whatif.read import COLUMNS, Client, Part, clients_of, settled

#: Returns the things that a client shares with others.
Shared = Callable[[str | None, str | None], Iterable[Hashable]]
#: Takes whole units in parts that follow each other in time, and yields tables of results.
Work = Callable[[Iterator[Part]], Iterator[pa.Table]]
ROWS_AT_ONCE = 65_536
ROWS_PER_TASK = 50_000  # minimum
PACKED = "unit int, hour int, rows binary"
#: Columns with few distinct values, read as dictionaries.
NAMES = (
    *("principal", "client_id", "updates.list.element.quota_type", "updates.list.element.user"),
    "updates.list.element.client_id",
)
#: Ways of sharing: no client with another, the clients of a user, of a client id, or any.
ALONE, BY_USER, BY_CLIENT_ID, MIXED = "alone", "user", "client-id", "mixed"


@dataclass(frozen=True)
class Sharing:
    """Definition of units. `by`: ALONE, BY_USER, BY_CLIENT_ID, or MIXED: clients with a thing of `shared` in common."""

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
    """Work on the rows of each unit of a request log's table; several units may come in one call.

    Args: `work`: yields rows of `schema`. It runs in the executors, which hold at most an hour of a bucket in memory.
    Raises: TableError when the place is not a table.
    """
    found = Table(table)
    files, place = found.files(dates), found.place
    if not files:
        return no_rows(spark, from_arrow_schema(schema))
    if place.is_local:
        require_shared(spark, None, [place.file(one.path) for one in files])
    if sharing.by == ALONE:
        return _tasks(spark, files, parallelism(spark)).mapInArrow(_alone(place, work, {}), from_arrow_schema(schema))
    tasks = _tasks(spark, files)
    units = 4 * parallelism(spark)

    def shuffled(unit_of: Callable[[Client], int]) -> DataFrame:
        return _shuffled(tasks.mapInArrow(partial(_packed_tasks, place, unit_of), PACKED), units, work, schema)

    if sharing.by != MIXED:
        return shuffled(partial(_unit_by_name, sharing.by, units))
    clients = tasks.mapInArrow(partial(_clients, place), "bucket int, principal string, client_id string").toArrow()
    spread = spread_clients(
        zip(*(clients.column(name).to_pylist() for name in ("bucket", "principal", "client_id")), strict=True),
        sharing.shared,
    )
    alone = tasks.mapInArrow(_alone(place, work, spread), from_arrow_schema(schema))
    return alone.unionByName(shuffled(partial(_unit_by_number, spread, units))) if spread else alone


def work_on_rows(rows: DataFrame, shared: Shared, work: Work, schema: pa.Schema) -> DataFrame:
    """Work on the rows of each unit of any DataFrame with columns of the request log; missing ones are null.

    Slower: every row passes through the shuffle, and all rows of a unit are in memory together.
    """
    kinds = {field.name: field.dataType for field in spark_schema().fields}
    has = set(rows.columns)
    full = rows.select(*(F.col(name) if name in has else F.lit(None).cast(kinds[name]).alias(name) for name in COLUMNS))
    clients = [(row.principal, row.client_id) for row in full.select("principal", "client_id").distinct().collect()]
    unit = {client: number for number, unit in enumerate(units_of(clients, shared)) for client in unit}
    units = 4 * parallelism(rows.sparkSession)
    packed = full.mapInArrow(partial(_packed_rows, partial(_unit_by_number, unit, units)), PACKED)
    return _shuffled(packed, units, work, schema)


def _shuffled(packed: DataFrame, units: int, work: Work, schema: pa.Schema) -> DataFrame:
    in_order = packed.repartitionById(units, "unit").sortWithinPartitions("unit", "hour")
    return in_order.mapInArrow(partial(_unpacked, work), from_arrow_schema(schema))


def _tasks(spark: SparkSession, files: Iterable[DataFile], slots: int = 0) -> DataFrame:
    """Return a row for each bucket, or share of one, with its files by hours.

    Args: `slots`: parallel tasks, which may share a bucket; 0: each bucket is one task.
    """
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
    """Return the number of tasks for each bucket, each of which reads all of it. Args: `rows`: by bucket."""
    return {bucket: max(1, min(2 * slots // len(rows), count // ROWS_PER_TASK)) for bucket, count in rows.items()}


# ---------------------------------------------------------------- units


def units_of(clients: Iterable[Client], shared: Shared) -> list[list[Client]]:
    """Return lists of clients that share something, directly or through others; each client is in one list."""
    parent: dict[Hashable, Hashable] = {}

    def root(one: Hashable) -> Hashable:
        while parent.setdefault(one, one) != one:
            parent[one] = parent[parent[one]]  # halves the path for the next search
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
    """Return the clients of units that span buckets, with the numbers of their units. Args: `places`: with buckets."""
    buckets: dict[Client, set[int]] = {}
    for bucket, principal, client_id in places:
        buckets.setdefault((principal, client_id), set()).add(bucket)
    units = units_of(buckets, shared)
    spread = [unit for unit in units if len(set().union(*(buckets[client] for client in unit))) > 1]
    return {client: number for number, unit in enumerate(spread) for client in unit}


# Units are hashed to `units` numbers, so several may have the same one.


def _unit_by_name(by: str, units: int, client: Client) -> int:
    """Return the unit of a client where all clients of a user, or of a client id, are one unit."""
    name = user_of(client[0]) if by == BY_USER else client[1] or ""
    return zlib.crc32(name.encode()) % units


def _unit_by_number(numbers: Mapping[Client, int], units: int, client: Client) -> int:
    """Return the unit of a client that has a number; -1 without one."""
    return numbers[client] % units if client in numbers else -1


# ---------------------------------------------------------------- in the executors


def _each_task(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _clients(place: TablePlace, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("principal", "client_id")
    for task in _each_task(batches):
        found: dict[Client, None] = {}
        for files in task["files"]:
            found |= dict.fromkeys(clients_of(read_columns(place, files, names, names=names))[1])
        columns = {name: pa.array([client[at] for client in found], pa.string()) for at, name in enumerate(names)}
        yield pa.record_batch({"bucket": pa.array([task["bucket"]] * len(found), pa.int32()), **columns})


def _alone(
    place: TablePlace, work: Work, spread: Mapping[Client, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that works on the rows of one bucket, without those of units that span buckets."""

    def hours(task: dict[str, Any]) -> Iterator[pa.Table]:
        chosen = _all
        if spread or task["of"] > 1:
            chosen = partial(_chosen, is_one=partial(_is_mine, spread, task["part"], task["of"]))
        for files in task["files"]:
            yield read_columns(place, files, COLUMNS, chosen, NAMES)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in _each_task(batches):
            for found in work(settled(hours(task))):
                yield from found.to_batches(max_chunksize=ROWS_AT_ONCE)

    return run


def _is_mine(spread: Mapping[Client, int], part: int, of: int, client: Client) -> bool:
    return client not in spread and (of == 1 or zlib.crc32(repr(client).encode()) % of == part)


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _chosen(table: pa.Table, is_one: Callable[[Client], bool]) -> pa.Table:
    """Return the rows of some clients."""
    number, names = clients_of(table)
    wanted = np.array([is_one(name) for name in names], bool)
    return table.filter(pa.array(wanted[number])) if len(names) else table


def _packed_tasks(
    place: TablePlace, unit_of: Callable[[Client], int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the hours of tasks as PACKED."""
    for task in _each_task(batches):
        for hour, files in zip(task["hours"], task["files"], strict=True):
            yield from _packed(read_columns(place, files, COLUMNS, names=NAMES), hour, unit_of)


def _packed_rows(unit_of: Callable[[Client], int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield any rows as PACKED, all of one hour."""
    schema = pa.schema([arrow_schema().field(name) for name in COLUMNS])
    for batch in batches:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        yield from _packed(pa.table(columns, schema=schema), 0, unit_of)


def _packed(table: pa.Table, hour: int, unit_of: Callable[[Client], int]) -> Iterator[pa.RecordBatch]:
    """Yield rows by unit, without those of unit -1."""
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    number, names = clients_of(table)
    unit = np.array([unit_of(client) for client in names], np.int32)[number]
    order = np.argsort(unit, kind="stable")
    in_order = table.take(pa.array(order[np.searchsorted(unit[order], 0) :]))
    chosen = unit[order][len(unit) - in_order.num_rows :]
    starts = np.flatnonzero(np.diff(chosen, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(chosen)]):
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
    return pa.concat_tables(
        [pa.ipc.open_stream(packed.as_buffer()).read_all() for *_, packed in rows], promote_options="permissive"
    )
