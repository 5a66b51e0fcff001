"""CPU of a broker per request as it grows: throttled channels, connections, partitions, topics.

    python bench/growth.py [--only NAME ...] [--rounds 3] [--seconds 1.5]

Each figure is the CPU time of the broker's process per unit of work, for one small and several larger sizes of the same
broker; a row's factor is the cost at the largest size divided by that at the smallest. The limit of descriptors bounds
the numbers of connections. Accepted: at most 1.20.
"""

import argparse
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.loads.generator import Frame, Generator, produce_frame
from bench.loads.peers import Server, cpu_ns, kbroker, make_topic
from bench.neighbours.common import set_quota
from tests.support import wire
from tests.support.client import Client, new_topics

ACCEPTED = 1.20
EACH_PROCESS = 10_000  # connections of one holder process
SPARE = 4_000  # descriptors for files and other uses of the broker
TOPIC = "load"
BATCH = wire.batch([b"x" * 100])
PRODUCE = produce_frame(wire.produce(TOPIC, 0, BATCH), TOPIC)
Cost = Callable[[], float]


class Growth:
    """Rows of one broker at a time."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds, self._seconds = rounds, seconds

    def cost(self, server: Server, frame: Frame, connections: int = 8, in_flight: int = 5, units: int = 1) -> float:
        """Return microseconds of CPU per unit of a load's requests, the median of the rounds."""
        load, found = Generator({"growth": frame}), []
        load.run(
            server.port, "growth", connections, in_flight, max(0.5, len(frame.others) / 2_000)
        )  # each request at least once
        for _ in range(self._rounds):
            before = cpu_ns(server.pid)
            figures = load.run(server.port, "growth", connections, in_flight, self._seconds)
            found.append((cpu_ns(server.pid) - before) / figures["requests"] / units / 1000)
        return float(median(found))

    def throttled(self) -> Iterator[tuple[int, float]]:
        """Yield the cost of another client's Produce beside increasing numbers of throttled channels."""
        settings = {"quota.window.size.seconds": "600", "socket.listen.backlog.size": "4096"}
        with kbroker(settings) as server:
            make_topic(server, TOPIC)
            set_quota(server.bootstrap, "slow", "producer_byte_rate", 1)
            yield from self._beside(server, "slow")

    def connections(self) -> Iterator[tuple[int, float]]:
        """Yield the cost of a Produce beside increasing numbers of idle connections."""
        with kbroker({"socket.listen.backlog.size": "4096"}) as server:
            make_topic(server, TOPIC)
            yield from self._beside(server, "")

    def _beside(self, server: Server, client_id: str) -> Iterator[tuple[int, float]]:
        most = min(50_000, max(100, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE))
        with ExitStack() as stack:
            count = 0
            for size in (*(size for size in (1, 100, 10_000) if size < most), most):
                while count < size:
                    more = min(size - count, EACH_PROCESS)
                    stack.enter_context(held(server.port, more, client_id))
                    count += more
                yield size, self.cost(server, PRODUCE)

    def partitions(self) -> Iterator[tuple[int, float]]:
        """Yield the cost of a Produce to one of increasing numbers of partitions, all used in turn."""
        with kbroker() as server:
            requests: list[bytes] = []
            for size in (1, 100, 1_500, 5_000):
                while len(requests) < size:
                    topic, more = f"{TOPIC}-{len(requests):05}", min(size - len(requests), 1_000)
                    make_topic(server, topic, more)
                    requests += [wire.produce(topic, index, BATCH) for index in range(more)]
                frame = produce_frame(requests[0], f"{TOPIC}-00000")
                yield size, self.cost(server, Frame(requests[0], frame.error_at, requests[1:]), 2, 20)

    def topics(self) -> Iterator[tuple[int, float]]:
        """Yield the cost per topic of a Metadata response with all topics."""
        for size, server in self._topics():
            everything = wire.header(wire.METADATA, 1) + b"\xff\xff\xff\xff"
            yield size, self.cost(server, Frame(everything), 1, 1, size)

    def named_topic(self) -> Iterator[tuple[int, float]]:
        """Yield the cost of a Metadata request for one of increasing numbers of topics."""
        for size, server in self._topics():
            one = wire.header(wire.METADATA, 4) + (1).to_bytes(4, "big") + wire.text("topic-000000") + b"\0"
            yield size, self.cost(server, Frame(one))

    def _topics(self) -> Iterator[tuple[int, Server]]:
        with kbroker() as server, Client(server.bootstrap, timeout=300) as client:
            count = 0
            for size in (100, 1_000, 10_000):
                while count < size:
                    more = min(size - count, 2_000)
                    body = new_topics(*(f"topic-{count + n:06}" for n in range(more)))
                    response = client.call("CreateTopics", 7, {**body, "timeoutMs": 250_000})
                    if any(row["ErrorCode"] for row in response["Topics"]):
                        raise RuntimeError(f"no {size:,} topics: {response['Topics'][0]}")
                    count += more
                yield size, server


@contextmanager
def held(port: int, count: int, client_id: str) -> Iterator[None]:
    """Hold connections in another process; with a client id, throttle each after one Produce."""
    command = [sys.executable, __file__, "--hold", str(port), str(count), client_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise RuntimeError(f"{count:,} connections could not be made")
        try:
            yield
        finally:
            holder.stdin.close()


def hold(port: int, count: int, client_id: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = PRODUCE.request
    request = request[:8] + wire.text(client_id) + request[8 + 2 + len("raw") :]
    source = f"127.0.0.{2 + os.getpid() % 250}"  # an address has fewer ports than all holders have connections
    connections = []
    for _ in range(count):
        connection = wire.Connection.__new__(wire.Connection)
        connection.socket = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
        connections.append(connection)
        if client_id:
            connection.ask(request)
    print("held", flush=True)
    sys.stdin.read()


ROWS = {
    "throttled": "a Produce beside throttled channels",
    "connections": "a Produce beside idle connections",
    "partitions": "a Produce to one of the partitions, all in turn",
    "topics": "one topic in the Metadata of all topics",
    "named_topic": "Metadata of one topic",
}


def main() -> int:
    if sys.argv[1:2] == ["--hold"]:
        hold(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    growth, worst = Growth(given.rounds, given.seconds), 0.0
    print("| unit of work | CPU at each size | factor |\n|---|---|---|")
    for name in given.only:
        begun, found = time.monotonic(), []
        for size, cost in getattr(growth, name)():
            found.append((size, cost))
            print(
                f"{name}, {size:,}: {cost:.2f} us after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True
            )
        shown = ", ".join(f"{size:,}: {cost:.2f} us" for size, cost in found)
        factor = found[-1][1] / found[0][1]
        worst = max(worst, factor)
        print(f"| {ROWS[name]} | {shown} | {factor:.2f} |", flush=True)
    return 0 if worst <= ACCEPTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
