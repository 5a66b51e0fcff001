"""Large requests of many clients at a broker with a small memory pool (KIP-72): limited memory, and equal service.

    python bench/bench_memory_pressure.py [--connections 200] [--rounds 6] [--pool-mib 64] [--json FILE]

200 connections each send sequential Produce requests of 8 MiB to a broker process with ``queued.max.request.bytes`` 64
MiB and ``socket.request.max.bytes`` 16 MiB. Accepted: the peak of the broker's resident memory (VmHWM) is below pool +
largest request + idle memory + 10 %; each request gets a response without an error; at the end the busiest connection
has at most 3 times the responses of the least busy one. ``--no-pool`` shows the same load without a pool.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import ssl
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import wire
from tests.support.broker import BrokerProcess, rss_bytes, status_bytes
from tests.support.certificates import Certificates

MIB = 1 << 20
PARTITIONS = 8
BATCH_BYTES = MIB - 512  # eight partitions with one batch each make a request of nearly 8 MiB


@dataclass(frozen=True)
class Outcome:
    """Results of one run; sizes in bytes."""

    connections: int
    request_bytes: int
    pool_bytes: int
    idle_rss: int
    peak_rss: int
    allowed_rss: int
    answered: int
    failed: int
    least: int
    most: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Responses of the busiest connection divided by those of the least busy one, at the end of the load."""
        return self.most / self.least if self.least else float("inf")

    @property
    def is_good(self) -> bool:
        return self.peak_rss < self.allowed_rss and self.failed == 0 and self.ratio <= 3

    def __str__(self) -> str:
        return (
            f"{self.connections} connections, {self.answered} requests of {self.request_bytes / MIB:.2f} MiB in "
            f"{self.seconds:.1f} s, {self.failed} failed; peak {self.peak_rss / MIB:.1f} MiB of "
            f"{self.allowed_rss / MIB:.1f} allowed (idle {self.idle_rss / MIB:.1f}); "
            f"{self.least} to {self.most} per connection, ratio {self.ratio:.2f}"
        )


def produce_request(topic: str, partitions: int = PARTITIONS) -> bytes:
    """Return a frame with its length: a batch of nearly 1 MiB for each partition, acks=1."""
    batch = wire.batch([b"v" * (BATCH_BYTES - 100)])
    body = wire.produce_to(topic, range(partitions), batch)
    return struct.pack(">i", len(body)) + body


