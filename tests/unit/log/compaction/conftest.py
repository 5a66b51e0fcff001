"""Fixture of a compacted log."""

from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from tests.support.compaction import CONFIG
from tests.support.log_files import open_log


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "t-0", config=CONFIG)
