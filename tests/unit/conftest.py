"""Fixtures that the unit tests of several packages share."""

from tests.support.fixtures import fixture_of
from tests.support.server import make_bench

bench = fixture_of(make_bench)
