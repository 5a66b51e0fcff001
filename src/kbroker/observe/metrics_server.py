"""The HTTP port for operators: /metrics for Prometheus, /health and /ready for supervisors, routes with JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from kbroker.common.http_messages import METHODS, PLAIN, READING, HttpRequest, QueryError, only_these, parameters
from kbroker.common.http_server import MAX_CONNECTIONS, HttpHandler, HttpServer
from kbroker.common.loggers import get_logger
from kbroker.metrics.exposition import Exposition
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.http_routes import HttpError, Route, RouteTable
from kbroker.observe.mounted_pages import MountedPages

logger = get_logger(__name__)

MAX_SCRAPES = MAX_CONNECTIONS - 4  # at once: the other connections are left for /health and /ready
MAX_ROUTE_CALLS = 8  # at once: each may hold a large copy
MAX_WITH_PAGES = 128  # maximum number of connections: a browser opens several for each page
MAX_BODY_BYTES = 1 << 16  # of a form
JSON = "application/json"
PRIVATE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
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
    While ``MAX_SCRAPES`` are served, or ``MAX_ROUTE_CALLS``, a further one gets 503, so that the other two always get a
    response.

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
        self._address = f"{host}:{port}"
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
        try:
            self._server.start()
        except OSError as why:
            raise OSError(why.errno, f"cannot serve metrics on {self._address}: {why.strerror or why}") from why

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        self._server.stop()

    @property
    def url(self) -> str:
        """Address of the server: http://host:port."""
        return self._server.url


class _Handler(HttpHandler):
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
            mounted = self._mounted(target)
            if mounted is None:
                self._protected(served, target)
            else:
                self._show(mounted, target, b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        try:
            target = urlsplit(self.path)
        except ValueError as error:
            self._sentence(400, f"no such target: {error}")
            return
        mounted = self._mounted(target)
        length = self.headers.get("Content-Length", "")
        if mounted is None:
            self._refuse_method(READING)
        elif not (length.isascii() and length.isdigit() and len(length) < 10):
            self._sentence(411, "expected a Content-Length")
        elif int(length) > MAX_BODY_BYTES:
            self._sentence(413, f"expected a body of at most {MAX_BODY_BYTES} bytes, got one of {length}")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):  # otherwise the client has closed, or the deadline has passed
                self.request_is_read()
                self._show(mounted, target, body)

    def _mounted(self, target: SplitResult) -> MountedPages | None:
        served: _Served = self.server.served
        return next((pages for pages in served.mounted if pages.has(target.path)), None)

    def _show(self, mounted: MountedPages, target: SplitResult, body: bytes) -> None:
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            headers.setdefault(name.lower(), value)
        address, path = str(self.client_address[0]), unquote(target.path)
        response = mounted.respond(HttpRequest(self.command, path, target.query, headers, address, body))
        self.send_page(response.status, response.body, response.content_type, response.headers)

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
            self._sentence(404, f"there are {', '.join(known[:-1])} and {known[-1]}")
            return
        refusal = served.access.refusal(str(self.client_address[0]), self.headers)
        if refusal is not None:
            more = (("WWW-Authenticate", "Bearer"),) if refusal.status == 401 else ()
            if refusal.retry_after_s:
                more = (("Retry-After", str(refusal.retry_after_s)),)
            self._sentence(refusal.status, refusal.sentence, more)
        elif not served.calls.acquire(blocking=False):
            self._sentence(503, "too many requests at once", (("Retry-After", "1"),))
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
            self._sentence(error.status, error.sentence)
        except QueryError as error:
            self._sentence(400, str(error))
        except Exception:
            logger.exception("%s cannot be shown", path)
            self._sentence(500, f"{path} cannot be shown; the log says why")
        else:
            self.send_page(200, body, JSON, PRIVATE)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a sentence for a request that the base class rejects: malformed, too long, another method."""
        self.close_connection = True
        if code != 501:
            self._sentence(code, message or HTTPStatus(code).phrase)
            return
        try:
            mounted = self._mounted(urlsplit(self.path))
        except ValueError:
            mounted = None
        self._refuse_method(READING if mounted is None else METHODS)

    def _refuse_method(self, methods: Sequence[str]) -> None:
        sentence, allow = only_these(methods)
        self._sentence(405, sentence, (allow,))

    def _sentence(self, status: int, sentence: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_page(status, f"{sentence}\n".encode(), PLAIN, (*PRIVATE, *headers))
