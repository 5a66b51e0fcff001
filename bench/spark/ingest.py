"""Rows per second of CPU time of `ingest`, by the format of its log.

    python bench/spark/ingest.py [--rows 200000]

Processor time is that of the JVM and its Python workers over one run of `ingest`, after a small one for warm-up:
reading, parsing, sorting, writing Parquet, and the manifests. The rows are in two hours and eight buckets.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kbroker.spark.setup.session import build_session  # noqa: E402
from kbroker.spark.tables.ingest import ingest  # noqa: E402
from kbroker.spark.tables.log_reader import LogSource  # noqa: E402
from kbroker.spark.tables.log_schema import arrow_schema  # noqa: E402
from tests.spark.day import make_day, to_line  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU time of a process (by default this one) and its descendants, ended ones included."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], used[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid() if root is None else root}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used.get(pid, 0) for pid in mine) / TICKS


def logs(folder: Path, rows: int) -> dict[str, Path]:
    """Return the same rows as JSON lines and as Arrow batches, in two hours."""
    some = make_day(10_000).rows.to_pylist()
    for row in some:
        row["time"] = row["time"].replace(hour=row["time"].hour % 2)
    text = "".join(to_line(row) + "\n" for row in some)
    batch = pa.Table.from_pylist(some, arrow_schema())
    found = {}
    for size, name in ((10_000, "warm"), (rows, "full")):
        for form in ("jsonl", "arrows"):
            found[f"{name} {form}"] = place = folder / f"{name}-{form}"
            place.mkdir()
            times = size // 10_000
            if form == "jsonl":
                with (place / "requests-1.jsonl").open("w") as file:
                    for _ in range(times):
                        file.write(text)
            else:
                with (place / "requests-1.arrows").open("wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
                    for _ in range(times):
                        writer.write_table(batch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="a multiple of 10,000")
    rows = parser.parse_args().rows
    if rows < 10_000 or rows % 10_000:
        parser.error(f"--rows must be a multiple of 10,000, got {rows:,}")
    spark = build_session("bench", master="local[2]", driver_memory="2g")
    with tempfile.TemporaryDirectory() as folder:
        places = logs(Path(folder), rows)
        for form, suffix in (("json", "jsonl"), ("auto", "jsonl"), ("auto", "arrows"), ("arrow", "arrows")):
            ingest(
                spark, LogSource.of_files(places[f"warm {suffix}"], format=form), Path(folder) / f"w-{form}-{suffix}"
            )
            cpu, wall = cpu_seconds(), time.monotonic()
            table = Path(folder) / f"t-{form}-{suffix}"
            done = ingest(spark, LogSource.of_files(places[f"full {suffix}"], format=form), table)
            cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
            assert done.rows == rows
            each = f"{rows / cpu:,.0f} rows per cpu second, {rows / wall:,.0f} rows/s on two cores"
            print(f"{suffix} --format {form}: {each} ({cpu:.1f} cpu s, {wall:.1f} s)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
