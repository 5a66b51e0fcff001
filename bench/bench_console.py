"""Cost of open pages of the console: Produce requests per second with and without 100 browsers, in interleaved pairs.

    python bench/bench_console.py [--pairs 5] [--seconds 4] [--browsers 100] [--page overview|throughput|xray...]

One broker is under a closed loop of Produce (one record of 100 bytes per request). In one half of each pair browsers
have a page open: each requests its live part after the interval that the broker has sent, as console.js does, on its
own connection. Prints requests per second of both halves, their ratio and the median, and the broker's CPU per request
for a page and per second for all open pages, measured without other load.

Accepted (two cores, Linux, CPython 3.11): a median of at least 0.98.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.loads import peers  # noqa: E402
from bench.loads.generator import Generator, frames  # noqa: E402
from tests.support.broker import BrokerProcess  # noqa: E402
from tests.support.wire import Connection, create_topic  # noqa: E402

ACCEPTED = 0.98
FILES = ("console.css", "htmx.min.js", "console.js")
ALONE = 300  # requests without other load


def ask(port: int, path: str, viewer: str = "") -> int:
    """Send one request on a new connection; return the requested interval in ms until the next request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"KB-Part": "1", "KB-Viewer": viewer} if viewer else {}
        connection.request("GET", f"/console/{path}", headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
        return int(response.headers.get("KB-Again-Ms", "0"))
    finally:
        connection.close()


class Browsers:
    """Open pages that send requests from one thread."""

    def __init__(self, port: int, page: str, count: int) -> None:
        self._port, self._page = port, page
        self._due = {f"viewer {number}": time.monotonic() + number * 0.1 for number in range(count)}
        self._stop = threading.Event()
        self.requests = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Browsers:
        ask(self._port, self._page)
        for file in FILES:
            ask(self._port, f"assets/{file}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            viewer = min(self._due, key=lambda one: self._due[one])
            if self._stop.wait(max(0.0, self._due[viewer] - time.monotonic())):
                return
            again_ms = ask(self._port, self._page, viewer)
            self._due[viewer] = time.monotonic() + again_ms / 1000
            self.requests += 1


def cpu_per_request_ms(broker: BrokerProcess, port: int, page: str) -> float:
    """Return the broker's CPU in ms per request for a page, whose addresses differ so that none is cached."""
    before = peers.cpu_seconds(broker.pid)
    for number in range(ALONE):
        ask(port, f"{page}?n={number}", "viewer")
    return (peers.cpu_seconds(broker.pid) - before) / ALONE * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--browsers", type=int, default=100)
    parser.add_argument("--page", default="")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=5)
    arguments = parser.parse_args()
    page = "" if arguments.page == "overview" else arguments.page
    load = Generator(frames("load"))
    with tempfile.TemporaryDirectory(prefix="kbroker-console-") as name:
        port = peers.free_port()
        broker = BrokerProcess(Path(name), {"kbroker.metrics.listener": f"127.0.0.1:{port}"})
        broker.start()
        try:
            with Connection(broker.bootstrap) as admin:
                admin.ask(create_topic("load", 1))

            def run() -> float:
                shape = (arguments.connections, arguments.in_flight, arguments.seconds)
                return float(load.run(broker.port, "produce", *shape)["requests_per_s"])

            run()
            ratios, asked = [], 0
            for number in range(arguments.pairs):
                rates: dict[bool, float] = {}
                for is_open in (False, True) if number % 2 == 0 else (True, False):
                    if is_open:
                        with Browsers(port, page, arguments.browsers) as browsers:
                            # each browser has sent a request, and the interval for their number applies
                            time.sleep(0.1 * arguments.browsers + 1)
                            asked = browsers.requests
                            rates[is_open] = run()
                            asked = browsers.requests - asked
                    else:
                        rates[is_open] = run()
                ratios.append(rates[True] / rates[False])
                each = asked / arguments.seconds
                print(f"{rates[False]:,.0f} requests/s, {rates[True]:,.0f} beside {each:.1f} pages/s: {ratios[-1]:.3f}")
            median = statistics.median(ratios)
            print(f"median of {len(ratios)} pairs: {median:.3f} (accepted: {ACCEPTED})")
            print(f"CPU per page made anew: {cpu_per_request_ms(broker, port, page):.2f} ms")
            print(f"CPU per page of the last second: {cpu_per_request_ms(broker, port, 'alive'):.2f} ms")
            with Browsers(port, page, arguments.browsers) as browsers:
                time.sleep(0.1 * arguments.browsers + 1)
                asked, used = browsers.requests, peers.cpu_seconds(broker.pid)
                time.sleep(10)
                used, asked = peers.cpu_seconds(broker.pid) - used, browsers.requests - asked
            print(f"without other load: {asked / 10:.1f} pages/s, {used * 100:.1f} ms of CPU a second")
            return 0 if median >= ACCEPTED else 1
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
