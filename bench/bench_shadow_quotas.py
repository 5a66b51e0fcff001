"""Cost of shadow quotas: CPU of the broker's process per Produce, without quotas, with quotas, and with shadow quotas.

    python bench/bench_shadow_quotas.py [--rounds 9] [--seconds 2] [--rate 20000] [--other FOLDER]
        [--verdicts 1000000] [--connections 8] [--in-flight 64]

Brokers run side by side and get the load (open loop, one record of 100 bytes per request) in turn, so that other load
of the machine affects all. `none`: no quota; `enforced`: byte and time quotas of the user, far above the load;
`shadow`: the same limits as shadow quotas; `violated`: shadow quotas with a verdict for each request. --other: folder
of another build's packages (the editable install's below `build`), whose `none` and `enforced` run beside this build's.
Prints the median CPU per request of each broker, and of its ratio to the previous broker in the same round.

--verdicts instead loads `violated` alone until it has the number of verdicts, and prints the process's memory.
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

from bench.loads import peers  # noqa: E402
from bench.loads.generator import Generator, frames  # noqa: E402
from bench.side import FAR_QUOTAS, Side  # noqa: E402
from tests.support.broker import rss_bytes  # noqa: E402

SHADOWS = {f"shadow.{key}": limit for key, limit in FAR_QUOTAS.items()}
VIOLATED = {"shadow.producer_byte_rate": 1.0, "shadow.request_percentage": 1e-6}
SETTINGS = {"retention.bytes": "1", "log.segment.bytes": str(64 << 20)}


def run(side: Side, arguments: argparse.Namespace, load: Generator) -> None:
    side.run(arguments, load, cpu_s=lambda pid: peers.cpu_ns(pid) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--verdicts", type=int)
    arguments = parser.parse_args()
    load = Generator(frames("load"))
    sides: list[Side] = []
    with tempfile.TemporaryDirectory(prefix="kbroker-shadow-", dir=os.environ.get("KBROKER_BENCH_DIR")) as name:
        folder = Path(name)
        try:
            if arguments.verdicts:
                sides.append(Side(folder / "violated", SETTINGS, VIOLATED))
                watch_memory(arguments, sides[0], load)
                return
            for name, quotas in (("none", {}), ("enforced", FAR_QUOTAS), ("shadow", SHADOWS), ("violated", VIOLATED)):
                if arguments.other and name in ("none", "enforced"):
                    sides.append(Side(folder / f"other {name}", SETTINGS, quotas, arguments.other))
                sides.append(Side(folder / name, SETTINGS, quotas))
            compare(arguments, sides, load)
        finally:
            for side in sides:
                side.broker.stop()


def compare(arguments: argparse.Namespace, sides: list[Side], load: Generator) -> None:
    """Load each broker in turn, for the number of rounds."""
    for side in sides:
        run(side, arguments, load)
        side.cpu_us.clear()
    for number in range(arguments.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            run(side, arguments, load)
    for before, side in zip([sides[0], *sides], sides, strict=False):
        ratios = sorted(b / a for a, b in zip(before.cpu_us, side.cpu_us, strict=True))
        print(
            f"{side.name:15} {statistics.median(side.cpu_us):6.2f} us a request, {statistics.median(ratios):.3f} of "
            f"{before.name} ({ratios[0]:.3f} to {ratios[-1]:.3f}), least {min(side.cpu_us):.2f}"
        )


def watch_memory(arguments: argparse.Namespace, side: Side, load: Generator) -> None:
    """Load a broker until its shadow quotas have the number of verdicts."""
    made = 0
    while made < arguments.verdicts:
        run(side, arguments, load)
        made = int(side.metric("kbroker_shadow_verdicts_total"))
        print(f"{made:9,} verdicts, {rss_bytes(side.broker.pid) / 2**20:.1f} MiB, {side.cpu_us[-1]:.2f} us a request")


if __name__ == "__main__":
    main()
