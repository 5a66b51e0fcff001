"""The metrics port under slow, silent and numerous clients."""

import contextlib
import errno
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common import http_server
from kbroker.common.http_server import DEADLINE_MS, MAX_CONNECTIONS, HttpHandler, HttpServer
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.http_routes import RouteTable
from kbroker.observe.metrics_server import MAX_SCRAPES, MetricsServer
from tests.support.errors import raising
from tests.support.ports import free_run

QUESTION = b"GET /health HTTP/1.0\r\n\r\n"


class Echo(HttpHandler):
    """Handler that sends ``served`` bytes."""

    def do_GET(self) -> None:
        self.request_is_read()
        self.send_page(200, b"x" * self.server.served, "text/plain")


def no_metrics(accept: str | None = None) -> tuple[bytes, str]:
    return b"", ""


@contextlib.contextmanager
def metrics_server(text: Callable[..., tuple[bytes, str]] = no_metrics, obstacle: str = "") -> Iterator[MetricsServer]:
    """Serve the metrics of ``text``; the broker is ready without an ``obstacle``."""
    exposition: Any = SimpleNamespace(text=text)
    access = HttpAccess(None, VirtualClock(0))
    server = MetricsServer(exposition, lambda: obstacle, "127.0.0.1", 0, RouteTable(), access)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), 20)


def ask(url: str, target: bytes = b"/health") -> bytes:
    with connected(url) as connection:
        connection.sendall(b"GET %s HTTP/1.0\r\n\r\n" % target)
        return connection.recv(100)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the next byte or the end of a connection; return whether it was closed."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


@pytest.fixture
def server() -> Iterator[tuple[HttpServer, VirtualClock]]:
    clock = VirtualClock(1_700_000_000_000)
    server = HttpServer("127.0.0.1", 0, Echo, 50_000_000, name="echo", max_connections=2, clock=clock)
    server.start()
    yield server, clock
    server.stop()


