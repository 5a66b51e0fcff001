"""Fixtures of the coordinators' tests."""

import pytest

from tests.support.groups import Groups


@pytest.fixture
def groups() -> Groups:
    """Return classic groups without an initial rebalance delay, on a virtual clock."""
    return Groups()
