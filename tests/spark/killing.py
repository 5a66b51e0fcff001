"""Run an ingest in a separate process that kills itself in a phase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.class_archive import JVM
from tests.support import need

ROOT = Path(__file__).resolve().parents[2]


def kill_ingest(logs: Path, table: Path, budget: int, phase: str) -> int:
    """Ingest with `budget` bytes per batch until `phase`, or to the end if that is empty; the process's exit code.

    What it said is in the test's output.
    """
    need.spark()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "SPARK_SUBMIT_OPTS": " ".join(JVM),
    }
    words = [str(logs), str(table), str(budget), phase]
    command = [sys.executable, "-m", "tests.spark.killed_ingest", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{phase}:\n{done.stdout}{done.stderr}")
    return done.returncode
