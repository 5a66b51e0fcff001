"""Marks of tests whose long form only `make soak` runs."""

from collections.abc import Iterable

import pytest


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark every test with the fixture ``soak``; the short forms of some are too fast for the mark ``slow``."""
    for item in items:
        if "soak" in getattr(item, "fixturenames", ()):
            item.add_marker("soak")
