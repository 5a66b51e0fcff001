"""Number of cores that a broker can use: a model from measured service times, compared on one core and on two.

    python bench/cores.py [--seconds 2] [--rounds 3] [--queue-us 0.1]

Load: Produce requests of 100 B, 8 connections, 5 in flight. A request passes a network thread and a handler, and takes
two locks: the lock of the request queue, once per batch of a connection, and the append lock of its partition. The rate
is limited by the slowest part:

    min(cores / all CPU, network threads / network CPU, handlers / handler CPU, partitions / append, batch / queue)

The CPU of network threads and of handlers is that of the threads by name, with ``kbroker.network.thread.helps=false``;
an append holds its lock for about the CPU that Produce takes beyond ApiVersions. Clients need further cores.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.loads.generator import Frame, Generator, produce_frame
from bench.loads.peers import Server, cpu_ns, kbroker, make_topic
from tests.support import wire

TOPIC, PARTITIONS = "load", 64
CONNECTIONS, IN_FLIGHT = 8, 5
HAND_OVER = {"kbroker.network.thread.helps": "false"}
BATCH = wire.batch([b"x" * 100])
REQUESTS = [wire.produce(TOPIC, index, BATCH) for index in range(PARTITIONS)]
ONE = produce_frame(REQUESTS[0], TOPIC)
FRAMES = {
    "one": ONE,
    "many": Frame(ONE.request, ONE.error_at, REQUESTS[1:]),
    "empty": Frame(wire.header(wire.API_VERSIONS, 0), error_at=4),
}


class Measured(NamedTuple):
    """Figures of one load: requests per second, and microseconds of CPU per request."""

    rate: float
    all_us: float
    network_us: float
    handler_us: float
    client_us: float


class Line(NamedTuple):
    """Service times of a request in microseconds."""

    network_us: float
    handler_us: float
    append_us: float
    queue_us: float  # of a request batch
    batch: float

    def rate(self, cores: int, network_threads: int, handlers: int, partitions: int) -> tuple[float, str]:
        """Return the predicted requests per second, and the part that limits them."""
        bounds = {
            "cores": cores / (self.network_us + self.handler_us),
            "network threads": network_threads / self.network_us,
            "handlers": handlers / self.handler_us,
            "append lock": partitions / self.append_us,
            "queue lock": self.batch / self.queue_us,
        }
        part = min(bounds, key=lambda name: bounds[name])
        return bounds[part] * 1e6, part


def thread_cpu_us(pid: int, name: str) -> float:
    """Return the CPU time of the threads whose name begins with ``name``."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        begin, _, rest = (task / "stat").read_text().rpartition(")")
        if begin.partition("(")[2].startswith(name):
            fields = rest.split()
            total += int(fields[11]) + int(fields[12])
    return total * 1e6 / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_cores(server: Server, of_broker: Iterable[int], of_client: Iterable[int]) -> Iterator[None]:
    """Run the broker's threads and the client on given cores."""
    before = os.sched_getaffinity(0)
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), of_broker)
    os.sched_setaffinity(0, of_client)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(server: Server, frame: str, rounds: int, seconds: float) -> Measured:
    """Return the medians of several runs of a load."""
    load, found = Generator(FRAMES), []
    load.run(server.port, frame, CONNECTIONS, IN_FLIGHT, 0.5)
    for _ in range(rounds):
        names = ("network", "handler")
        before = cpu_ns(server.pid) / 1000, *(thread_cpu_us(server.pid, name) for name in names)
        children = os.times()
        figures = load.run(server.port, frame, CONNECTIONS, IN_FLIGHT, seconds)
        after = cpu_ns(server.pid) / 1000, *(thread_cpu_us(server.pid, name) for name in names)
        now = os.times()
        client_us = (now.children_user + now.children_system - children.children_user - children.children_system) * 1e6
        count = figures["requests"]
        spent = [(b - a) / count for a, b in zip(before, after, strict=True)]
        found.append(Measured(count / seconds, spent[0], spent[1], spent[2], client_us / count))
    return Measured(*(median(column) for column in zip(*found, strict=True)))


def check(rounds: int, seconds: float) -> None:
    """Print the prediction for one core from two, and for two from one, beside measured rates."""
    with kbroker() as server:
        make_topic(server, TOPIC, PARTITIONS)
        with on_cores(server, {0, 1}, {0, 1}):
            both = measure(server, "many", rounds, seconds)
        with on_cores(server, {0}, {1}):
            one = measure(server, "many", rounds, seconds)
    shared = 2e6 / (one.all_us + one.client_us)
    print(f"broker on one core: predicted {1e6 / both.all_us:,.0f} req/s, measured {one.rate:,.0f}")
    print(f"broker and client on two cores: predicted {shared:,.0f} req/s, measured {both.rate:,.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--queue-us", type=float, default=0.1, help="time for which a batch holds the queue's lock")
    given = parser.parse_args()
    with kbroker(HAND_OVER) as server:
        make_topic(server, TOPIC, PARTITIONS)
        empty, many = (measure(server, name, given.rounds, given.seconds) for name in ("empty", "many"))
    append_us = max(0.1, many.handler_us - empty.handler_us)
    line = Line(many.network_us, many.handler_us, append_us, given.queue_us, IN_FLIGHT)
    print(
        f"a Produce: network thread {line.network_us:.2f} us, handler {line.handler_us:.2f} us,"
        f" of it under the append lock {line.append_us:.2f} us; client {many.client_us:.2f} us"
    )
    check(given.rounds, given.seconds)
    print("| cores | network threads, handlers | one partition | 64 partitions |\n|---|---|---|---|")
    for cores in (1, 2, 4, 16, 64):
        for network, handlers in dict.fromkeys([(min(3, max(1, cores // 2)), 8), (max(1, cores // 3), max(8, cores))]):
            cells = (line.rate(cores, network, handlers, partitions) for partitions in (1, PARTITIONS))
            row = (f"{rate / 1000:,.0f}k/s ({part})" for rate, part in cells)
            print(f"| {cores} | {network}, {handlers} | {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
