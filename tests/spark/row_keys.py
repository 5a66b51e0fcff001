"""Keys that distinguish the rows of a request log, counted in a day and in a table."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from kbroker.spark.tables.delta_table import Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.table_place import TablePlace

KEY = ["time", "connection", "correlation_id", "address"]


def keys_of(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Count the keys of rows."""
    return Counter(tuple(row.values()) for row in rows.select(KEY).to_pylist())


def keys_in(place: TablePlace | Path) -> Counter[tuple[Any, ...]]:
    """Count the keys of a table's live rows, read without Spark; a table that does not exist has none."""
    table = Table(place)
    files = [one.path for one in table.files()] if table.exists() else []
    return keys_of(read_columns(table.place, files, KEY)) if files else Counter()
