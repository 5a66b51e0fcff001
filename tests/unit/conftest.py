"""Fixtures of the unit tests of several rooms."""

import pytest

from tests.support.server import Bench, make_bench


@pytest.fixture
def bench() -> Bench:
    """Request handlers over metadata in memory."""
    return make_bench()
