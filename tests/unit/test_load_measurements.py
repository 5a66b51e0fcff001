"""Measurements of bench/loads: rows of a run, of which one part fails."""

from typing import Any

import pytest

from bench.loads import run
from bench.loads.report import Row


def test_a_measurement_that_fails_is_a_row_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run keeps the rows before and after a measurement that fails."""

    def fails(loads: Any) -> list[Row]:
        raise AssertionError("expected 5 records,\nfound 4")

    def works(loads: Any) -> list[Row]:
        return [Row("works", "ms", ours=[1.0])]

    monkeypatch.setattr(run, "MEASURES", {"works": works, "fails": fails})
    rows = run.measured(None, ["works", "fails", "works"])  # type: ignore[arg-type]
    assert [(row.name, row.note, row.has_failed) for row in rows] == [
        ("works", "", False),
        ("fails", "AssertionError: expected 5 records, found 4", True),
        ("works", "", False),
    ]
