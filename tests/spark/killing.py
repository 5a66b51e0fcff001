"""Run an ingest in a separate process that kills itself in a phase."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.session import require_spark
from kbroker.spark.tables.manifest import LOCK, PARQUET
from kbroker.testing.waiting import wait_until
from tests.spark.conftest import JVM
from tests.support import need

ROOT = Path(__file__).resolve().parents[2]


def kill_ingest(logs: Path, table: Path, budget: int, phase: str, table_format: str = PARQUET) -> int:
    """Ingest with `budget` bytes per batch until `phase`, or to the end if that is empty; the process's exit code.

    What it said is in the test's output.
    """
    try:
        require_spark()
    except PipelineError as error:
        need.lack(str(error))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "SPARK_SUBMIT_OPTS": " ".join(JVM),
    }
    words = [str(logs), str(table), str(budget), phase, table_format]
    command = [sys.executable, "-m", "tests.spark.killed_ingest", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{phase}:\n{done.stdout}{done.stderr}")
    return done.returncode


def wait_for_jvm(table: Path) -> None:
    """Wait until the JVM of a killed driver has ended: on a busy machine that takes longer than a new run waits."""

    def is_closed() -> bool:
        with (table / LOCK).open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        return True

    wait_until(is_closed, 60)
