"""Fixtures that the unit tests of several packages share."""

import pytest

from tests.support.server import Bench, make_bench


@pytest.fixture
def bench() -> Bench:
    """Return request handlers over metadata in memory."""
    return make_bench()
