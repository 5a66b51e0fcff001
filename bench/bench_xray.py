"""Cost of an X-ray for a broker: CPU of its process per Produce, with and without an X-ray per second, interleaved.

    python bench/bench_xray.py [--pairs 7] [--seconds 3] [--rate 100000] [--every 1.0] [--connections 8]

One broker gets one load (open loop, one record of 100 bytes per request), alternately without X-rays, and with one
every ``--every`` seconds over HTTP. An X-ray takes microseconds, less than the noise in a second of requests, so
``--every 0.02`` is suitable for measuring one: the last line has the CPU of an X-ray. Prints each pair's CPU and ratio,
and the median.

Accepted (two cores, Linux, CPython 3.11): at most 1.01 with an X-ray per second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.loads.generator import Generator, frames  # noqa: E402
from bench.side import Side  # noqa: E402

ACCEPTED = 1.01


class Looker:
    """Thread that requests an X-ray at an interval while the block runs."""

    def __init__(self, port: int, every_s: float) -> None:
        from kbroker.client.http_port import HttpPort

        self._port = HttpPort(f"127.0.0.1:{port}")
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._port.get("/xray")
            self.looks += 1

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join(20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=64)
    arguments = parser.parse_args()
    load = Generator(frames("load"))
    with tempfile.TemporaryDirectory(prefix="kbroker-xray-", dir=os.environ.get("KBROKER_BENCH_DIR")) as name:
        side = Side(Path(name))
        try:
            return measure(arguments, side, load)
        finally:
            side.broker.stop()


def measure(arguments: argparse.Namespace, side: Side, load: Generator) -> int:
    side.run(arguments, load)
    ratios, looks_us = [], []
    for number in range(arguments.pairs):
        cpu: dict[bool, float] = {}
        requests = looks = 0
        for is_looked_at in (False, True) if number % 2 == 0 else (True, False):
            if is_looked_at:
                with Looker(side.metrics_port, arguments.every) as looker:
                    requests = side.run(arguments, load)["requests"]
                looks = looker.looks
            else:
                side.run(arguments, load)
            cpu[is_looked_at] = side.cpu_us[-1]
        ratios.append(cpu[True] / cpu[False])
        looks_us.append((cpu[True] - cpu[False]) * requests / max(1, looks))
        print(
            f"without {cpu[False]:.3f} us, with {looks} looks {cpu[True]:.3f} us, ratio {ratios[-1]:.4f}, "
            f"at {requests / arguments.seconds:.0f} req/s"
        )
    median, look_us = statistics.median(ratios), statistics.median(looks_us)
    print(f"median of {len(ratios)} pairs: {median:.4f} (accepted: {ACCEPTED}), {look_us / 1000:.2f} ms of CPU a look")
    return 0 if median <= ACCEPTED else 1


if __name__ == "__main__":
    sys.exit(main())
