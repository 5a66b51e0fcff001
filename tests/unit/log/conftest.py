"""Fixtures of the log's tests."""

from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log.manager import LogManager
from tests.support.fixtures import fixture_of
from tests.support.log_manager import NOW_MS, Brokers

clock = fixture_of(VirtualClock, NOW_MS)


@pytest.fixture
def brokers(tmp_path: Path, clock: VirtualClock) -> Brokers:
    return Brokers(tmp_path, clock)


@pytest.fixture
def manager(brokers: Brokers) -> LogManager:
    """Return the log manager of a started broker."""
    return brokers.start()[0]


@pytest.fixture
def folders(brokers: Brokers, tmp_path: Path) -> list[Path]:
    """Give the brokers two folders."""
    brokers.folders = [tmp_path / "a", tmp_path / "b"]
    return brokers.folders