class Client:
    """Connection that always has a request in flight."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.setblocking(False)
        self.sent = 0
        self.response = b""
        self.completed = 0
        self.failed = 0

    def write(self, frame: memoryview) -> None:
        while self.sent < len(frame):
            try:
                self.sent += self.socket.send(frame[self.sent : self.sent + MIB])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return

    def read(self) -> bool:
        """Receive once; return whether that completed a response, which is then counted."""
        try:
            piece = self.socket.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not piece:
            raise ConnectionError(f"the broker closed a connection after {self.completed} responses")
        self.response += piece
        if len(self.response) < 4 or len(self.response) < 4 + struct.unpack_from(">i", self.response)[0]:
            return False
        self.completed += 1
        self.failed += any(error_codes(self.response))
        self.response = b""
        self.sent = 0
        return True


def error_codes(response: bytes) -> list[int]:
    """Return the error code of each partition in a Produce v7 response for one topic."""
    (name,) = struct.unpack_from(">h", response, 12)
    at = 14 + name
    (count,) = struct.unpack_from(">i", response, at)
    return [struct.unpack_from(">ih", response, at + 4 + 30 * i)[1] for i in range(count)]


def load(
    port: int, frame: bytes, connections: int, rounds: int, tls: ssl.SSLContext | None = None
) -> tuple[list[Client], list[int]]:
    """Drive the load until the connections have ``rounds`` responses on average, and complete requests in flight.

    Returns: the clients, and the number of responses of each at the end of the load.
    """
    poller = selectors.DefaultSelector()
    view = memoryview(frame)
    clients = [Client(port, tls) for _ in range(connections)]
    for client in clients:
        poller.register(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
    goal, answered = rounds * connections, 0
    counts: list[int] = []
    open_clients = connections
    while open_clients:
        for key, mask in poller.select(60):
            client = key.data
            if mask & selectors.EVENT_READ and client.read():
                answered += 1
                if counts:
                    open_clients -= 1
                    poller.unregister(client.socket)
                    continue
                poller.modify(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
            if mask & selectors.EVENT_WRITE:
                client.write(view)
                if client.sent == len(view):
                    poller.modify(client.socket, selectors.EVENT_READ, client)
        if not counts and answered >= goal:
            counts = [client.completed for client in clients]
    poller.close()
    for client in clients:
        client.socket.close()
    return clients, counts


def port_of(broker: BrokerProcess, listener: str) -> int:
    """Return the port that the broker printed for a listener."""
    return next(int(found[1]) for line in broker.output if (found := re.search(rf"{listener}://[^:]+:(\d+)", line)))


def run(
    connections: int = 200,
    rounds: int = 6,
    pool_bytes: int = 64 * MIB,
    folder: Path | None = None,
    *,
    partitions: int = PARTITIONS,
    certificates: Certificates | None = None,
) -> Outcome:
    """Run the load against a new broker.

    Args: ``pool_bytes``: -1 without a pool; ``partitions``: a request has 1 MiB for each; ``certificates``: for TLS.
    """
    largest = 2 * partitions * MIB
    with tempfile.TemporaryDirectory(prefix="kbroker-pressure-", dir=folder) as data:
        settings = {
            "queued.max.request.bytes": str(pool_bytes),
            "socket.request.max.bytes": str(largest),
            "num.partitions": str(partitions),
            "socket.listen.backlog.size": "1024",
            # Written records are not read: sealed segments are deleted at once.
            "log.segment.bytes": str(16 * MIB),
            "log.retention.bytes": str(16 * MIB),
            "log.retention.check.interval.ms": "200",
            "log.segment.delete.delay.ms": "0",
        }
        tls = None
        if certificates is not None:
            tls = ssl.create_default_context(cafile=certificates.ca)
            settings |= {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "ssl.keystore.location": str(certificates.server),
            }
        broker = BrokerProcess(Path(data), settings)
        broker.start()
        try:
            with wire.Connection(broker.bootstrap) as admin:
                admin.ask(wire.create_topic("pressure", partitions))
            frame = produce_request("pressure", partitions)
            port = broker.port if tls is None else port_of(broker, "SSL")
            load(port, frame, 2, 2, tls)  # memory that the first requests leave allocated counts as idle
            time.sleep(0.5)
            idle = rss_bytes(broker.pid)
            started = time.monotonic()
            clients, counts = load(port, frame, connections, rounds, tls)
            seconds = time.monotonic() - started
            pool = max(pool_bytes, 0)
            return Outcome(
                connections=connections,
                request_bytes=len(frame) - 4,
                pool_bytes=pool_bytes,
                idle_rss=idle,
                peak_rss=status_bytes(broker.pid, "VmHWM"),
                allowed_rss=(pool + largest + idle) * 11 // 10,
                answered=sum(client.completed for client in clients),
                failed=sum(client.failed for client in clients),
                least=min(counts),
                most=max(counts),
                seconds=seconds,
            )
        finally:
            broker.discard()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pool-mib", type=int, default=64)
    parser.add_argument("--no-pool", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pool = -1 if arguments.no_pool else arguments.pool_mib * MIB
    outcome = run(arguments.connections, arguments.rounds, pool)
    print(outcome)
    if arguments.json:
        arguments.json.write_text(json.dumps({**asdict(outcome), "ratio": outcome.ratio}, indent=1) + "\n")
    return 0 if outcome.is_good or arguments.no_pool else 1


if __name__ == "__main__":
    sys.exit(main())
