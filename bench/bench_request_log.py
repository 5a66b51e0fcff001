"""Cost of the request log: CPU of the broker's process per Produce, with and without it in interleaved pairs.

    python bench/bench_request_log.py [--pairs 7] [--seconds 3] [--rate 50000] [--quotas none|both|on]
        [--format json|arrow] [--to topic|dir|both] [--compression none|lz4] [--connections 8] [--in-flight 64]

Two brokers run side by side, one with the log. They get the load (one record of 100 bytes per request; open loop, or
closed with --rate 0) alternately, so that other load of the machine affects both. --quotas sets byte, fetch and time
quotas of the user far above the load, in both brokers or only in the broker with the log, whose records then include
quota updates. A pair with a dropped or missing record fails. Prints each pair's CPU and ratio, and the median.

Accepted (two cores, Linux, CPython 3.11): at most 1.10.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.loads.generator import Generator, frames  # noqa: E402
from bench.side import FAR_QUOTAS, Side  # noqa: E402

ACCEPTED = 1.10
SETTLE_S = 0.3  # the last batch of the writer counts as part of the load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--format", choices=("json", "arrow"), default="json")
    parser.add_argument("--to", choices=("topic", "dir", "both"), default="topic")
    parser.add_argument("--compression", choices=("none", "lz4"), default="none")
    parser.add_argument("--quotas", choices=("none", "both", "on"), default="none")
    arguments = parser.parse_args()
    load = Generator(frames("load"))
    with tempfile.TemporaryDirectory(prefix="kbroker-log-", dir=os.environ.get("KBROKER_BENCH_DIR")) as name:
        folder = Path(name)
        settings = {
            "kbroker.request.log.format": arguments.format,
            "kbroker.request.log.compression": arguments.compression,
        }
        if arguments.to != "dir":
            settings["kbroker.request.log.topic"] = "__request_log"
        if arguments.to != "topic":
            settings["kbroker.request.log.dir"] = str(folder / "files")
        off = Side(folder / "off", quotas=FAR_QUOTAS if arguments.quotas == "both" else None)
        on = Side(folder / "on", settings, FAR_QUOTAS if arguments.quotas != "none" else None)
        try:
            return measure(arguments, off, on, load)
        finally:
            for side in (off, on):
                side.broker.stop()


def measure(arguments: argparse.Namespace, off: Side, on: Side, load: Generator) -> int:
    def count(name: str) -> float:
        return on.metric(f"kbroker_request_log_records_{name}_total")

    for side in (off, on):
        side.run(arguments, load, settle_s=SETTLE_S)
        side.cpu_us.clear()
    ratios = []
    for number in range(arguments.pairs):
        order = (off, on) if number % 2 == 0 else (on, off)
        written, dropped = count("written"), count("dropped")
        results = {side: side.run(arguments, load, settle_s=SETTLE_S) for side in order}
        lost, written = count("dropped") - dropped, count("written") - written
        if lost or written < results[on]["requests"]:
            print(f"FAILED: {lost:.0f} records dropped, {written:.0f} written of {results[on]['requests']}")
            return 1
        ratios.append(on.cpu_us[-1] / off.cpu_us[-1])
        rates = " and ".join(f"{results[side]['requests_per_s']:.0f}" for side in (off, on))
        print(f"off {off.cpu_us[-1]:.2f} us, on {on.cpu_us[-1]:.2f} us, ratio {ratios[-1]:.3f}, at {rates} req/s")
    median = statistics.median(ratios)
    per_record = statistics.median(b - a for a, b in zip(off.cpu_us, on.cpu_us, strict=True))
    print(f"median of {len(ratios)} pairs: {median:.3f} (accepted: {ACCEPTED}), {per_record:.2f} us a record")
    return 0 if median <= ACCEPTED else 1


if __name__ == "__main__":
    sys.exit(main())
