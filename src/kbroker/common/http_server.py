"""A small HTTP server for operators and tests: one request per connection, few connections, each with a deadline.

It uses the standard library only, and is imported only if a port is configured.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from socketserver import TCPServer
from typing import Any, cast

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common.addresses import host_port
from kbroker.common.listening_socket import cannot_listen, close_listening
from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread

logger = get_logger(__name__)

DEADLINE_MS = 10_000
MAX_CONNECTIONS = 32
MAX_HEADER_BYTES = 1 << 18  # of a request; two headers may have the address of a page. The base class permits 6.5 MB
SHORT_BYTES = 4096  # maximum of a response that fits the socket's buffer
_POLL_S = 0.1
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass
class _Connection:
    """``due_ms``: deadline of the connection; None while its request is being served."""

    since_ms: int
    due_ms: int | None
    is_reading: bool = True


class HttpServer:
    """HTTP server of one port, until ``stop``.

    A request must be received within DEADLINE_MS of its connection, and its response be sent within the same time,
    at any speed of the client. If ``max_connections`` are open, a new one replaces the connection that has been sending
    its request for the longest time, so that silent clients lock no client out; the new connection is closed without a
    response only if all others are being served.

    Args: ``handler``: the class that serves a request; ``served``: its ``self.server.served``; ``name``: of threads,
    and in the log; ``port``: 0 selects a free port; ``clock``: times the deadlines.
    Threads: start and stop from one thread at a time; each connection has its own thread.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[HttpHandler],
        served: object,
        *,
        name: str,
        max_connections: int = MAX_CONNECTIONS,
        clock: BaseClock | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._handler = handler
        self._served = served
        self._name = name
        self._max_connections = max_connections
        self._clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve; do nothing if already serving.

        Raises: OSError with the address when it cannot be bound, or when the system has no more threads.
        """
        if self._server is not None:
            return
        try:
            server = _Server(
                self._host, self._port, self._handler, self._served, self._name, self._max_connections, self._clock
            )
        except OSError as why:
            raise cannot_listen(host_port(self._host, self._port), why) from why
        thread = new_thread(self._name, server.serve_until_stopped)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # a stop would wait forever for the end of serving
            server.server_close()
            raise OSError(errno.EAGAIN, "the system starts no more threads") from error
        self._server, self._thread = server, thread

    def stop(self) -> None:
        """Stop serving; close the connections without a request. Idempotent."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            server.stopping.set()
            server.shutdown()
            thread.join()
            close_listening(server.socket, self._pid)
            server.server_close()

    @property
    def url(self) -> str:
        """Address of the server, http://host:port. Raises: RuntimeError while it does not listen."""
        if self._server is None:
            raise RuntimeError(f"the {self._name} port is not open")
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{host_port(name, port)}"


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[HttpHandler],
        served: Any,
        name: str,
        max_connections: int,
        clock: BaseClock,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.served = served
        self.name = name
        self._max_connections = max_connections
        self._clock = clock
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self._open: dict[socket.socket, _Connection] = {}
        super().__init__((host, port), handler)

    # -------------------------------------------------- called by a handler's thread

    def serving(self, connection: socket.socket) -> None:
        """Remove the deadline: the request is received, its response not sent yet."""
        self._watch(connection, None)

    def responding(self, connection: socket.socket) -> None:
        """Set a deadline for sending the response."""
        self._watch(connection, self._clock.now_ms() + DEADLINE_MS)

    def _watch(self, connection: socket.socket, due_ms: int | None) -> None:
        with self._lock:
            found = self._open.get(connection)
            if found is not None:
                found.due_ms, found.is_reading = due_ms, False

    def responded(self, connection: socket.socket) -> None:
        """Free the connection's place before the client has read the response, which fits the socket's buffer."""
        self._forget(connection)

    # -------------------------------------------------- the serving thread

    def serve_until_stopped(self) -> None:
        """Serve until ``stop``, even after a failure such as no memory for a connection."""
        is_stopped = False
        while not is_stopped:  # at least once: a stop waits for the end of serve_forever
            try:
                self.serve_forever(_POLL_S)
            except Exception:
                with contextlib.suppress(Exception):  # there may be no memory for the line
                    logger.exception("%s: a connection cannot be served", self.name)
            is_stopped = self.stopping.wait(_POLL_S)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises: OSError; without a free descriptor after a pause: the backlog stays readable."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self.stopping.wait(_POLL_S)
            raise

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which waits for name servers that do not respond."""
        TCPServer.server_bind(self)

    def service_actions(self) -> None:
        """Close the connections whose deadline has passed."""
        self._close_due(self._clock.now_ms())

    def server_close(self) -> None:
        """Close the port, and the connections whose deadline this thread watched until now."""
        super().server_close()
        self._close_due(math.inf)

    def _close_due(self, now_ms: float) -> None:
        with self._lock:
            late = [each for each, state in self._open.items() if state.due_ms is not None and state.due_ms <= now_ms]
            for connection in late:
                self._give_up(connection)

    def _give_up(self, connection: socket.socket) -> None:
        """Shut a connection down, which ends its thread. Under the lock: the thread still owns the socket."""
        del self._open[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _takes(self, connection: socket.socket) -> bool:
        now_ms = self._clock.now_ms()
        with self._lock:
            if len(self._open) >= self._max_connections:
                slow = [(state.since_ms, each.fileno(), each) for each, state in self._open.items() if state.is_reading]
                if not slow:
                    return False
                self._give_up(min(slow)[2])
            self._open[connection] = _Connection(now_ms, now_ms + DEADLINE_MS)
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._takes(request):
            self.shutdown_request(request)
            return
        try:
            serve = partial(self.process_request_thread, request, client_address)
            new_thread(f"{self.name}-request", serve).start()
        except BaseException:  # no thread was started that would remove it
            self._forget(request)
            raise

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)  # before it is closed: afterwards another socket may have its number
        super().shutdown_request(request)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("%s: a connection failed", self.name, exc_info=True)


class _Lines:
    """Lines of a stream. ``last``: the latest line read, empty at the end of the stream."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left_bytes = MAX_HEADER_BYTES
        self.last = b""

    def readline(self, limit: int) -> bytes:
        """Read at most ``limit`` bytes of a line. Raises: HTTPException (status 431) beyond MAX_HEADER_BYTES."""
        self.last = self._stream.readline(limit)
        self._left_bytes -= len(self.last)
        if self._left_bytes < 0:
            raise HTTPException(f"more than {MAX_HEADER_BYTES} bytes of headers")
        return self.last


