"""Program for the tests: ingest a folder of logs, and kill this process (-9) in a phase.

python -m tests.spark.killed_ingest LOGS TABLE BUDGET [PHASE]
"""

import os
import signal
import sys
from pathlib import Path

from kbroker._core.clock import VirtualClock
from kbroker.spark.setup.session import build_session
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.conftest import SETTINGS
from tests.spark.day import START_US


def main(logs: str, table: str, budget: str, phase: str = "") -> None:
    """Run once, up to the phase, or to the end if no phase is given."""

    def die(reached: str) -> None:
        if reached == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = build_session("killed", master="local[2]", settings=SETTINGS)
    options = StreamOptions(buckets=2, max_per_batch=int(budget))
    clock = VirtualClock(START_US // 1000 + 48 * 3_600_000)
    done = ingest(spark, LogSource.of_files(logs, format="json"), Path(table), options, clock=clock, at=die)
    spark.stop()
    print(f"{done.rows} rows, {done.compacted.hours} hours compacted")


main(*sys.argv[1:])
