"""Random lives of one partition's log with failing system calls.

Each acknowledged batch stays, once and in order, whichever calls fail in whatever combination, and the producers of an
opened log are those of its batches.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disk_calls import DiskCalls
from tests.support.seeds import history_count, history_seed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_acknowledged_batches_stay(tmp_path: Path) -> None:
    """No life breaks a promise. KBROKER_SEED and KBROKER_HISTORIES choose the lives."""
    place, count = tmp_path / "logs", history_count(40, 4000)
    calls = DiskCalls(tmp_path, place)
    command = [
        sys.executable,
        "-m",
        "tests.support.log_lives",
        place,
        calls.environment["DISK_CALLS"],
        history_seed(),
        count,
    ]
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **calls.environment}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["broken"] == {}
    assert result["failed"] >= count, "hardly a call failed"
