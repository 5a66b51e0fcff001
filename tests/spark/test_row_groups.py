"""Parquet files of several row groups, which have many rows, are read like others."""

from pathlib import Path

import pyarrow as pa
import pytest

from kbroker.common.request_log import VERSION
from kbroker.spark.tables import file_writer
from kbroker.spark.tables.compaction import compact
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.whatif.group import NAMES
from kbroker.spark.whatif.read import COLUMNS
from tests.spark.committing import BUCKETS, placed, two_hours, write


def with_updates(rows: pa.Table) -> pa.Table:
    """Return rows that have updated the counters of their client and of a user."""
    clients = zip(rows["principal"].to_pylist(), rows["client_id"].to_pylist(), strict=True)
    updates = [
        [{"quota_type": "Produce", "user": user, "client_id": client}, {"quota_type": "Fetch", "user": user}]
        for user, client in clients
    ]
    place = rows.schema.get_field_index("updates")
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array(updates, field.type))


@pytest.mark.parametrize("compacted", [False, True])
def test_names_of_lists_are_read_as_dictionaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    """Names that are read as dictionaries, one per row group, equal the names that are read as text."""
    monkeypatch.setattr(file_writer, "ROW_GROUP_ROWS", 7)
    table = Table(tmp_path / "table")
    table.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    rows = placed(with_updates(two_hours()))
    for number in (0, 1):
        write(table, "a", number, rows)
    if compacted:
        compact(table, 0, 1, everything=True)
    names = [one.path for one in table.files()]
    found = read_columns(table.place, names, COLUMNS, names=NAMES)
    assert found.num_rows == 2 * rows.num_rows
    assert found.to_pylist() == read_columns(table.place, names, COLUMNS).to_pylist()
