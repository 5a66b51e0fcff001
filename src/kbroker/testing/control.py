"""HTTP port that controls a broker under test from another process or language: topics, faults, time, snapshots.

Loopback only, off by default, and every request needs the token. Bodies and responses are JSON; the vocabulary is
similar to that of ``kcl fake control``. The routes are in ``control_routes``.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from kbroker._core.clock import SystemClock, VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.http_server import HttpHandler, HttpServer
from kbroker.common.listeners import parse_loopback
from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread
from kbroker.testing.cluster import EmbeddedCluster
from kbroker.testing.control_cluster import ClusterRoutes
from kbroker.testing.control_routes import ControlError, Routes, RouteTable
from kbroker.testing.embedded import EmbeddedBroker

logger = get_logger(__name__)

MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 256  # many test processes may wait at the port


class _Served(NamedTuple):
    token: bytes
    routes: RouteTable


class ControlServer:
    """Server of the control port of one broker, or of a cluster.

    Args:
        broker: the controlled broker or cluster; it may be stopped and started meanwhile.
        listener: host:port on the loopback interface; port 0 takes a free one.
        token: value that clients must send as ``Authorization: Bearer TOKEN``; empty: a random one.
        on_shutdown: called once, on its own thread, when a client requests shutdown; None stops the broker.
    Raises: ValueError for a listener that is not loopback; OSError when it cannot be bound (both from ``start``).
    Threads: start and stop from one thread at a time.
    """

    def __init__(
        self,
        broker: EmbeddedBroker | EmbeddedCluster,
        listener: str = "127.0.0.1:0",
        token: str = "",
        on_shutdown: Callable[[], object] | None = None,
    ) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._broker = broker
        self._listener = listener
        self._on_shutdown = broker.stop if on_shutdown is None else on_shutdown
        self._server: HttpServer | None = None

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def start(self) -> None:
        """Bind and serve; no effect if it serves already."""
        if self._server is not None:
            return
        host, port = parse_loopback(self._listener)
        routes: RouteTable
        if isinstance(self._broker, EmbeddedCluster):
            routes = ClusterRoutes(self._broker, self._shut_down)
        else:
            routes = Routes(self._broker, self._shut_down)
        served = _Served(self.token.encode(), routes)
        server = HttpServer(host, port, _Handler, served, name="control", max_connections=MAX_CONNECTIONS)
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _shut_down(self) -> None:
        new_thread("control-shutdown", self._on_shutdown, "shutdown").start()

    @property
    def url(self) -> str:
        """Address of the control port: http://host:port. Raises: RuntimeError if it is not open."""
        if self._server is None:
            raise RuntimeError("the control port is not open")
        return self._server.url

    def describe(self) -> str:
        """Return the address and the token in one line, for people and scripts."""
        return f"control {self.url} token {self.token}"


class _Handler(HttpHandler):
    server_version = "kbroker-control"

    def _serve(self) -> None:
        try:
            self._check_token()
            body = self._read_body()
            self.request_is_read()
            parts = [unquote(part) for part in self._path().split("/") if part]
            status, response = 200, self.server.served.routes.serve(self.command, parts, body)
        except ControlError as error:
            status, response = error.status, error.document()
        except Exception as error:
            logger.exception("%s %s failed", self.command, self.path)
            status, response = 500, {"error": f"{type(error).__name__}: {error}"}
        self._send(status, response)

    do_GET = do_POST = do_DELETE = _serve

    def _path(self) -> str:
        try:
            return urlsplit(self.path).path
        except ValueError as error:
            raise ControlError(400, f"no such target: {error}") from None

    def _check_token(self) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self.server.served.token):
            raise ControlError(401, "send the token of the control port: Authorization: Bearer TOKEN")

    def _read_body(self) -> dict[str, Any]:
        if "Transfer-Encoding" in self.headers:
            raise ControlError(411, "send a Content-Length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise ControlError(400, f"expected a number as Content-Length, got {text!r}")
        if len(text) > 12 or int(text) > MAX_BODY_BYTES:
            raise ControlError(413, f"a body has at most {MAX_BODY_BYTES} bytes")
        raw = self.rfile.read(int(text))
        if len(raw) < int(text):
            raise ControlError(400, f"expected a body of {text} bytes, got {len(raw)}")
        try:
            body = json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ControlError(400, f"expected JSON: {error}") from None
        if not isinstance(body, dict):
            raise ControlError(400, "expected a JSON object")
        return body

    def _send(self, status: int, response: object) -> None:
        self.send_page(status, json.dumps(response).encode() + b"\n", "application/json")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error of the base class (a malformed request line, an unknown method) as JSON."""
        self.close_connection = True
        self._send(code, {"error": message or explain or str(code)})


def controlled_broker(
    properties: Mapping[str, object], on_shutdown: Callable[[], object]
) -> tuple[EmbeddedBroker, ControlServer]:
    """Return the broker and the control port that a configuration with ``kbroker.control.listener`` requests.

    Neither is started. The broker has the given properties only, except that data in memory is in a temporary folder
    (in /dev/shm where it exists), so that it can be restored.

    Raises: ConfigError for a bad value.
    """
    config = BrokerConfig(properties)
    broker = EmbeddedBroker(
        clock=VirtualClock(SystemClock().wall_ms()) if config.boolean("kbroker.control.virtual.clock") else None,
        snapshots=config.boolean("kbroker.in.memory"),
        defaults=properties,
    )
    return broker, control_port(broker, config, on_shutdown)


def control_port(
    controlled: EmbeddedBroker | EmbeddedCluster, config: BrokerConfig, on_shutdown: Callable[[], object]
) -> ControlServer:
    """Return the control port that a configuration requests, not started."""
    listener, token = config.text("kbroker.control.listener"), config.text("kbroker.control.token")
    return ControlServer(controlled, listener, token, on_shutdown)
