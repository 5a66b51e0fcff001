"""The metrics port by itself: what a stranger who never asks can take from it."""

import contextlib
import socket
import time
from types import SimpleNamespace
from typing import Any

from kbroker.server.metrics_server import MAX_CONNECTIONS, MetricsServer


def ask(address: tuple[str, int]) -> bytes:
    with contextlib.suppress(ConnectionError), socket.create_connection(address, 5) as connection:
        connection.settimeout(5)
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return connection.recv(100)
    return b""


def test_connections_that_never_ask_take_so_many_threads_and_no_more() -> None:
    """Each silent connection had a thread and a descriptor of the broker, without a limit."""
    exposition: Any = SimpleNamespace(text=lambda accept="": (b"", ""))
    server = MetricsServer(exposition, lambda: True, "127.0.0.1", 0)
    server.start()
    try:
        host, _, port = server.url.removeprefix("http://").partition(":")
        address = (host, int(port))
        with contextlib.ExitStack() as silent:
            for _ in range(MAX_CONNECTIONS):
                silent.enter_context(socket.create_connection(address, 5))
            assert ask(address) == b""
        until = time.monotonic() + 5
        while not (answer := ask(address)) and time.monotonic() < until:
            pass
        assert answer.startswith(b"HTTP/1.0 200")
    finally:
        server.stop()
