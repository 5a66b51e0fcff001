"""Program for the tests: watch a folder of logs until all is read, and kill this process (-9) in a phase.

python -m tests.spark.killed_watch LOGS TABLE PAGE [PHASE TIMES]
"""

import os
import signal
import sys
from pathlib import Path

from kbroker._core.clock import VirtualClock
from kbroker.spark.setup.session import build_session
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.watch.live_page import write_live_page
from kbroker.spark.watch.watch import watch
from tests.spark.conftest import SETTINGS
from tests.spark.day import START_US
from tests.spark.watching import WATERMARK_MS


def main(logs: str, table: str, page: str, phase: str = "", times: str = "1") -> None:
    """Run once, up to the phase, or to the end if no phase is given."""
    left = int(times)

    def die(reached: str) -> None:
        nonlocal left
        if reached == phase:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    spark = build_session("killed", master="local[2]", settings=SETTINGS)
    done = watch(
        spark, LogSource.of_files(logs), Path(table), StreamOptions(buckets=1, watermark_ms=WATERMARK_MS),
        refresh=lambda: write_live_page(spark, Path(table), Path(page), span_ms=86_400_000, every_ms=30_000),
        clock=VirtualClock(START_US // 1000 + 10 * 24 * 3_600_000), at=die,
    )  # fmt: skip
    spark.stop()
    print(done)


main(*sys.argv[1:])
