"""Effect of ten thousand throttled channels on another client: python bench/neighbours/throttled.py

10,000 connections have a client id each. In each pair of measurements, all are first idle and then throttled for some
seconds, with one more request in their sockets that the broker must not read. Prints another client's p99 for each
pair, and the median of the ratios.

Accepted: at most 1.10.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.neighbours.common import Probe, p99, served, set_quota
from tests.support.client import Client

ACCEPTED = 1.10
WINDOWS = 2  # of a second each: the recorded bytes of a channel expire when its throttle ends


def measure(channels: int, pairs: int, seconds: float) -> list[float]:
    """Return the ratios of another client's p99, all throttled divided by all idle, of each valid pair."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # a millisecond per channel for sending and reading, and a second in reserve
    throttle_s = seconds + channels / 1000 + 1
    settings = {
        "num.network.threads": "1",
        "kbroker.quota.max.counters": str(2 * channels),
        "quota.window.num": str(WINDOWS),
        "socket.listen.backlog.size": "1024",  # beyond Kafka's 50 the system lets a client wait for a second
    }
    with served(settings) as broker, Probe(broker.bootstrap) as probe, ExitStack() as stack:
        set_quota(broker.bootstrap, "raw", "producer_byte_rate", 1e12)
        clients = [stack.enter_context(Client(broker.bootstrap, f"c{n}", 120)) for n in range(channels)]
        smallest = min(client.produce("t", 60) for client in clients)
        for client in clients:
            client.end()
        # the delay: the size divided by the rate, a whole number, minus the windows
        set_quota(broker.bootstrap, None, "producer_byte_rate", smallest // (throttle_s + WINDOWS))
        probe.run(2)
        ratios = []
        for _ in range(pairs):
            idle = p99(probe.run(seconds))
            begun = time.monotonic()
            for client in clients:
                client.produce("t", 60)
            delays = [client.end()["ThrottleTimeMs"] for client in clients]
            for client in clients:
                client.begin("ApiVersions", 0, {})
            throttled = p99(probe.run(seconds))
            early = sum(client.has_response for client in clients)
            left_s = min(delays) / 1000 - (time.monotonic() - begun)
            if left_s < 0:
                print(f"this pair does not count: the first throttle ended {-left_s:.1f} s too soon")
            elif early:
                raise RuntimeError(f"{early} throttled channels were read")
            else:
                ratios.append(throttled / idle)
                print(f"p99 {idle:.3f} ms idle, {throttled:.3f} ms throttled, ratio {ratios[-1]:.3f}", flush=True)
            for client in clients:
                client.end()
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    ratios = measure(given.channels, given.pairs, given.seconds)
    median = statistics.median(ratios)
    print(f"{given.channels} throttled channels, {len(ratios)} pairs: median ratio {median:.3f} (accepted: {ACCEPTED})")
    return 0 if median <= ACCEPTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
