"""Columns of a log for a replay: numbered combinations, flattened lists, and removal of rows."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from kbroker.spark.whatif import read
from kbroker.spark.whatif.read import flattened, numbered

NAMES = [f"name-{number}" for number in range(40)]


def dictionaries(*parts: list[str | None]) -> pa.ChunkedArray:
    """Return a column whose chunks have separate dictionaries, as the files of a table have."""
    return pa.chunked_array([pa.array(part, pa.string()).dictionary_encode() for part in parts])


@pytest.mark.parametrize("rows", [3, 400])
def test_combinations_are_numbered(rows: int) -> None:
    """Numbers identify all combinations of values, for few rows of many values and for many rows."""
    wanted = [(NAMES[row % 7], None if row % 5 == 0 else NAMES[row % 40], NAMES[row // 9 % 3]) for row in range(rows)]
    columns = [pa.chunked_array([[one[at] for one in wanted]]) for at in range(3)]
    number, names = numbered(columns)
    assert [names[one] for one in number] == wanted
    assert len(names) == len(set(wanted))
    cut = rows // 2
    number, names = numbered(
        [dictionaries([r[at] for r in wanted[:cut]], [r[at] for r in wanted[cut:]]) for at in range(3)]
    )
    assert [names[one] for one in number] == wanted


def test_no_rows_have_no_names() -> None:
    for empty in (pa.chunked_array([], pa.string()), pa.chunked_array([pa.array([], pa.string())])):
        number, names = numbered([empty, empty])
        assert (len(number), names) == (0, [])


@pytest.mark.parametrize("missing", [None, []])
def test_lists_are_flattened(missing: list[dict[str, int]] | None) -> None:
    """Rows without a list are skipped, and slices of a table are read from their first row."""
    lists = [[{"n": 1}, {"n": 2}], missing, [{"n": 3}], missing]
    table = pa.table({"updates": pa.array(lists, pa.list_(pa.struct([("n", pa.int64())])))})
    for first, rows, values in ((0, [0, 0, 2], [1, 2, 3]), (1, [1], [3])):
        found = flattened(table.slice(first), "updates")
        assert found is not None
        row, field = found
        assert (row.tolist(), field("n").to_pylist()) == (rows, values)
    assert flattened(table.slice(3), "updates") is None


@pytest.mark.parametrize("count", [1, 3, read.FEW_ROWS + 1])
def test_rows_that_wait_are_taken_out(count: int) -> None:
    table = pa.table({"n": list(range(200))})
    for gone in (np.arange(count), np.arange(200 - count, 200), np.arange(count) * 2 + 1):
        wanted = sorted(set(range(200)) - set(gone.tolist()))
        assert read._without(table, gone)["n"].to_pylist() == wanted
    assert list(itertools.chain(*read._without(table, np.arange(200)).to_pydict().values())) == []
