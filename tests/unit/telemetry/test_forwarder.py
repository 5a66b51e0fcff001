"""Forwarding to an OTLP endpoint: order, pauses on the broker's clock, bounds, and warnings about failures."""

import contextlib
import http.server
import logging
import threading
from functools import partial

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log.scheduler import Scheduler
from kbroker.telemetry.forwarder import CONTENT_TYPE, MAX_RESPONSE_BYTES, Forwarder
from tests.support.broker import wait_for
from tests.support.closing import close_at_end
from tests.support.fixtures import fixture_of


class Endpoint:
    """OTLP endpoint that responds with ``status``."""

    def __init__(self) -> None:
        self.status = 200
        self.answer = b""
        self.length = "0"
        self.clients: set[object] = set()
        self.received: list[tuple[str, str, bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.received.append((self.path, self.headers["Content-Type"], body))
                self.send_response(outer.status)
                self.send_header("Content-Length", outer.length)
                self.end_headers()
                outer.clients.add(self.client_address)
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(outer.answer)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


endpoint = fixture_of(lambda: close_at_end(Endpoint()))


clock = fixture_of(VirtualClock)


@pytest.fixture
def scheduler(clock: VirtualClock) -> Scheduler:
    return Scheduler(clock)


def test_messages_are_sent_in_order(endpoint: Endpoint, clock: VirtualClock, scheduler: Scheduler) -> None:
    """Messages go to OTLP's path unless the URL has a path."""
    forwarder = Forwarder(endpoint.url, clock, scheduler, 100)
    for number in range(3):
        forwarder.put(b"%d" % number)
    assert forwarder.stop(5)
    assert endpoint.received == [("/v1/metrics", CONTENT_TYPE, b"%d" % number) for number in range(3)]
    assert forwarder.figures == (3, 0, 0, 0)
    for target, path in (("/mine", "/mine"), ("?key=a", "/v1/metrics?key=a")):
        other = Forwarder(endpoint.url + target, clock, scheduler, 100)
        other.put(b"x")
        assert other.stop(5)
        assert endpoint.received[-1][0] == path


@pytest.mark.parametrize("length", [MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES + 1, 1 << 60])
def test_a_long_response(endpoint: Endpoint, clock: VirtualClock, scheduler: Scheduler, length: int) -> None:
    """A limited part of a response is read, and the next push has a new connection only if there is more of it."""
    endpoint.answer, endpoint.length = bytes(min(length, MAX_RESPONSE_BYTES + 1)), str(length)
    forwarder = Forwarder(endpoint.url, clock, scheduler, 100)
    forwarder.put(b"a")
    wait_for("the first push", lambda: forwarder.figures.sent == 1)
    forwarder.put(b"b")
    wait_for("the second push", lambda: forwarder.figures.sent == 2)
    assert len(endpoint.clients) == (1 if length == MAX_RESPONSE_BYTES else 2)
    assert forwarder.stop(5)


def _has_failed(forwarder: Forwarder, times: int) -> bool:
    return forwarder.figures.failed == times


def test_an_overloaded_endpoint_gets_the_message_again(
    endpoint: Endpoint, clock: VirtualClock, scheduler: Scheduler
) -> None:
    """A failed message is sent again after a pause that doubles, and the order is kept."""
    endpoint.status = 503
    forwarder = Forwarder(endpoint.url, clock, scheduler, 100)
    forwarder.put(b"a")
    forwarder.put(b"b")
    for attempt, pause_ms in enumerate((1000, 2000, 4000), 1):
        wait_for("a failed attempt", partial(_has_failed, forwarder, attempt))
        clock.advance_ms(pause_ms - 1)
        scheduler.run_due()
        assert len(endpoint.received) == attempt
        if pause_ms == 4000:
            endpoint.status = 200
        clock.advance_ms(1)
        scheduler.run_due()
    wait_for("the forwarder", lambda: forwarder.figures.sent == 2)
    assert [body for _, _, body in endpoint.received] == [b"a"] * 4 + [b"b"]
    assert forwarder.figures == (2, 3, 0, 0)
    assert forwarder.stop(5)


def test_a_refused_message_is_dropped(endpoint: Endpoint, clock: VirtualClock, scheduler: Scheduler) -> None:
    """A message that the endpoint rejects is not sent again."""
    endpoint.status = 400
    forwarder = Forwarder(endpoint.url, clock, scheduler, 100)
    forwarder.put(b"a")
    wait_for("the forwarder", lambda: forwarder.figures.dropped == 1)
    assert forwarder.figures == (0, 1, 1, 0)
    assert forwarder.stop(5)


def test_an_unreachable_endpoint(clock: VirtualClock, scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    """Messages are dropped while the queue is full, one warning a minute is logged, and a stop does not wait."""
    with caplog.at_level(logging.WARNING, "kbroker"):
        forwarder = Forwarder("http://127.0.0.1:1", clock, scheduler, 3)
        forwarder.put(b"a")
        wait_for("the forwarder", lambda: forwarder.figures.failed == 1)
        for _ in range(5):
            forwarder.put(b"b")
        assert forwarder.figures == (0, 1, 3, 3)
        assert forwarder.stop(5)
    assert forwarder.figures == (0, 4, 6, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("client metrics are not forwarded to http://127.0.0.1:1: ")


def test_nothing_is_taken_after_the_stop(endpoint: Endpoint, clock: VirtualClock, scheduler: Scheduler) -> None:
    forwarder = Forwarder(endpoint.url, clock, scheduler, 100)
    assert forwarder.stop(5)
    forwarder.put(b"a")
    assert forwarder.figures == (0, 0, 1, 0)
