"""The HTTP port for operators: /metrics for Prometheus, /health and /ready for supervisors, routes with JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from kbroker.common.http_messages import PLAIN, QueryError, parameters
from kbroker.common.http_server import MAX_CONNECTIONS, HttpServer
from kbroker.common.loggers import get_logger
from kbroker.metrics.exposition import Exposition
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.http_routes import HttpError, Route, RouteTable
from kbroker.observe.mounted_pages import MountedPages
from kbroker.observe.page_handler import MAX_WITH_PAGES, PRIVATE, PageHandler

logger = get_logger(__name__)

MAX_SCRAPES = MAX_CONNECTIONS - 4  # maximum number at once; the other connections are left for /health and /ready
MAX_ROUTE_CALLS = 8  # maximum number at once; each may hold a large copy
JSON = "application/json"
OPEN_PATHS = ("/metrics", "/health", "/ready")


class _Served(NamedTuple):
    exposition: Exposition
    obstacle: Callable[[], str]
    fault: Callable[[], str]
    scrapes: threading.Semaphore
    routes: RouteTable
    access: HttpAccess
    calls: threading.Semaphore
    mounted: Sequence[MountedPages]


class MetricsServer:
    """HTTP server of one broker's metrics and state; GET and HEAD only, except for mounted pages.

    ``/metrics``: the exposition. ``/health``: 200 while the process can respond and needs no operator. ``/ready``: 200
    while clients are served. Both are 503 otherwise, with the reason. A path of ``routes``: the result of its function,
    as JSON, if ``access`` allows it. A path below one of ``mounted``: the response of its pages. Anything else: 404.
    A request beyond ``MAX_SCRAPES`` scrapes or ``MAX_ROUTE_CALLS`` calls at once gets 503, so that ``/health`` and
    ``/ready`` always get a response.

    Args: ``exposition``; ``obstacle`` returns the reason why no clients are served, "" if they are; ``host``; ``port``:
    0 selects a free one; ``fault`` returns the reason why the broker needs an operator, "" without one.
    Threads: start and stop from one thread; each connection has its own thread.
    """

    def __init__(
        self,
        exposition: Exposition,
        obstacle: Callable[[], str],
        host: str,
        port: int,
        routes: RouteTable,
        access: HttpAccess,
        mounted: Sequence[MountedPages] = (),
        fault: Callable[[], str] = str,
    ) -> None:
        self._exposition = exposition
        served = _Served(
            exposition,
            obstacle,
            fault,
            threading.Semaphore(MAX_SCRAPES),
            routes,
            access,
            threading.Semaphore(MAX_ROUTE_CALLS),
            mounted,
        )
        most = MAX_WITH_PAGES if mounted else MAX_CONNECTIONS
        self._server = HttpServer(host, port, _Handler, served, name="metrics", max_connections=most)

    def start(self) -> None:
        """Bind and serve.

        Raises: OSError with the address when it cannot be bound; MissingLibraryError without prometheus_client.
        """
        self._exposition.text()  # reports a missing library now, not at the first scrape
        self._server.start()

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        self._server.stop()

    @property
    def url(self) -> str:
        """Address of the server: http://host:port."""
        return self._server.url


class _Handler(PageHandler):
    def do_GET(self) -> None:
        self.request_is_read()
        served: _Served = self.server.served
        try:
            target = urlsplit(self.path)
        except ValueError as error:
            self.send_page(400, f"no such target: {error}\n".encode(), PLAIN)
            return
        path = target.path.rstrip("/")
        if path == "/metrics":
            if not served.scrapes.acquire(blocking=False):
                self.send_page(503, b"too many scrapes at once\n", PLAIN)
                return
            try:
                self._metrics(served.exposition)
            finally:
                served.scrapes.release()
        elif path == "/health":
            fault = served.fault()
            self.send_page(503 if fault else 200, f"{fault or 'ok'}\n".encode(), PLAIN)
        elif path == "/ready":
            obstacle = served.obstacle()
            text = f"not ready: {obstacle}" if obstacle else "ready"
            self.send_page(503 if obstacle else 200, f"{text}\n".encode(), PLAIN)
        else:
            mounted = self.mounted_pages(target)
            if mounted is None:
                self._protected(served, target)
            else:
                self.show_pages(mounted, target, b"")

    do_HEAD = do_GET

    def _metrics(self, exposition: Exposition) -> None:
        try:
            body, content_type = exposition.text(self.headers.get("Accept", ""))
        except Exception:
            logger.exception("the metrics cannot be shown")
            self.send_page(500, b"the metrics cannot be shown; the log says why\n", PLAIN)
            return
        self.send_page(200, body, content_type)

    def _protected(self, served: _Served, target: SplitResult) -> None:
        path = target.path.rstrip("/")
        route = served.routes.find(path)
        if route is None:
            known = (*OPEN_PATHS, *(pages.path for pages in served.mounted), *served.routes.paths)
            self.send_sentence(404, f"there are {', '.join(known[:-1])} and {known[-1]}")
            return
        refusal = served.access.refusal(self.peer, self.headers)
        if refusal is not None:
            more = (("WWW-Authenticate", "Bearer"),) if refusal.status == 401 else ()
            if refusal.retry_after_s:
                more = (("Retry-After", str(refusal.retry_after_s)),)
            self.send_sentence(refusal.status, refusal.sentence, more)
        elif not served.calls.acquire(blocking=False):
            self.send_sentence(503, "too many requests at once", (("Retry-After", "1"),))
        else:
            try:
                self._call(route, path, target.query)
            finally:
                served.calls.release()

    def _call(self, route: Route, path: str, query: str) -> None:
        import json

        try:
            value = route(parameters(query))
            # ASCII, so that names of clients send no control character to a terminal
            body = json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        except HttpError as error:
            self.send_sentence(error.status, error.sentence)
        except QueryError as error:
            self.send_sentence(400, str(error))
        except Exception:
            logger.exception("%s cannot be shown", path)
            self.send_sentence(500, f"{path} cannot be shown; the log says why")
        else:
            self.send_page(200, body, JSON, PRIVATE)
