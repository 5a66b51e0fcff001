"""Cost of the pipeline at a size: time, memory, files and shuffled bytes of each step over a generated log.

    python bench/pipeline/at_size.py --requests 2e6 --requests 20e6 --folder /tmp/at-size --json sizes.json

Steps: generate (the table, without Spark) or ingest (`--ingest`: Arrow files through the stream), usage, throttles,
replay and recommend on the original files, compact, and a second replay. All steps share one session, warmed up by a
small table. Processor time and memory are those of the process and its descendants: driver, JVM, Python workers. Memory
is resident memory, sampled twice a second, so that pages shared by forked workers count once per worker. Shuffled and
spilled bytes are from Spark's REST interface. A table is deleted after its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pipeline.generate import generate_files, generate_table  # noqa: E402
from bench.pipeline.population import Shape  # noqa: E402
from kbroker.common.quotas import QuotaEntity  # noqa: E402
from kbroker.spark.report.write import write_report  # noqa: E402
from kbroker.spark.setup.session import build_session  # noqa: E402
from kbroker.spark.tables.compaction import compact_table  # noqa: E402
from kbroker.spark.tables.delta_table import Table, describe_table  # noqa: E402
from kbroker.spark.tables.ingest import ingest  # noqa: E402
from kbroker.spark.tables.log_reader import LogSource  # noqa: E402
from kbroker.spark.tables.table import read_table  # noqa: E402
from kbroker.spark.usage_views import throttles as judged  # noqa: E402
from kbroker.spark.usage_views import usage as measured  # noqa: E402
from kbroker.spark.whatif.quota_set import QuotaSet  # noqa: E402
from kbroker.spark.whatif.recommend import needs_of_table, recommend  # noqa: E402
from kbroker.spark.whatif.replay import replay_bins  # noqa: E402
from kbroker.spark.whatif.sum import by_client, totals_of  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_S = 0.5
PROCESSES = 2  # equals Spark's cores
EACH = QuotaSet({QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 20_000.0}})
ALL = QuotaSet(
    {
        QuotaEntity.of({"user": None, "client-id": None}): {
            "producer_byte_rate": 20_000.0, "consumer_byte_rate": 50_000.0, "request_percentage": 5.0
        }
    }
)  # fmt: skip
USERS = QuotaSet({QuotaEntity.of({"user": None}): {"producer_byte_rate": 50_000.0}})
STEPS = ("usage", "throttles", "replay", "replay-all", "replay-users", "recommend", "report", "compact", "replay-again")


@dataclass
class Cost:
    """Cost of a step. Times in seconds, memory and bytes in bytes."""

    requests: int
    step: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    driver_peak_bytes: int  # of this process alone
    shuffled_bytes: int
    spilled_bytes: int
    load: float
    files: int = 0
    table_bytes: int = 0

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"{self.requests:>11,} {self.step:13} wall {self.wall_s:8.1f} s  cpu {self.cpu_s:8.1f} s = "
            f"{self.cpu_s / self.requests * 1e6:6.2f} us each  peak {self.peak_bytes / mib:6,.0f} MiB (driver "
            f"{self.driver_peak_bytes / mib:5,.0f})  shuffle {self.shuffled_bytes / mib:7,.1f}  spill "
            f"{self.spilled_bytes / mib:6,.0f}  files {self.files:6,}  table {self.table_bytes / mib:8,.1f} MiB  "
            f"load {self.load:.1f}"
        )


class Tree:
    """Processor time and memory of this process and its descendants, sampled by a thread.

    A process that has ended counts with its usage at the last sample, because a parent that ends takes the times of its
    children with it.
    """

    def __init__(self) -> None:
        self.peak = self.own_peak = 0
        self._used_s: dict[tuple[int, int], float] = {}  # of each process that existed, by pid and start time
        self._lock = threading.Lock()
        self._sampling_s = 0.0  # time of the samples themselves
        threading.Thread(target=self._sample, daemon=True).start()

    def begin(self) -> float:
        self.peak = self.own_peak = 0
        return self.used()

    def used(self) -> float:
        """Return the processor time without that of the samples, which take longer on a busy machine."""
        return self.now()[0] - self._sampling_s

    def _sample(self) -> None:
        while True:
            _, total, own = self.now()
            self.peak, self.own_peak = max(self.peak, total), max(self.own_peak, own)
            self._sampling_s = time.thread_time()
            time.sleep(SAMPLE_S)

    def now(self) -> tuple[float, int, int]:
        """Return the seconds of all processes so far, and the resident bytes of all running ones and of this one."""
        parents, used, resident = {}, {}, {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                pid = int(entry)
                parents[pid], resident[pid] = int(fields[1]), int(fields[21])
                used[pid] = (int(fields[19]), sum(map(int, fields[11:13])) / TICKS)
        mine = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        with self._lock:
            for pid in mine:
                began, seconds = used[pid]
                self._used_s[pid, began] = max(seconds, self._used_s.get((pid, began), 0.0))
            total_s = sum(self._used_s.values())
        return total_s, sum(resident[p] for p in mine) * PAGE, resident[os.getpid()] * PAGE


class Meter:
    def __init__(self, spark: Any, tree: Tree, costs: list[Cost]) -> None:
        self.spark, self.tree, self.costs = spark, tree, costs

    def stages(self) -> tuple[int, int]:
        """Return the bytes written into shuffles, and spilled to disks, of all stages so far."""
        context = self.spark.sparkContext
        url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages"
        with urllib.request.urlopen(url) as response:
            found = json.load(response)
        return tuple(sum(stage[name] for stage in found) for name in ("shuffleWriteBytes", "diskBytesSpilled"))

    @contextmanager
    def step(self, requests: int, name: str, table: Path | None) -> Iterator[None]:
        stages, cpu, wall = self.stages(), self.tree.begin(), time.monotonic()
        yield
        wall, cpu = time.monotonic() - wall, self.tree.used() - cpu
        shuffled, spilled = (after - before for after, before in zip(self.stages(), stages, strict=True))
        cost = Cost(
            requests, name, wall, cpu, self.tree.peak, self.tree.own_peak, shuffled, spilled, os.getloadavg()[0]
        )
        if table is not None:
            known = describe_table(table)
            cost.files, cost.table_bytes = known["files"], known["size_bytes"]
        self.costs.append(cost)
        print(cost, flush=True)


def steps(spark: Any, table: Path, dates: list[str] | None) -> dict[str, Callable[[], Any]]:
    """Return the measured steps by name. Args: `dates`: days of the table to read, None for all."""

    def replay(quotas: QuotaSet) -> int:
        clients = by_client(replay_bins(spark, table, quotas, dates=dates)).cache()
        clients.limit(20).collect()
        total = totals_of(clients)["requests"]
        clients.unpersist()
        return total

    def throttles() -> int:
        every = judged.throttles(read_table(spark, table, dates=dates)).cache()
        judged.by_quota(every).collect()
        count = len(every.limit(20).collect())
        every.unpersist()
        return count

    def report() -> int:
        needs = recommend(needs_of_table(spark, table, dates=dates), share=0.01)
        now, page = datetime.now(timezone.utc), table.with_suffix(".html")
        return write_report(spark, table, page, needs.quotas(), now, recommendation=needs, dates=dates)

    return {
        "usage": lambda: measured.top(measured.usage(read_table(spark, table, dates=dates)), "bytes", 20).collect(),
        "throttles": throttles,
        "replay": lambda: replay(EACH),
        "replay-all": lambda: replay(ALL),
        "replay-users": lambda: replay(USERS),
        "recommend": lambda: recommend(needs_of_table(spark, table, dates=dates), share=0.01),
        "report": report,
        "compact": lambda: compact_table(table, retention_ms=0, short_retention=True),
        "replay-again": lambda: replay(EACH),  # of compacted files
    }


def run(
    meter: Meter, folder: Path, shape: Shape, chosen: list[str], ingested: bool, keep: bool, first_days: int | None
) -> None:
    """Run all steps over one log. Args: `first_days`: number of days for steps that support this, None for all."""
    spark, table, n = meter.spark, folder / f"table-{shape.requests}", shape.requests
    try:
        if ingested:
            logs = folder / f"logs-{n}"
            with meter.step(n, "log files", None):
                generate_files(logs, shape, processes=PROCESSES)
            with meter.step(n, "ingest", table):
                done = ingest(spark, LogSource.of_files(str(logs), format="arrow"), table)
            assert done.rows == n, done
            shutil.rmtree(logs)
        elif not table.exists():
            with meter.step(n, "generate", table):
                assert generate_table(table, shape, processes=PROCESSES)[0] == n
        files = Table(table).files()
        dates = sorted({one.date for one in files})[:first_days]
        rows = sum(one.rows for one in files if one.date in dates)
        works = steps(spark, table, None if first_days is None else dates)
        for name in chosen:
            is_all = name == "compact"
            with meter.step(n if is_all else rows, name, table if name == "compact" else None):
                works[name]()
    finally:
        if not keep:
            shutil.rmtree(table, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=float, action="append", required=True, help="requests of a log; repeatable")
    parser.add_argument("--entities", type=float, default=10_000)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--first-days", type=int, help="days of the log that all steps except generate and compact read"
    )
    parser.add_argument("--driver-memory", default="2g", help="of the JVM, in which the tasks run too")
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument(
        "--ingest", action="store_true", help="write log files and ingest them, instead of writing the table"
    )
    parser.add_argument("--keep", action="store_true", help="keep the tables, and use existing ones")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    local = given.folder / "spark"
    settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.local.dir": str(local)}
    settings |= {"spark.ui.retainedStages": "100000", "spark.ui.retainedTasks": "1000"}
    spark = build_session("at size", master="local[2]", driver_memory=given.driver_memory, settings=settings)
    costs: list[Cost] = []
    try:
        chosen = [name for name in given.steps.split(",") if name]
        warm = Meter(spark, Tree(), [])
        small = Shape(50_000, 500, days=0.5)
        run(warm, given.folder, small, chosen, given.ingest, False, None)
        meter = Meter(spark, warm.tree, costs)
        for requests in given.requests:
            shape = Shape(int(requests), int(given.entities), days=given.days)
            run(meter, given.folder, shape, chosen, given.ingest, given.keep, given.first_days)
            if given.json is not None:
                given.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1), encoding="utf-8")
    finally:
        spark.stop()
        shutil.rmtree(local, ignore_errors=True)


if __name__ == "__main__":
    main()
