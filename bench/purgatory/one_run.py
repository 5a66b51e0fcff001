"""Run one design once in its own process, and print one JSON object.

    python bench/purgatory/one_run.py --design wheel|heap|bare [--mix low|high] [--rate R] [--n N] [--warmup N] ...

Options and figures are named as by the program for Kafka's purgatory. Further figures: given_up (memory or time),
stall_max_ms and stalled_ms (delays of the generator above a millisecond without sleep), rss_*_mb (resident memory of
the whole process, with the interpreter and 16 bytes per request of the harness), offers_per_request, queue_items and
live_buckets (of the delay queue, sampled), reaper_wakeups_per_s.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.purgatory.run_point import MIXES, run_once


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--design", choices=("wheel", "heap", "bare"), default="wheel")
    parser.add_argument("--mix", choices=tuple(MIXES), default="low")
    parser.add_argument("--p50", type=float, help="median latency in ms, instead of the mix's")
    parser.add_argument("--p75", type=float)
    parser.add_argument("--rate", type=float, default=0, help="requests per second; 0: as fast as possible")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--timeout", type=int, default=200)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--key-space", type=int, default=100)
    parser.add_argument("--fresh-keys", action="store_true")
    parser.add_argument("--purge-interval", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mb", type=int, default=0, help="give up above this resident memory; 0: no limit")
    parser.add_argument("--limit-s", type=float, default=600, help="time after which the run gives up")
    parser.add_argument("--tick", type=int, default=1)
    parser.add_argument("--wheel-size", type=int, default=20)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    p50, p75 = MIXES[options.mix]
    settings: dict[str, Any] = {
        "p50": options.p50 or p50,
        "p75": options.p75 or p75,
        "timeout_ms": options.timeout,
        "size": options.size,
        "keys": options.keys,
        "key_space": options.key_space,
        "fresh_keys": options.fresh_keys,
        "purge_interval": options.purge_interval,
        "seed": options.seed,
        "memory_mb": options.memory_mb,
        "limit_s": options.limit_s,
        "tick_ms": options.tick,
        "wheel_size": options.wheel_size,
    }
    design: Any = options.design
    if design == "heap":
        from bench.purgatory.build import old_design

        design = old_design()
    figures: dict[str, Any] = {"design": options.design, "mix": options.mix, "n": options.n, "warmup": options.warmup}
    figures |= {name: settings[name] for name in ("p50", "p75", "timeout_ms", "size", "keys", "purge_interval", "seed")}
    return figures | run_once(design, options.n, options.rate, options.warmup, **settings)


if __name__ == "__main__":
    print(json.dumps(measure(arguments())))
