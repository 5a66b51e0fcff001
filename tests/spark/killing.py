"""Ingest in a separate process that kills itself in a phase."""

import subprocess
import sys
from pathlib import Path

from tests.spark.standalone import ROOT, environment
from tests.support import need


def kill_ingest(logs: Path, table: Path, budget: int, phase: str) -> int:
    """Ingest with `budget` bytes per batch until `phase`, or to the end if it is empty; return the exit code.

    The process's output is printed as the test's output.
    """
    need.spark()
    words = [str(logs), str(table), str(budget), phase]
    command = [sys.executable, "-m", "tests.spark.killed_ingest", *words]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{phase}:\n{done.stdout}{done.stderr}")
    return done.returncode
