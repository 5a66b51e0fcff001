"""Cost of an enforced quota: CPU of the broker's process per Produce, quotas off and on in interleaved pairs.

    python bench/bench_quotas.py [--pairs 9] [--slices 12] [--requests 5000]

A client sends Produce requests of one 100-byte record to a broker process over 8 connections, 8 in flight on each.
"On": producer_byte_rate, consumer_byte_rate and request_percentage of the user are set far above the load, so that each
request is recorded, checked and charged with its network time. A pair consists of slices, alternately of requests off
and on, so that other load of the machine affects both. Prints each pair's ratio and their median.

Accepted (two cores, Linux, CPython 3.11): at most 1.05.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

CONNECTIONS, IN_FLIGHT = 8, 8
ACCEPTED = 1.05


def serve() -> None:
    """Run the broker's process: perform each line (`on`, `off`, `cpu`) and print the CPU time used so far."""
    from kbroker.broker import Broker

    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "kbroker.in.memory": True,
        "num.network.threads": 1,
        "num.io.threads": 2,
    }
    with Broker(settings) as broker:
        print(broker.bootstrap_servers, flush=True)
        for line in sys.stdin:
            limit = {"on": 1e15, "off": None}.get(line.strip(), 0)
            if limit != 0:
                for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage"):
                    broker.context.quotas.update("ANONYMOUS", None, key, limit)
            print(time.process_time_ns(), flush=True)


def load(sockets: list[socket.socket], frame: bytes, requests: int) -> None:
    """Send `requests` requests over the connections, with a window of responses outstanding on each."""
    share = requests // len(sockets)
    with selectors.DefaultSelector() as selector:
        state: dict[socket.socket, tuple[int, int, bytes]] = {}  # requests sent, responses received, remaining bytes
        for one in sockets:
            one.sendall(frame * IN_FLIGHT)
            selector.register(one, selectors.EVENT_READ)
            state[one] = (IN_FLIGHT, 0, b"")
        busy = len(sockets)
        while busy:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                one = key.fileobj
                sent, answered, rest = state[one]
                data = rest + one.recv(1 << 18)
                at = count = 0
                while at + 4 <= len(data):
                    (size,) = struct.unpack_from(">i", data, at)
                    if at + 4 + size > len(data):
                        break
                    at += 4 + size
                    count += 1
                answered += count
                more = min(count, share - sent)
                if more:
                    one.sendall(frame * more)
                state[one] = (sent + more, answered, data[at:])
                if answered >= share:
                    selector.unregister(one)
                    busy -= 1


def main() -> None:
    from tests.support import wire

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--slices", type=int, default=12)
    parser.add_argument("--requests", type=int, default=5000, help="of a slice")
    given = parser.parse_args()
    if given.requests < CONNECTIONS * IN_FLIGHT or given.requests % CONNECTIONS:
        parser.error(f"--requests: expected a multiple of {CONNECTIONS} from {CONNECTIONS * IN_FLIGHT} on")
    broker = subprocess.Popen(
        [sys.executable, __file__, "--broker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert broker.stdin is not None
    assert broker.stdout is not None

    def command(word: str) -> int:
        assert broker.stdin is not None
        assert broker.stdout is not None
        broker.stdin.write(f"{word}\n")
        broker.stdin.flush()
        return int(broker.stdout.readline())

    bootstrap = broker.stdout.readline().strip()
    with wire.Connection(bootstrap) as admin:
        admin.ask(wire.create_topic("t", 1))
    host, _, port = bootstrap.rpartition(":")
    request = wire.produce("t", 0, wire.batch([b"x" * 100]))
    frame = struct.pack(">i", len(request)) + request
    sockets = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cpu_us(word: str) -> float:
        before = command(word)
        load(sockets, frame, given.requests)
        return (command("cpu") - before) / int(given.requests) / 1000

    for word in ("off", "on") * 4:
        cpu_us(word)
    ratios = []
    for _ in range(given.pairs):
        found = {"off": 0.0, "on": 0.0}
        for number in range(given.slices):
            for word in ("off", "on") if number % 2 == 0 else ("on", "off"):
                found[word] += cpu_us(word) / given.slices
        ratios.append(found["on"] / found["off"])
        print(f"off {found['off']:6.2f} us  on {found['on']:6.2f} us  ratio {ratios[-1]:.3f}", flush=True)
    median = statistics.median(ratios)
    print(f"median of {given.pairs} ratios: {median:.3f} (accepted: {ACCEPTED})")
    broker.stdin.close()
    broker.wait(20)
    if median > ACCEPTED:
        raise SystemExit(1)


if __name__ == "__main__":
    if "--broker" in sys.argv:
        serve()
    else:
        main()
