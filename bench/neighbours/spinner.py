"""Effect of a busy-polling fetcher on another client: python bench/neighbours/spinner.py [--quota 5] [--pairs 9]

A client in its own process sends sequential Fetch requests with max wait 0. In each pair of measurements, it is first
idle and then polls under a request_percentage. Prints another client's p99 for both, pair by pair, and at the end the
charged share of the poller over the whole run, by the metric of its counter, and one measurement without a quota.

Accepted: share within 10 % of the quota, median of the ratios below 1.5.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.neighbours.common import Probe, p99, served, set_quota
from kbroker.protocol import codec
from tests.support import wire
from tests.support.client import fetch_body

ACCEPTED, SHARE = 1.5, 0.1
WINDOW_S = 11


def spin(bootstrap: str) -> None:
    """Run the busy-polling client: a line `go` starts the polling, and a line `stop` ends it."""
    frame = codec.encode_request_frame(1, 11, 0, "spinner", fetch_body("t", 0, (0, -1)))
    wanted = threading.Event()

    def go_on() -> None:
        with wire.Connection(bootstrap, 120) as connection:
            while True:
                wanted.wait()
                connection.send_raw(frame)
                connection.receive()

    threading.Thread(target=go_on, daemon=True).start()
    for line in sys.stdin:
        (wanted.set if line.strip() == "go" else wanted.clear)()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quota", type=float, default=5.0)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    with (
        served({"kbroker.metrics.listener": "127.0.0.1:0"}) as broker,
        Probe(broker.bootstrap) as probe,
    ):
        (url,) = {found[0] for line in broker.output if (found := re.search(r"http://[\d.:]+", line))}

        def share() -> float:
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
                text = response.read().decode()
            found = re.search(r'^kafka_request_request_time{client_id="spinner",user=""} (\S+)', text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        spinner = subprocess.Popen(
            [sys.executable, __file__, "--spin", broker.bootstrap], stdin=subprocess.PIPE, text=True
        )
        assert spinner.stdin is not None

        def command(word: str) -> None:
            assert spinner.stdin is not None
            spinner.stdin.write(f"{word}\n")
            spinner.stdin.flush()

        set_quota(broker.bootstrap, "spinner", "request_percentage", given.quota)
        probe.run(2)
        ratios = []
        for _ in range(given.pairs):
            alone = p99(probe.run(given.seconds))
            command("go")
            beside = p99(probe.run(given.seconds))
            command("stop")
            ratios.append(beside / alone)
            print(f"p99 {alone:.3f} ms alone, {beside:.3f} ms beside, ratio {ratios[-1]:.3f}", flush=True)
        command("go")
        begun, used = time.monotonic(), []
        while time.monotonic() - begun < WINDOW_S + 20:
            time.sleep(0.25)
            if time.monotonic() - begun > WINDOW_S:
                used.append(share())
        set_quota(broker.bootstrap, "spinner", "request_percentage", None)
        without = p99(probe.run(given.seconds))
        command("stop")
        spinner.kill()
        spinner.wait()
    median, mean = statistics.median(ratios), statistics.fmean(used)
    print(f"quota {given.quota} %: charged {mean:.3f} % on average over 20 s, {min(used):.3f} to {max(used):.3f}")
    print(f"p99 without a quota: {without:.3f} ms")
    print(f"{len(ratios)} pairs: median ratio {median:.3f} (accepted: {ACCEPTED})")
    return 0 if median < ACCEPTED and abs(mean / given.quota - 1) <= SHARE else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--spin"]:
        spin(sys.argv[2])
    else:
        raise SystemExit(main())
