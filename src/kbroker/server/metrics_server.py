"""The HTTP port for operators: /metrics for Prometheus, /health and /ready for whoever watches over processes."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from kbroker.metrics.exposition import Exposition

logger = logging.getLogger(__name__)

SOCKET_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 32  # at once, each a thread and a descriptor; more are closed unanswered
PLAIN = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves one broker's metrics and state over HTTP, GET and HEAD only.

    ``/metrics``: the exposition. ``/health``: 200 while the process can answer. ``/ready``: 200 while clients are
    served, else 503. Anything else: 404.

    Args: ``exposition``; ``is_ready`` tells whether clients are served; ``host``, ``port``: 0 takes a free one.
    Threads: start and stop from one thread; each connection has a thread of its own.
    """

    def __init__(self, exposition: Exposition, is_ready: Callable[[], bool], host: str, port: int) -> None:
        self._exposition = exposition
        self._is_ready = is_ready
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve.

        Raises: OSError with the address when it cannot be bound; MissingLibraryError without prometheus_client.
        """
        self._exposition.text()  # so that what is missing is known now, not at the first scrape
        try:
            self._server = _Server(self._host, self._port, self._exposition, self._is_ready)
        except OSError as why:
            address = f"{self._host}:{self._port}"
            raise OSError(why.errno, f"cannot serve metrics on {address}: {why.strerror or why}") from why
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Serve no more. Idempotent."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def url(self) -> str:
        """Where it listens: http://host:port."""
        if self._server is None:
            raise RuntimeError("the metrics port is not open")
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, exposition: Exposition, is_ready: Callable[[], bool]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.exposition = exposition
        self.is_ready = is_ready
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread: nobody else gives the slot back
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("a metrics connection failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request (HTTP/1.0)."""

    server: _Server
    timeout = SOCKET_TIMEOUT_S
    server_version = "kbroker"
    sys_version = ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if path == "/metrics":
            self._metrics()
        elif path == "/health":
            self._send(200, b"ok\n", PLAIN)
        elif path == "/ready":
            ready = self.server.is_ready()
            self._send(200 if ready else 503, b"ready\n" if ready else b"not ready\n", PLAIN)
        else:
            self._send(404, b"there are /metrics, /health and /ready\n", PLAIN)

    do_HEAD = do_GET

    def _metrics(self) -> None:
        try:
            body, content_type = self.server.exposition.text(self.headers.get("Accept", ""))
        except Exception:
            logger.exception("the metrics cannot be shown")
            self._send(500, b"the metrics cannot be shown; the log says why\n", PLAIN)
            return
        self._send(200, body, content_type)

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("metrics port: %s", format % args)
