"""Tests whose long form only `make soak` runs, by the marks that it chooses from."""

from collections.abc import Iterable

import pytest


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark every test that asks for the fixture ``soak``: the short form of some is too fast to be marked as slow."""
    for item in items:
        if "soak" in getattr(item, "fixturenames", ()):
            item.add_marker("soak")
