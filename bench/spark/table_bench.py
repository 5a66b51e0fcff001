"""Cost of the table: writing, size, replay and compaction, with wall time and CPU time of each.

    python bench/spark/table_bench.py [--rows 1000000]

An hour of requests of a hundred clients is written in ten batches into eight buckets, replayed under other quotas,
compacted, and replayed again. Processor time is that of the JVM, its Python workers and this process; the first replay
of the session, a warm-up, is not counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402

from bench import bench_replay  # noqa: E402
from bench.spark.ingest import cpu_seconds  # noqa: E402
from kbroker.common.quotas import QuotaEntity  # noqa: E402
from kbroker.spark.setup.session import build_session  # noqa: E402
from kbroker.spark.tables.compaction import compact_table  # noqa: E402
from kbroker.spark.whatif.quota_set import QuotaSet  # noqa: E402
from kbroker.spark.whatif.replay import replay_table  # noqa: E402
from tests.spark.written_table import write_table  # noqa: E402

T = TypeVar("T")
EACH = QuotaSet({QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 20_000.0}})


def timed(name: str, rows: int, work: Callable[[], T]) -> T:
    cpu, wall = cpu_seconds(), time.monotonic()
    done = work()
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
    print(f"{name}: {rows / cpu:,.0f} rows per cpu second, {cpu:.1f} cpu s, {wall:.1f} s", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    bench_replay.REQUESTS = rows
    log = bench_replay.hour().sort_by("time")
    spark = build_session("bench", master="local[2]", driver_memory="1g")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        parts = [log.slice(start, rows // 10) for start in range(0, rows, rows // 10)]

        def write(part: pa.Table) -> None:
            write_table(spark.createDataFrame(part), table)

        write(parts[0])

        def write_all() -> None:
            for part in parts[1:]:
                write(part)

        timed("write", rows - rows // 10, write_all)

        def replay() -> int:
            return int(replay_table(spark, table, EACH).agg({"requests": "sum"}).collect()[0][0])

        def size() -> str:
            files = [file.stat().st_size for file in table.rglob("*.parquet")]
            return f"{len(files)} files, {sum(files) / rows:.1f} bytes a row"

        assert replay() == rows
        print(size())
        for _ in range(3):
            timed("replay", rows, replay)
        timed("compact", rows, lambda: compact_table(table, retention_ms=0))
        print(size())
        for _ in range(3):
            timed("replay", rows, replay)
        assert replay() == rows
    spark.stop()


if __name__ == "__main__":
    main()
