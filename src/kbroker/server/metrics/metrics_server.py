"""The HTTP port for operators: /metrics for Prometheus, /health and /ready for process supervisors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from kbroker.common.http_server import MAX_CONNECTIONS, HttpHandler, HttpServer
from kbroker.common.light_typing import NamedTuple
from kbroker.common.loggers import get_logger
from kbroker.metrics.exposition import Exposition

logger = get_logger(__name__)

MAX_SCRAPES = MAX_CONNECTIONS - 4  # at once: the other connections are left for /health and /ready
PLAIN = "text/plain; charset=utf-8"


class _Served(NamedTuple):
    exposition: Exposition
    is_ready: Callable[[], bool]
    scrapes: threading.Semaphore


class MetricsServer:
    """Serves one broker's metrics and state over HTTP, GET and HEAD only.

    ``/metrics``: the exposition. ``/health``: 200 while the process can respond. ``/ready``: 200 while clients are
    served, else 503. Anything else: 404. While ``MAX_SCRAPES`` are served, a further one gets 503, so that the other
    two always get a response.

    Args: ``exposition``; ``is_ready`` returns whether clients are served; ``host``, ``port``: 0 takes a free one.
    Threads: start and stop from one thread; each connection has its own thread.
    """

    def __init__(self, exposition: Exposition, is_ready: Callable[[], bool], host: str, port: int) -> None:
        self._exposition = exposition
        self._address = f"{host}:{port}"
        served = _Served(exposition, is_ready, threading.Semaphore(MAX_SCRAPES))
        self._server = HttpServer(host, port, _Handler, served, name="metrics")

    def start(self) -> None:
        """Bind and serve.

        Raises: OSError with the address when it cannot be bound; MissingLibraryError without prometheus_client.
        """
        self._exposition.text()  # so that what is missing is known now, not at the first scrape
        try:
            self._server.start()
        except OSError as why:
            raise OSError(why.errno, f"cannot serve metrics on {self._address}: {why.strerror or why}") from why

    def stop(self) -> None:
        """Serve no more. Idempotent."""
        self._server.stop()

    @property
    def url(self) -> str:
        """Where it listens: http://host:port."""
        return self._server.url


class _Handler(HttpHandler):
    def do_GET(self) -> None:
        self.request_is_read()
        served: _Served = self.server.served
        try:
            path = urlsplit(self.path).path.rstrip("/")
        except ValueError as error:
            self.send_page(400, f"no such target: {error}\n".encode(), PLAIN)
            return
        if path == "/metrics":
            if not served.scrapes.acquire(blocking=False):
                self.send_page(503, b"too many scrapes at once\n", PLAIN)
                return
            try:
                self._metrics(served.exposition)
            finally:
                served.scrapes.release()
        elif path == "/health":
            self.send_page(200, b"ok\n", PLAIN)
        elif path == "/ready":
            ready = served.is_ready()
            self.send_page(200 if ready else 503, b"ready\n" if ready else b"not ready\n", PLAIN)
        else:
            self.send_page(404, b"there are /metrics, /health and /ready\n", PLAIN)

    do_HEAD = do_GET

    def _metrics(self, exposition: Exposition) -> None:
        try:
            body, content_type = exposition.text(self.headers.get("Accept", ""))
        except Exception:
            logger.exception("the metrics cannot be shown")
            self.send_page(500, b"the metrics cannot be shown; the log says why\n", PLAIN)
            return
        self.send_page(200, body, content_type)
