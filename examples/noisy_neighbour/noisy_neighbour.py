"""Noisy neighbour: found by `kbroker quotas explain`, limited in a trial by a shadow quota, then by its promotion.

    python examples/noisy_neighbour/noisy_neighbour.py [--seconds 8] [--http 127.0.0.1:9400]

Three clients share a broker. web-shop sends one order after another and measures the duration of each; reports reads
the orders; batch-loader sends as much as its connections accept. Every command is printed before it runs, in the form
in which a user would type it. Meanwhile the console is at the address that the broker prints, below /console. The
program requires the extra `metrics`; the extra `console` adds the pages, and `top` the table of `kbroker top`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

from kbroker.client.admin import EARLIEST
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer

TOPIC, BULK = "orders", "bulk"
LOADERS = 3  # connections of batch-loader
BULK_BYTES = 700_000
QUOTA = "producer_byte_rate=4MiB"


def kbroker(*words: str) -> list[str]:
    return [sys.executable, "-m", "kbroker", *words]


def run(*words: str) -> None:
    """Print a command of `kbroker` as a user would type it, and run it."""
    print(f"\n$ kbroker {' '.join(words)}", flush=True)
    subprocess.run(kbroker(*words), check=True)


# ---------------------------------------------------------------- the clients, each a process


def web_shop(address: str) -> None:
    """Send an order, wait until it is acknowledged, print the milliseconds it took, and repeat."""
    rng = random.Random(1)
    with Cluster(address, client_id="web-shop") as cluster, Producer(cluster) as producer:
        while True:
            order = rng.randbytes(400)
            started = time.perf_counter()
            producer.send(TOPIC, order)
            producer.flush()
            print(f"{(time.perf_counter() - started) * 1000:.3f}", flush=True)
            time.sleep(0.01)


def reports(address: str) -> None:
    """Read all orders repeatedly."""
    with Cluster(address, client_id="reports") as cluster:
        while True:
            consumer = Consumer(cluster, {(TOPIC, 0): EARLIEST}, max_wait_ms=200)
            for _ in range(50):
                consumer.poll()
                time.sleep(0.1)


def batch_loader(address: str) -> None:
    """Send large records as fast as the connections accept them."""

    def load() -> None:
        record = random.Random(2).randbytes(BULK_BYTES)
        with Cluster(address, client_id="batch-loader") as cluster, Producer(cluster, acks=1) as producer:
            while True:
                producer.send(BULK, record)
                producer.flush()

    threads = [threading.Thread(target=load, daemon=True) for _ in range(LOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


CLIENTS = {"web-shop": web_shop, "reports": reports, "batch-loader": batch_loader}


# ---------------------------------------------------------------- the phases


class Story:
    """Broker with its clients, and the durations that web-shop has measured in the current phase."""

    def __init__(self, http: str) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._times: list[float] = []
        self.address = self._start_broker(http)

    def _start_broker(self, http: str) -> str:
        settings = ("--listener", "127.0.0.1:0", "--in-memory", "--set", f"kbroker.metrics.listener={http}")
        settings += ("--set", "log.retention.check.interval.ms=500")  # otherwise batch-loader fills the memory
        print(f"$ kbroker serve {' '.join(settings)} &", flush=True)
        broker = subprocess.Popen(kbroker("serve", *settings), stdout=subprocess.PIPE, text=True)
        self._processes.append(broker)
        assert broker.stdout is not None
        line = broker.stdout.readline()
        print(line, end="", flush=True)
        if "ready:" not in line:
            raise SystemExit("the broker did not start")
        return line.split("://", 1)[1].split(",", 1)[0].strip()

    def start(self, client: str) -> None:
        """Start a client; collect the durations that web-shop prints."""
        words = [sys.executable, __file__, "--client", client, "--address", self.address]
        has_times = client == "web-shop"
        process = subprocess.Popen(words, stdout=subprocess.PIPE if has_times else None, text=True)
        self._processes.append(process)
        if has_times:
            assert process.stdout is not None
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def _listen(self, lines: object) -> None:
        for line in lines:  # type: ignore[attr-defined]
            self._times.append(float(line))

    def measure(self, what: str, seconds: float) -> float:
        """Let the clients run, print the durations of web-shop's orders, and return their 99th percentile."""
        self._times.clear()
        time.sleep(seconds)
        times = sorted(self._times[:])
        if len(times) < 10:
            raise SystemExit(f"web-shop sent {len(times)} orders in {seconds:g} s: too few to say anything")
        slowest = times[int(0.99 * len(times))]
        print(f"{what:42} median {statistics.median(times):7.1f} ms   99 % within {slowest:7.1f} ms", flush=True)
        return slowest

    def stop(self) -> None:
        """Stop the clients, then the broker."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()


def show(seconds: float, http: str) -> None:
    story = Story(http)
    broker = ("--bootstrap-server", story.address)
    try:
        run("topics", "create", TOPIC, *broker)
        run(
            "topics", "create", BULK, "--config", "retention.bytes=50000000", "--config", "segment.bytes=20000000",
            *broker,
        )  # fmt: skip
        run("quotas", "set", "--client-id-default", "producer_byte_rate=1GiB", *broker)

        print("\n# web-shop sends orders, reports reads them")
        story.start("web-shop")
        story.start("reports")
        time.sleep(2)
        story.measure("orders of web-shop, alone", seconds / 2)

        print("\n# batch-loader joins them")
        story.start("batch-loader")
        time.sleep(2)
        before = story.measure("beside batch-loader", seconds)

        print("\n# Why is web-shop slow? No quota delays it. Which client uses how much?")
        run("quotas", "explain", "--client-id", "web-shop", *broker)
        if find_spec("rich") is not None:  # pip install 'kbroker[top]'
            run("top", "--once", "--every", "1s", *broker)
        run("quotas", "explain", "--client-id", "batch-loader", *broker)

        print("\n# What would a quota do? A shadow evaluates the live traffic, and delays nothing")
        run("quotas", "set", "--client-id", "batch-loader", f"shadow.{QUOTA}", *broker)
        story.measure("with the shadow", seconds)
        run("quotas", "explain", "--client-id", "batch-loader", *broker)

        print("\n# It would have delayed batch-loader and no other client: promote it")
        run("quotas", "shadow", "promote", "--client-id", "batch-loader", *broker)
        time.sleep(2)
        after = story.measure("with the quota", seconds)
        print(f"\nThe slowest orders of web-shop: {before:.1f} ms beside batch-loader, {after:.1f} ms with the quota")
    finally:
        story.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="how long each phase is")
    parser.add_argument("--http", default="127.0.0.1:0", help="address of the console; by default a free port")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is None:
        show(options.seconds, options.http)
        return
    with contextlib.suppress(KeyboardInterrupt, BrokerConnectionError, BrokenPipeError):
        CLIENTS[options.client](options.address)


if __name__ == "__main__":
    main()