def test_a_server_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails leaves nothing open: a stop ends, and the next start serves the same port."""
    server = HttpServer("127.0.0.1", free_run(1), Echo, 1, name="echo")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(OSError, match="starts no more threads"):
            server.start()
    stop = threading.Thread(target=server.stop, daemon=True)
    stop.start()
    stop.join(5)
    assert not stop.is_alive()
    server.start()
    assert ask(server.url).startswith(b"HTTP/1.0 200")
    server.stop()


def test_a_start_does_not_wait_for_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", raising(OSError("no name server responds")))
    server = HttpServer("0.0.0.0", 0, Echo, 1, name="echo")
    server.start()
    server.stop()


def test_a_stop_closes_a_connection_without_a_request(server: tuple[HttpServer, VirtualClock]) -> None:
    """After a stop no deadline ends the connection, so its thread would wait for the client."""
    with connected(server[0].url) as silent:
        while not server[0]._server._open:
            pass
        server[0].stop()
        assert is_closed(silent)


def test_connections_that_never_ask_lock_no_client_out() -> None:
    """Silent connections lock no client out: the oldest is closed for a new connection."""
    with metrics_server() as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server.url)) for _ in range(MAX_CONNECTIONS)]
        for connection in silent:
            connection.sendall(b"GET ")
        assert ask(server.url).startswith(b"HTTP/1.0 200")
        assert is_closed(silent[0])
        silent[-1].sendall(b"/health HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(100).startswith(b"HTTP/1.0 200")


def test_a_request_without_its_end_is_not_served() -> None:
    """Neither a client that closes within its headers nor one that has to give up its place causes a scrape."""
    asked = threading.Semaphore(0)

    def text(accept: str | None = None) -> tuple[bytes, str]:
        asked.release()
        return b"", ""

    with metrics_server(text) as server, contextlib.ExitStack() as stack:
        assert asked.acquire(timeout=20), "of the start"
        for _ in range(2):
            with connected(server.url) as closing:
                closing.sendall(b"GET /metrics HTTP/1.0\r\nHost: a\r\n")
                closing.shutdown(socket.SHUT_WR)
                assert is_closed(closing)
        slow = [stack.enter_context(connected(server.url)) for _ in range(MAX_CONNECTIONS)]
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: a")
        assert ask(server.url).startswith(b"HTTP/1.0 200")
        assert is_closed(slow[0])
        assert not asked.acquire(blocking=False)
        assert ask(server.url, b"/metrics").startswith(b"HTTP/1.0 200")
        assert asked.acquire(blocking=False)


def test_a_request_that_comes_byte_by_byte_has_a_deadline(server: tuple[HttpServer, VirtualClock]) -> None:
    """A request has a deadline as a whole, so that single bytes do not extend it."""
    port, clock = server
    with connected(port.url) as slow:
        slow.sendall(QUESTION[:1])
        while not port._server._open:
            pass
        clock.advance_ms(DEADLINE_MS - 1)
        slow.sendall(QUESTION[1:2])
        with connected(port.url) as later:
            while len(port._server._open) < 2:
                pass
            clock.advance_ms(1)
            assert is_closed(slow)
            later.sendall(QUESTION)
            assert later.recv(100).startswith(b"HTTP/1.0 200")


def test_a_response_that_no_client_reads_has_a_deadline(server: tuple[HttpServer, VirtualClock]) -> None:
    """A client that does not read its response is disconnected at the deadline."""
    port, clock = server
    with connected(port.url) as deaf:
        deaf.sendall(QUESTION)
        assert deaf.recv(4) == b"HTTP"
        clock.advance_ms(DEADLINE_MS)
        while port._server._open:
            pass


def test_those_that_are_served_are_not_interrupted(server: tuple[HttpServer, VirtualClock]) -> None:
    """A further connection is closed while each of the others is being served."""
    port, _ = server
    with connected(port.url) as first, connected(port.url) as second:
        for connection in (first, second):
            connection.sendall(QUESTION)
            assert connection.recv(4) == b"HTTP"
        with connected(port.url) as third:
            assert is_closed(third)
        total = 4
        while data := first.recv(1 << 20):
            total += len(data)
        assert total > 50_000_000


@pytest.mark.parametrize("target", [b"http://[::1/metrics", b"http://[/ready", b"x://]/"])
def test_a_target_that_is_no_url_gets_a_response(target: bytes) -> None:
    with metrics_server() as server:
        assert ask(server.url, target).startswith(b"HTTP/1.0 400")
        assert ask(server.url).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    ("request_line", "status", "sentence"),
    [
        (b"GET /xray?user=" + b"x" * 70_000 + b" HTTP/1.0", 414, HTTPStatus(414).phrase),
        (b"GET /ready HTTP/1.0" + (b"\r\nX: " + b"x" * 43_700) * 6, 431, "Too many headers"),
        (b"BREW /xray HTTP/1.0", 405, "only GET and HEAD are served here"),
    ],
)
def test_what_is_refused_early_is_a_sentence(request_line: bytes, status: int, sentence: str) -> None:
    """Early errors are one line of plain text instead of HTML, because commands show the text to their user."""
    with metrics_server() as server, connected(server.url) as connection:
        connection.sendall(request_line + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).decode().partition("\r\n\r\n")
    assert f" {status} " in head.splitlines()[0]
    assert "text/plain" in head
    assert body == f"{sentence}\n"


@pytest.mark.parametrize("method", [b"POST", b"PUT"])
def test_a_refused_body_does_not_cost_the_response(method: bytes) -> None:
    size = 5 << 20
    with metrics_server() as server, connected(server.url) as connection:
        connection.sendall(b"%s /xray HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (method, size) + bytes(size))
        assert b"".join(iter(lambda: connection.recv(4096), b"")).startswith(b"HTTP/1.0 405 ")


def test_scrapes_that_hang_leave_health_checks_alone() -> None:
    """Scrapes that hang do not block health checks, whose failure would make a supervisor end the process."""
    go_on = threading.Event()
    begun = threading.Semaphore(0)

    def text(accept: str | None = None) -> tuple[bytes, str]:
        if accept is not None:  # a scrape; the check at start-up calls without a type
            begun.release()
            go_on.wait(30)
        return b"", "text/plain"

    with metrics_server(text, "it stops") as server, contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        scrapes = [stack.enter_context(connected(server.url)) for _ in range(MAX_SCRAPES)]
        for scrape in scrapes:
            scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=20)
        assert ask(server.url, b"/metrics").startswith(b"HTTP/1.0 503")
        for _ in range(3 * MAX_CONNECTIONS):
            assert ask(server.url).startswith(b"HTTP/1.0 200")
            assert ask(server.url, b"/ready").startswith(b"HTTP/1.0 503 ")
        go_on.set()
        for scrape in scrapes:
            assert scrape.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    ("host", "peer"), [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("::1", "::1"), ("fe80::1%eth0",) * 2]
)
def test_the_address_of_a_client(host: str, peer: str) -> None:
    """ACLs of the console's users have IPv4 addresses, whatever the address of the port."""
    handler = Echo.__new__(Echo)
    handler.client_address = (host, 1)
    assert handler.peer == peer


def test_a_want_of_memory_does_not_end_the_port(
    monkeypatch: pytest.MonkeyPatch, server: tuple[HttpServer, VirtualClock]
) -> None:
    """A failed allocation, even that of a log line, does not end the port."""
    failed = threading.Event()

    def fail(_: object) -> None:
        failed.set()
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", fail)
        patch.setattr(http_server.logger, "exception", raising(MemoryError))
        with connected(server[0].url):
            assert failed.wait(5)
    assert ask(server[0].url).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_want_of_descriptors_is_no_reason_to_spin(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The acceptor waits after a failed accept instead of using a full CPU until a descriptor is free."""
    server = HttpServer("127.0.0.1", 0, Echo, 1, name="echo")
    server.start()
    waits: list[float] = []
    try:
        inner = server._server
        assert inner is not None
        monkeypatch.setattr(inner.stopping, "wait", waits.append)
        monkeypatch.setattr(socketserver.TCPServer, "get_request", raising(OSError(number, os.strerror(number))))
        with pytest.raises(OSError, match=os.strerror(number)):
            inner.get_request()
    finally:
        monkeypatch.undo()
        server.stop()
    assert waits == [0.1]


def test_a_refused_body_in_chunks_is_read() -> None:
    """A client that sends its whole body before it reads gets the response, and no reset, as with a length."""
    chunk = b"10000;a=b\r\n" + bytes(0x10000) + b"\r\n"
    with metrics_server() as server, connected(server.url) as connection:
        connection.sendall(b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n")
        connection.sendall(96 * chunk + b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 405 ")
