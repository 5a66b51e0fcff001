"""Power cut at every call of moves between log folders: the folder that a start chooses has every durable record."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.log.log_dir import LogDirError
from tests.support.cut_states import check_states, positions
from tests.support.disk_calls import DiskCalls
from tests.support.disk_states import cuts, read_record
from tests.support.log_manager import kill
from tests.support.log_moves import KEY, finish
from tests.support.recorded_moves import DATA, NAMES, RECORD, ROUTE, started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 5  # number of randomly chosen calls
STEPS = 4  # number of calls before a former folder loses its name


def lost(data: Path, count: int) -> list[str]:
    """Return the records among the first ``count`` that a start on a state of the disk lacks."""
    try:
        manager, report = started(data)
    except LogDirError as error:
        return [str(error)]
    try:
        finish(manager)
        log = manager.partition(*KEY)
        if log is None or log.damage is not None:
            return [f"the partition is not served: {report.failures or report.damaged}"]
        folders = [name for name in NAMES if (data / name / "orders-0").exists()]
        if log.log_end_offset < count or len(folders) != 1:
            return [f"{count} records are durable, the log in {folders} ends at {log.log_end_offset}"]
        return []
    finally:
        kill(manager)


def test_each_state_after_a_power_cut_in_moves(tmp_path: Path, soak: bool) -> None:
    """With former folders that stay, notes that come back and appends in the last step, no durable record is lost."""
    disk = DiskCalls(tmp_path, tmp_path / DATA)
    command = [sys.executable, "-m", "tests.support.recorded_moves", str(tmp_path), disk.environment["DISK_CALLS"]]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **disk.environment}, check=True)
    calls = list(read_record(tmp_path / RECORD))
    removals = [number for number, call in enumerate(calls) if call.other.endswith("-delete")]
    assert len(removals) == len(ROUTE)
    chosen = set(range(len(calls)) if soak else random.Random(29).sample(range(len(calls)), SAMPLE))
    for removal in removals if soak else removals[:2]:  # both folders have the name, and one has the latest record
        chosen |= set(range(removal - STEPS, removal + 2))
    after = positions(calls, str(tmp_path / DATA), 0, lambda count: count)
    states, different, wrong = check_states((one for one in after if one.number in chosen), lost)
    print(f"{states} states, {different} of them different, of {len(calls)} calls")
    assert not wrong, "\n".join(wrong)
    assert states == len(cuts(0)) * len(chosen)
    marks = [call.other for call in calls if call.name == "mark"]
    assert int(marks[-1]) == len(ROUTE) + (len(ROUTE) + 1) // 2
