"""Work of the tasks of generate, replay and recommend in one process without Spark: CPU time and maximum memory.

    python bench/pipeline/task_work.py TABLE --requests 20e6 --days 2
    python bench/pipeline/task_work.py TABLE --requests 10e6 --days 21 --files-per-hour 25 --steps replay,compact,replay

TABLE is generated if it does not exist. The second table has 100,800 files, 25 per hour and bucket. Prints the
processor time per request of this process for each step; run one step at a time (`--steps replay`) for its memory.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.generate import generate_table
from bench.pipeline.population import Shape
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.tables.compaction import compact_table
from kbroker.spark.tables.delta_table import HOUR_US, Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.whatif.feed import Replay, Windows
from kbroker.spark.whatif.group import NAMES
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.read import COLUMNS, settled
from kbroker.spark.whatif.recommend import _needs
from kbroker.spark.whatif.sum import ClientSums

EACH = QuotaSet({QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 20_000.0}})


@dataclass(frozen=True)
class ManyFiles(Shape):
    """Log with a fixed number of files per hour and bucket, for any number of rows."""

    files_per_hour: int | None = None

    @property
    def pieces(self) -> int:
        return self.files_per_hour or super().pieces


def buckets(table: Table) -> Iterator[Iterator[Any]]:
    """Yield the rows of each bucket, hour by hour."""
    found: dict[int, dict[int, list[str]]] = {}
    for one in table.files():
        found.setdefault(one.bucket, {}).setdefault(one.end_us // HOUR_US, []).append(one.path)
    for hours in found.values():
        yield (read_columns(table.place, hours[hour], COLUMNS, names=NAMES) for hour in sorted(hours))


def replay(table: Table) -> None:
    for hours in buckets(table):
        judged, sums = Replay(EACH), ClientSums()
        for part, until_ms in settled(hours):
            sums.add(judged.feed(part, until_ms))
        list(sums.end())


def compact(table: Table) -> None:
    done = compact_table(table.place.uri, retention_ms=0, short_retention=True)
    print(f"{done.files_before:,} files of {done.hours:,} hours became {done.files_after:,}", flush=True)
    table.refresh()


def recommend(table: Table) -> None:
    for hours in buckets(table):
        _needs(settled(hours), 0.01, "user,client-id", Windows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--requests", type=float, default=2e6)
    parser.add_argument("--entities", type=float, default=10_000)
    parser.add_argument("--days", type=float, default=2)
    parser.add_argument("--files-per-hour", type=int, help="of each bucket; one for each 25,000 rows by default")
    parser.add_argument("--steps", default="replay,recommend", help="some of replay, recommend, compact")
    given = parser.parse_args()
    table = Table(given.table)
    shape = ManyFiles(int(given.requests), int(given.entities), days=given.days, files_per_hour=given.files_per_hour)
    works: dict[str, Any] = {"replay": replay, "recommend": recommend, "compact": compact}
    for name in [*(() if table.exists() else ("generate",)), *given.steps.split(",")]:
        used = time.process_time()
        if name == "generate":
            generate_table(table.place, shape)
            table.refresh()
        else:
            works[name](table)
        used = time.process_time() - used
        rows, files = sum(one.rows for one in table.files()), len(table.files())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        cost = f"{used:.1f} cpu s, {used / rows * 1e6:.2f} us each, {peak:,} MiB at most"
        print(f"{rows:,} {name}: {cost}, {files:,} files", flush=True)


if __name__ == "__main__":
    main()
