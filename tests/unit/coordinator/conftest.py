"""Fixtures of the coordinators' tests."""

import pytest

from tests.support.groups import Groups


@pytest.fixture
def groups() -> Groups:
    """Classic groups without an initial delay, on a virtual clock."""
    return Groups()
