"""Tables for other readers: DuckDB, Polars, Arrow and Delta's own jars return the rows of `read_table`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kbroker.common.request_log import VERSION
from kbroker.spark.tables.compaction import compact_table
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.log_schema import arrow_schema, spark_schema
from kbroker.spark.tables.table import read_table
from tests.spark.committing import BUCKETS, day_of_batches, placed, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The key of a row, and columns of each kind, lists of structs among them.
COLUMNS = ["time", "correlation_id", "principal", "request_bytes", "sampling", "api_key", "verdicts", "updates"]


def by_duckdb(table: Path) -> pa.Table:
    """Read with DuckDB's extension for Delta, a package from PyPI, which reads the table's log itself."""
    import duckdb
    import duckdb_extension_delta

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"load '{extension}'")
        found = connection.execute(f"select {', '.join(COLUMNS)} from delta_scan('{table}')")
        return found.to_arrow_table()


def by_polars(table: Path) -> pa.Table:
    import polars

    return polars.scan_delta(str(table)).select(COLUMNS).collect().to_arrow()


def by_arrow(table: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(table).to_pyarrow_dataset().to_table(columns=COLUMNS)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    found = rows.select(COLUMNS).to_pylist()
    for row in found:
        row["verdicts"], row["updates"] = (list(row[name] or ()) for name in ("verdicts", "updates"))
    return sorted(found, key=lambda row: (row["time"], row["correlation_id"] or -1, str(row["verdicts"])))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of a day: two compacted batches, and a third batch written afterwards."""
    path = tmp_path_factory.mktemp("readers") / "table"
    found = Table(path)
    found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    rows = day_of_batches().rows
    for number, part in enumerate((rows.slice(0, 400), rows.slice(400, 100))):
        write(found, "a", number, placed(part))
    compact_table(path, retention_ms=0, short_retention=True)
    write(found, "a", 2, placed(rows.slice(500)))
    return path


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_arrow])
def test_others_see_the_same_rows(table: Path, read: Callable[[Path], pa.Table]) -> None:
    assert in_order(read(table)) == in_order(day_of_batches().rows)


def test_deltas_own_jars_see_the_same_rows(delta: SparkSession, table: Path) -> None:
    """The files are found, and the statistics by which readers skip files are right."""
    rows = delta.read.format("delta").load(str(table))
    assert in_order(rows.toArrow().select(arrow_schema().names).cast(arrow_schema())) == in_order(day_of_batches().rows)
    wanted = day_of_batches().rows.to_pylist()
    for where, match in (
        ("principal = 'User:team-3'", lambda row: row["principal"] == "User:team-3"),
        ("hour = 5 and api_key = 1", lambda row: row["time"].hour == 5 and row["api_key"] == 1),
        ("time >= '2026-01-02 20:00'", lambda row: row["time"].hour >= 20),
    ):
        assert rows.where(where).count() == sum(map(match, wanted)), where


def test_spark_sees_the_same_rows_without_jars(spark: SparkSession, table: Path) -> None:
    rows = read_table(spark, table)
    assert in_order(rows.toArrow().select(arrow_schema().names).cast(arrow_schema())) == in_order(day_of_batches().rows)
