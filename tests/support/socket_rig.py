"""Socket server whose queue is read by the test, and clients over real sockets."""

import collections
import collections.abc
import contextlib
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from kbroker._core.clock import BaseClock
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker.common.listeners import Listener
from kbroker.network.options import SocketServerOptions
from kbroker.network.request_channel import InboundRequest, RequestChannel
from kbroker.network.socket_server import SocketServer
from tests.native.echo import run_echo

PAUSE = threading.Event()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true; fail after about ten seconds."""
    for _ in range(5000):
        if condition():
            return
        PAUSE.wait(0.002)
    raise AssertionError(f"never happened: {what}")


def selectors2_selector() -> object:
    """Return a selector of selectors2, whose version 2.0.2 imports Mapping from ``collections``, as in Python 3.9."""
    if not hasattr(collections, "Mapping"):
        collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    selectors2 = pytest.importorskip("selectors2")
    return selectors2.SelectSelector()


def frame(payload: bytes) -> bytes:
    """Return a payload with its length prefix."""
    return struct.pack(">i", len(payload)) + payload


def read_exactly(client: socket.socket, size: int) -> bytes:
    """Return bytes of a response; fail if the server closes the connection first."""
    got = b""
    while len(got) < size:
        piece = client.recv(size - len(got))
        assert piece, f"closed after {len(got)} of {size} bytes"
        got += piece
    return got


def response(client: socket.socket) -> bytes:
    """Return the next response."""
    (size,) = struct.unpack(">i", read_exactly(client, 4))
    return read_exactly(client, size)


def assert_closed(client: socket.socket) -> None:
    """Check that the server closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


class Rig:
    """Server with one network thread, a queue of 50 requests and requests of up to 100 bytes, unless set otherwise."""

    def __init__(
        self, backend: object, clock: BaseClock | None = None, pool: MemoryPool | None = None, **options: object
    ):
        settings: dict[str, object] = {
            "network_threads": 1,
            "max_request_bytes": 100,
            "idle_ms": 60000,
            "backend": backend,
            **options,
        }
        self.channel = RequestChannel(capacity=50, clock=clock)
        self.server = SocketServer(
            [Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)],
            self.channel.queue,
            SocketServerOptions(**settings),  # type: ignore[arg-type]
            pool=pool,
            clock=clock,
        )
        self.server.start()
        self.clients: list[socket.socket] = []
        self.echo: threading.Thread | None = None

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.server.port("PLAINTEXT")), 10)
        self.clients.append(client)
        return client

    def receive(self) -> InboundRequest:
        request = self.channel.receive(None)
        assert request is not None
        return request

    def serve(self) -> None:
        """Echo every request natively from now on."""
        self.echo = threading.Thread(target=run_echo, args=(self.channel.queue,))
        self.echo.start()

    def count(self, name: str) -> int:
        return sum(p.counters()[name] for p in self.server.processors)

    def open_connections(self) -> int:
        return self.count("connections_created") - self.count("connections_closed")

    def close(self) -> None:
        self.server.begin_stop()
        self.channel.close()
        if self.echo is not None:
            self.echo.join(10)
        assert self.server.finish_stop()
        for client in self.clients:
            client.close()