class HttpHandler(BaseHTTPRequestHandler):
    """One connection, one request (HTTP/1.0)."""

    server: _Server
    server_version = "kbroker"
    sys_version = ""

    @property
    def peer(self) -> str:
        """Address of the client; that of an IPv4 client is IPv4 even on an IPv6 port, as on a listener."""
        host = str(self.client_address[0])
        return host.removeprefix("::ffff:") if "." in host else host

    def parse_request(self) -> bool:
        """Read the headers; return False if they are malformed, or end with the stream instead of an empty line.

        In the latter case the client has disconnected, its deadline has passed, or another connection has taken its
        place; the base class would serve the received bytes as a request.
        """
        stream, lines = self.rfile, _Lines(self.rfile)
        self.rfile = cast(BufferedIOBase, lines)
        try:
            return super().parse_request() and lines.last != b""
        finally:
            self.rfile = stream

    def request_is_read(self) -> None:
        """Remove the deadline after the request is received, because serving it may take longer."""
        self.server.serving(self.connection)

    def send_page(self, status: int, body: bytes, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a response, without its body for HEAD. Args: ``headers``: added to those of every response."""
        if len(body) <= SHORT_BYTES:
            self.server.responded(self.connection)
        else:
            self.server.responding(self.connection)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s: %s", self.server.name, format % args)
