"""Load for line_server.py: many connections for a number of seconds, and the results of the measurement.

    python examples/line_load.py [CONNECTIONS] [SECONDS]

The program starts the server in another process, opens the connections, sends a request on each of them, then keeps a
window of them busy, and checks each response.
"""

from __future__ import annotations

import argparse
import re
import resource
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

BUSY = 200  # connections with a request in progress


def resident_kib(pid: int) -> int:
    """Return the VmRSS of a process in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def exchange(one: socket.socket, line: bytes) -> bytes:
    """Send one request and return its response."""
    one.setblocking(True)
    one.sendall(line + b"\n")
    response = b""
    while not response.endswith(b"\n"):
        piece = one.recv(4096)
        if not piece:
            raise ConnectionError("closed by the server")
        response += piece
    return response[:-1]


def keep_busy(connections: list[socket.socket], seconds: float) -> int:
    """Return the number of responses in this time, over all connections in turn; compare each with its request."""
    poller = selectors.DefaultSelector()
    waiting: dict[int, bytes] = {}
    served = turn = 0

    def ask() -> None:
        nonlocal turn
        one = connections[turn % len(connections)]
        turn += 1
        if one.fileno() in waiting:
            return
        waiting[one.fileno()] = b"%d\n" % turn
        one.setblocking(False)
        one.send(b"ECHO %d\n" % turn)
        poller.register(one, selectors.EVENT_READ)

    end = time.perf_counter() + seconds
    for _ in range(min(BUSY, len(connections))):
        ask()
    while waiting and time.perf_counter() < end + 10:
        for key, _ in poller.select(1):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            assert one.recv(4096) == waiting.pop(one.fileno())
            poller.unregister(one)
            served += 1
            if time.perf_counter() < end:
                ask()
    assert not waiting, f"{len(waiting)} responses are missing"
    poller.close()
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("connections", type=int, nargs="?", default=10_000, help="how many (default: 10000)")
    parser.add_argument("seconds", type=float, nargs="?", default=5.0, help="how long they are busy (default: 5)")
    options = parser.parse_args()
    count, seconds = options.connections, options.seconds
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 500), hard), hard))
    command = [sys.executable, str(Path(__file__).with_name("line_server.py")), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline().split(":")[1].split(";")[0])
            idle_kib = resident_kib(server.pid)
            started = time.perf_counter()
            connections = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
            opened = time.perf_counter() - started
            for number, one in enumerate(connections):
                assert exchange(one, b"ECHO %d" % number) == b"%d" % number
            served = keep_busy(connections, seconds)
            delayed = time.perf_counter()
            assert exchange(connections[-1], b"AFTER 100 later") == b"later"
            delayed = time.perf_counter() - delayed
            stats = exchange(connections[0], b"STATS").decode()
            full_kib = resident_kib(server.pid)
            print(f"connections     {count} opened in {opened:.1f} s, all answered")
            print(f"messages        {served / seconds:,.0f} a second over {seconds:g} s, {min(BUSY, count)} under way")
            print(f"timer           AFTER 100 answered after {delayed * 1000:.1f} ms")
            print(f"memory          {idle_kib / 1024:.1f} MiB idle, {full_kib / 1024:.1f} MiB with all connections")
            print(f"                {(full_kib - idle_kib) / count:.2f} KiB a connection")
            print(f"server          {stats}")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
