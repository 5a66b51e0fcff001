"""Fixtures of the coordinators' tests."""

from tests.support.fixtures import fixture_of
from tests.support.groups import Groups

groups = fixture_of(Groups)
