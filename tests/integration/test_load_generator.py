"""Load generator of the benchmarks: each response is checked, and a stall of the server affects the figures."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.loads.generator import Frame, Generator, bare_loop, frames
from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.wire import Connection, create_topic, end_offset

PendingResponse = Callable[[int, bytes], bytes]
PING = {"ping": Frame(struct.pack(">hhih", 18, 0, 0, -1), error_at=4)}


@pytest.fixture(autouse=True)
def compiler() -> None:
    need.program("gcc")


@contextlib.contextmanager
def server(response: PendingResponse) -> Iterator[int]:
    """Serve one connection after another; `response` receives the number and the bytes of each request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as stream, contextlib.suppress(ConnectionError):
                number = 0
                while size := stream.read(4):
                    reply = response(number, stream.read(struct.unpack(">i", size)[0]))
                    client.sendall(struct.pack(">i", len(reply)) + reply)
                    number += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def right(number: int, request: bytes) -> bytes:
    return request[4:8] + b"\0\0rest"


def test_all_that_is_acknowledged_is_in_the_log(tmp_path: Path) -> None:
    """In a closed loop, the end offset grows by the counted requests, plus at most the requests in flight."""
    with BrokerProcess(tmp_path / "data") as broker:
        with Connection(broker.bootstrap) as connection:
            connection.ask(create_topic("load", 1))
        load = Generator(frames("load"), tmp_path)
        produced = load.run(broker.port, "produce", 4, 5, 0.5)
        assert 0 < produced["requests"] <= end_offset(broker.bootstrap, "load") <= produced["requests"] + 4 * 5
        for name in ("api_versions", "metadata", "fetch"):
            assert load.run(broker.port, name, 2, 3, 0.2)["requests"] > 10


def test_an_error_of_the_broker_ends_the_load(tmp_path: Path) -> None:
    """An error code in a response of a broker ends the load."""
    with BrokerProcess(tmp_path / "data", {"auto.create.topics.enable": "false"}) as broker:
        for name in ("produce", "fetch"):
            with pytest.raises(RuntimeError, match=r"the server responded with error 3$"):
                Generator(frames("absent"), tmp_path).run(broker.port, name, 1, 1, 5)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (lambda n, request: struct.pack(">i", n + (n == 7)) + b"\0\0", "expected the response to request 7, found 8"),
        (lambda n, request: request[4:8] + struct.pack(">h", 0 if n < 5 else -1), "the server responded with error -1"),
        (lambda n, request: request[4:8] + b"\0", "has no error code"),
        (lambda n, request: b"", "a response of 0 bytes"),
    ],
)
def test_a_wrong_response_ends_the_load(tmp_path: Path, response: PendingResponse, said: str) -> None:
    """A response with a wrong correlation id, an error code or without an error code ends the load."""
    with server(response) as port, pytest.raises(RuntimeError, match=said):
        Generator(PING, tmp_path).run(port, "ping", 1, 3, 5)


def test_a_closed_connection_ends_the_load(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close() -> None:
            listener.accept()[0].close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(RuntimeError, match=r"closed a connection|Connection reset"):
            Generator(PING, tmp_path).run(listener.getsockname()[1], "ping", 1, 1, 5)
        closer.join(5)


def test_a_stall_shows_in_every_request_it_held_up(tmp_path: Path) -> None:
    """At a given rate, latency is measured from the time a request was due, so that a stall delays many."""

    def stalls_once(number: int, request: bytes) -> bytes:
        if number == 20:
            time.sleep(0.5)
        return right(number, request)

    with server(stalls_once) as port:
        load = Generator(PING, tmp_path)
        open_loop = load.run(port, "ping", 1, 4, 1, rate=200)
        assert 175 <= open_loop["requests"] <= 200
        assert open_loop["p90_us"] > 150_000  # 100 of 200 requests were due during the stall
        assert open_loop["max_us"] > 480_000
        closed_loop = load.run(port, "ping", 1, 1, 1)
        assert closed_loop["p90_us"] < 150_000 < closed_loop["max_us"]


def test_what_could_not_be_sent_is_counted(tmp_path: Path) -> None:
    """Requests that a slow server could not receive in time are counted as not sent."""

    def slow(number: int, request: bytes) -> bytes:
        time.sleep(0.01)
        return right(number, request)

    with server(slow) as port:
        found = Generator(PING, tmp_path).run(port, "ping", 1, 2, 1, rate=1000)
    assert found["requests"] < 120
    assert found["not_sent"] > 800


def test_the_bare_loop_responds_in_order() -> None:
    """Responses to many requests in two writes have the correlation ids in order and the zeros."""
    with bare_loop(3) as (port, _), Connection(f"127.0.0.1:{port}") as connection:
        requests = b"".join(struct.pack(">ihhi", 8 + n % 5, 18, 0, n) + b"x" * (n % 5) for n in range(1000))
        connection.send_raw(requests[:5000])
        connection.send_raw(requests[5000:])
        assert [connection.receive() for _ in range(1000)] == [struct.pack(">i", n) + b"\0\0\0" for n in range(1000)]
