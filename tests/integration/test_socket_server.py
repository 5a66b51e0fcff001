"""The socket server over real sockets: hostile clients, order, throttles, expiry and stop, on each back end."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker._core._echo import run_echo, run_files
from kbroker._core.clock import BaseClock, VirtualClock
from kbroker._core.memory_pool import MemoryPool
from kbroker._core.request_queue import Queue
from kbroker.common.listeners import Listener
from kbroker.network._processor import Processor
from kbroker.network.authentication import ListenerSecurity
from kbroker.network.request_channel import InboundRequest, RequestChannel
from kbroker.network.socket_server import SocketServer, SocketServerOptions


def selectors2_selector() -> object:
    """selectors2 2.0.2 still imports Mapping from where Python 3.9 had it."""
    if not hasattr(collections, "Mapping"):
        collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    selectors2 = pytest.importorskip("selectors2")
    return selectors2.SelectSelector()


BACKENDS: dict[str, object] = {
    "native": "auto",
    "selectors": selectors.DefaultSelector,
    "selectors2": selectors2_selector,
}
PAUSE = threading.Event()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, not for a time."""
    for _ in range(5000):
        if condition():
            return
        PAUSE.wait(0.002)
    raise AssertionError(f"never happened: {what}")


def frame(payload: bytes) -> bytes:
    """A payload behind its length."""
    return struct.pack(">i", len(payload)) + payload


def read_exactly(client: socket.socket, size: int) -> bytes:
    """Bytes of an answer; fails when the server closes first."""
    got = b""
    while len(got) < size:
        piece = client.recv(size - len(got))
        assert piece, f"closed after {len(got)} of {size} bytes"
        got += piece
    return got


def answer(client: socket.socket) -> bytes:
    """The next answer."""
    (size,) = struct.unpack(">i", read_exactly(client, 4))
    return read_exactly(client, size)


class Rig:
    """A server with one network thread, a queue of 50 and requests up to 100 bytes, unless told otherwise."""

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


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> object:
    """Each way to poll in turn."""
    return BACKENDS[request.param]


@pytest.fixture
def rig(backend: object) -> Iterator[Rig]:
    made = Rig(backend)
    yield made
    made.close()


def assert_closed(client: socket.socket) -> None:
    """The server ends the connection."""
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize("size", [101, 2**31 - 1, -1, -(2**31)])
def test_impossible_sizes_close_the_connection(rig: Rig, size: int) -> None:
    """SS-1: a size above the limit or below zero ends that connection, and no other."""
    rig.serve()
    good, bad = rig.connect(), rig.connect()
    bad.sendall(struct.pack(">i", size) + b"x" * 50)
    assert_closed(bad)
    good.sendall(frame(b"still here"))
    assert answer(good) == b"still here"


def test_empty_frame_is_a_request(rig: Rig) -> None:
    """A frame of no bytes reaches the handler, and an answer of no bytes the client."""
    client = rig.connect()
    client.sendall(frame(b""))
    request = rig.receive()
    assert bytes(request.payload) == b""
    request.respond(b"")
    assert answer(client) == b""


def test_connection_ids_count_per_processor(rig: Rig) -> None:
    """SS-3: the processor is 0, the index of each new connection one higher; the addresses are the client's."""
    for index in range(5):
        client = rig.connect()
        client.sendall(frame(b"id"))
        request = rig.receive()
        local, remote, processor, number = request.connection_id.split("-")
        assert (processor, number) == ("0", str(index))
        assert remote == "{}:{}".format(*client.getsockname())
        assert local == "{}:{}".format(*client.getpeername())
        assert (request.listener_name, request.principal) == ("PLAINTEXT", "User:ANONYMOUS")
        request.respond_nothing()


def test_idle_connections_expire(backend: object) -> None:
    """SS-4, SS-5: an answered connection and one whose request is in progress expire; a late answer does no harm."""
    clock = VirtualClock()
    rig = Rig(backend, clock)
    answered, busy = rig.connect(), rig.connect()
    answered.sendall(frame(b"a"))
    rig.receive().respond(b"a")
    assert answer(answered) == b"a"
    busy.sendall(frame(b"b") + frame(b"c"))
    late = rig.receive()
    clock.advance_ms(60001)
    until(lambda: rig.count("connections_expired") == 1, "one expired")
    clock.advance_ms(1)
    until(lambda: rig.count("connections_expired") == 2, "both expired")
    assert_closed(answered)
    assert_closed(busy)
    late.respond(b"late")  # SS-6: and "c" is never delivered
    fresh = rig.connect()
    fresh.sendall(frame(b"fresh"))
    request = rig.receive()
    assert bytes(request.payload) == b"fresh"
    request.respond(b"ok")
    assert answer(fresh) == b"ok"
    rig.close()


def test_requests_of_a_closed_client_are_delivered(rig: Rig) -> None:
    """SS-7: ten pipelined requests whose client is gone are all delivered."""
    client = rig.connect()
    client.sendall(b"".join(frame(b"%d" % i) for i in range(10)))
    client.close()
    for i in range(10):
        request = rig.receive()
        assert bytes(request.payload) == b"%d" % i
        request.respond_nothing()
    until(lambda: rig.open_connections() == 0, "closed")


def test_no_op_goes_on_with_the_next_request(rig: Rig) -> None:
    """SS-8: requests without an answer follow each other, one at a time."""
    client = rig.connect()
    client.sendall(b"".join(frame(b"%d" % i) for i in range(3)))
    for i in range(3):
        request = rig.receive()
        assert rig.channel.receive(0) is None
        assert bytes(request.payload) == b"%d" % i
        request.respond_nothing()


def test_throttle_outlasts_the_answer(rig: Rig) -> None:
    """SS-9, SS-10: the answer goes out at once; the next request is read only when the throttle has ended."""
    client = rig.connect()
    client.sendall(frame(b"1") + frame(b"2"))
    request = rig.receive()
    throttle = request.start_throttle()
    request.respond(b"one")
    assert answer(client) == b"one"
    assert rig.channel.receive(0.05) is None
    throttle.end()
    throttle.end()
    second = rig.receive()
    assert bytes(second.payload) == b"2"
    ended = second.start_throttle()
    ended.end()
    second.respond(b"two")
    assert answer(client) == b"two"
    client.sendall(frame(b"3"))
    rig.receive().respond(b"three")
    assert answer(client) == b"three"
    assert rig.count("illegal_states") == 0


def test_throttle_of_a_closed_connection(rig: Rig) -> None:
    """A throttle that ends after its connection is gone is dropped."""
    client = rig.connect()
    client.sendall(frame(b"1"))
    request = rig.receive()
    throttle = request.start_throttle()
    request.close()
    assert_closed(client)
    until(lambda: rig.open_connections() == 0, "closed")
    throttle.end()


def test_forgotten_request_closes_its_connection(rig: Rig) -> None:
    """A handler that drops a request does not leave its client waiting; answering twice is an error."""
    client = rig.connect()
    client.sendall(frame(b"1"))
    request = rig.receive()
    del request
    assert_closed(client)
    client = rig.connect()
    client.sendall(frame(b"2"))
    request = rig.receive()
    view = request.payload
    request.respond(b"x")
    for again in (request.close, request.respond_nothing, lambda: request.respond(b"y"), request.start_throttle):
        with pytest.raises(ValueError, match="was answered"):
            again()
    assert bytes(view) == b"2"


def test_wrong_answer_type_leaves_the_request_open(rig: Rig) -> None:
    """A TypeError in the answer is the handler's to repair."""
    client = rig.connect()
    client.sendall(frame(b"1"))
    request = rig.receive()
    with pytest.raises(TypeError):
        request.respond("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        request.respond([b"part", 3])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        request.respond([b"part", memoryview(b"every other")[::2]])
    request.respond([b"part", bytearray(b"ial"), memoryview(b"")])
    assert answer(client) == b"partial"


@pytest.mark.parametrize("run_length", [1, 16])
def test_pipelined_requests_are_answered_in_order(backend: object, run_length: int) -> None:
    """10,000 requests sent without reading an answer come back complete and in order, in any run length."""
    rig = Rig(backend, run_length=run_length)
    rig.serve()
    client = rig.connect()
    stream = b"".join(frame(b"%09d" % i) for i in range(10000))
    sender = threading.Thread(target=client.sendall, args=(stream,))
    sender.start()
    assert read_exactly(client, len(stream)) == stream
    sender.join(10)
    rig.close()


def test_answers_given_backwards_go_out_in_order(backend: object) -> None:
    """Answers of one run that come back last first are sent in the order of their requests."""
    rig = Rig(backend)
    handler = threading.Thread(target=run_echo, args=(rig.channel.queue,), kwargs={"backwards": True})
    handler.start()
    client = rig.connect()
    stream = b"".join(frame(b"%09d" % i) for i in range(1000))
    client.sendall(stream)
    assert read_exactly(client, len(stream)) == stream
    rig.close()
    handler.join(10)


def test_slow_reader_holds_up_nobody(backend: object) -> None:
    """A client that reads nothing fills its own socket and no memory; others are served meanwhile."""
    rig = Rig(backend, max_request_bytes=100000)
    rig.serve()
    slow, quick = rig.connect(), rig.connect()
    slow.settimeout(0.3)
    big, sent = frame(b"s" * 90000), 0
    with contextlib.suppress(TimeoutError):
        while sent < 1000:
            slow.sendall(big)
            sent += 1
    assert sent < 1000
    for i in range(100):
        quick.sendall(frame(b"%d" % i))
        assert answer(quick) == b"%d" % i
    assert rig.count("requests") < sent + 200
    rig.close()


def test_reset_in_the_middle_of_a_request(rig: Rig) -> None:
    """A connection reset inside a frame, or before its answer is read, costs only itself."""
    for payload in (b"\0\0", struct.pack(">i", 50) + b"half", frame(b"whole")):
        client = rig.connect()
        client.sendall(payload)
        if payload == frame(b"whole"):
            request = rig.receive()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    request.respond(b"x" * 50)
    until(lambda: rig.open_connections() == 0, "closed")
    rig.serve()
    client = rig.connect()
    client.sendall(frame(b"fine"))
    assert answer(client) == b"fine"


def test_reset_while_a_request_is_out(rig: Rig) -> None:
    """A connection that is reset while its request waits for an answer is closed at once, not when it is answered."""
    client = rig.connect()
    client.sendall(frame(b"whole"))
    request = rig.receive()
    assert rig.open_connections() == 1
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: rig.open_connections() == 0, "closed")
    request.respond(b"for nobody")


def test_reset_while_more_requests_are_out(rig: Rig) -> None:
    """Complete requests that were read before a reset are delivered all the same."""
    client = rig.connect()
    client.sendall(b"".join(frame(b"%d" % i) for i in range(10)))
    first = rig.receive()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    first.respond_nothing()
    for i in range(1, 10):
        request = rig.receive()
        assert bytes(request.payload) == b"%d" % i
        request.respond_nothing()
    until(lambda: rig.open_connections() == 0, "closed")


def test_half_closed_client_gets_its_answers(rig: Rig) -> None:
    """A client that has sent everything and shut that direction still reads its answers, then the end."""
    client = rig.connect()
    client.sendall(frame(b"1") + frame(b"2"))
    client.shutdown(socket.SHUT_WR)
    for _ in range(2):
        request = rig.receive()
        request.respond(bytes(request.payload))
    assert (answer(client), answer(client), client.recv(1)) == (b"1", b"2", b"")


def test_frame_that_never_completes(backend: object) -> None:
    """A frame begun and not finished within its time ends the connection; the pool gets its bytes back."""
    clock = VirtualClock()
    pool = MemoryPool(1000, 100, clock=clock)
    rig = Rig(backend, clock, pool, frame_timeout_ms=30000)
    client = rig.connect()
    client.sendall(struct.pack(">i", 100) + b"half")
    until(lambda: rig.count("bytes_received") == 8, "read")
    until(lambda: pool.available_bytes == 900, "charged")
    clock.advance_ms(30001)
    until(lambda: rig.count("frames_expired") == 1, "expired")
    assert_closed(client)
    assert pool.available_bytes == 1000
    rig.close()


def test_pool_limits_what_is_in_progress(backend: object) -> None:
    """Requests beyond the pool wait in their sockets until answers give memory back."""
    pool = MemoryPool(100, 100)
    rig = Rig(backend, pool=pool)
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        client.sendall(frame(b"p" * 100))
    for left in range(3, 0, -1):
        request = rig.receive()
        assert (pool.available_bytes, len(rig.channel)) == (0, 0)
        request.respond(b"%d" % left)
    assert sorted(answer(client) for client in clients) == [b"1", b"2", b"3"]
    until(lambda: pool.available_bytes == 100, "all back")
    rig.close()


def test_close_follows_earlier_answers(rig: Rig) -> None:
    """ACTION_CLOSE ends the connection behind the answers before it; what was pipelined behind is dropped."""
    client = rig.connect()
    client.sendall(frame(b"1") + frame(b"2") + frame(b"3"))
    rig.receive().respond(b"one")
    rig.receive().close()
    assert answer(client) == b"one"
    assert_closed(client)
    assert rig.channel.receive(0.02) is None


def test_other_framings(backend: object) -> None:
    """Framing is a parameter: lines in, bytes out."""
    rig = Rig(backend, framing="delimiter", delimiter=b"\r\n")
    client = rig.connect()
    client.sendall(b"PING\r\nPO")
    request = rig.receive()
    request.respond(b"+" + bytes(request.payload) + b"\r\n")
    client.sendall(b"NG\r\n")
    request = rig.receive()
    request.respond(b"+" + bytes(request.payload) + b"\r\n")
    assert read_exactly(client, 14) == b"+PING\r\n+PONG\r\n"
    rig.close()


def test_excess_connections_close_the_least_active(backend: object) -> None:
    """When max.connections is lowered the least recently active connections go, one per pass."""
    rig = Rig(backend, max_connections=3)
    first, second, third = rig.connect(), rig.connect(), rig.connect()
    for client in (second, first, third):
        client.sendall(frame(b"1"))
        rig.receive().respond(b"1")
        assert answer(client) == b"1"
    rig.server.connection_quotas.update(2, 100)
    assert_closed(second)
    third.sendall(frame(b"3"))
    rig.receive().respond(b"3")
    assert answer(third) == b"3"
    assert rig.server.connection_quotas.count() == 2
    rig.close()


def test_a_connection_above_the_limit_waits(backend: object) -> None:
    """With max.connections open ones the next is served once another has gone."""
    rig = Rig(backend, max_connections=1)
    rig.serve()
    first = rig.connect()
    first.sendall(frame(b"1"))
    assert answer(first) == b"1"
    second = rig.connect()
    second.sendall(frame(b"2"))
    (acceptor,) = rig.server.acceptors
    until(lambda: acceptor.accepted == 2, "the second was accepted")
    assert rig.server.connection_quotas.count() == 1
    first.close()
    assert answer(second) == b"2"
    rig.close()


def test_one_address_above_its_limit_is_closed(backend: object) -> None:
    """SS-2: the sixth of five connections reads the end of the stream; after one of them has gone a new one works."""
    rig = Rig(backend, max_connections_per_ip=5)
    rig.serve()
    clients = [rig.connect() for _ in range(5)]
    for client in clients:
        client.sendall(frame(b"1"))
        assert answer(client) == b"1"
    assert_closed(rig.connect())
    assert (rig.server.connection_quotas.count("127.0.0.1"), rig.server.connection_quotas.refused) == (5, 1)
    clients[0].close()
    until(lambda: rig.server.connection_quotas.count() == 4, "the closed connection is not counted any more")
    again = rig.connect()
    again.sendall(frame(b"2"))
    assert answer(again) == b"2"
    rig.close()
    assert rig.server.connection_quotas.count() == 0


def test_an_address_with_a_limit_of_its_own(backend: object) -> None:
    """The override of an address wins over the limit of all, also when it comes while the server runs."""
    rig = Rig(backend, max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 1, "::1": 7})
    rig.serve()
    first = rig.connect()
    first.sendall(frame(b"1"))
    assert answer(first) == b"1"
    assert_closed(rig.connect())
    rig.server.connection_quotas.update(100, 0, {"127.0.0.1": 2})
    second = rig.connect()
    second.sendall(frame(b"2"))
    assert answer(second) == b"2"
    rig.close()


def test_stop_sends_what_was_answered(rig: Rig) -> None:
    """begin_stop reads nothing more and still sends; finish_stop closes; requests out then are harmless."""
    client, other = rig.connect(), rig.connect()
    client.sendall(frame(b"1"))
    request = rig.receive()
    other.sendall(frame(b"o"))
    never = rig.receive()
    rig.server.begin_stop()
    with pytest.raises(OSError):
        socket.create_connection(client.getpeername(), 1)
    request.respond(b"done")
    assert answer(client) == b"done"
    rig.channel.close()
    assert rig.server.finish_stop()
    assert_closed(client)
    assert_closed(other)
    never.respond(b"too late")


def serve_and_drop(rig: Rig) -> None:
    """Fifty connections, a third of them gone and half of them inside a frame, then a stop."""
    rig.serve()
    for i in range(50):
        client = rig.connect()
        client.sendall(frame(b"x") if i % 2 else b"\0")
        if i % 3 == 0:
            client.close()
    until(lambda: rig.count("connections_created") == 50, "all accepted")
    rig.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts /proc/self/fd")
def test_descriptors_and_threads_come_back(backend: object) -> None:
    """After connections, resets and a stop the process has the descriptors and threads it had before."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    Rig(backend).close()
    before, threads = descriptors(), threading.active_count()
    serve_and_drop(Rig(backend))
    assert (descriptors(), threading.active_count()) == (before, threads)


def test_thread_names_are_kafkas(rig: Rig) -> None:
    """Thread dumps read like Kafka's."""
    names = {thread.name for thread in threading.enumerate()}
    assert "data-plane-kafka-network-thread-0-ListenerName(PLAINTEXT)-PLAINTEXT-0" in names
    port = rig.server.port("PLAINTEXT")
    assert f"data-plane-kafka-socket-acceptor-ListenerName(PLAINTEXT)-PLAINTEXT-{port}" in names


def test_address_in_use_is_named() -> None:
    """A listener that cannot be bound is named, and the ones bound before it are released."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = SocketServer(
            [Listener("A", "PLAINTEXT", "127.0.0.1", 0), Listener("B", "PLAINTEXT", "127.0.0.1", port)],
            RequestChannel().queue,
        )
        with pytest.raises(OSError, match=f"cannot listen on B://127.0.0.1:{port}"):
            server.start()
        assert server.listeners == []


@pytest.mark.parametrize("send_files", [True, False])
@pytest.mark.parametrize("size", [1, 70000, 5_000_000])
def test_file_regions_between_bytes(tmp_path: Path, send_files: bool, size: int) -> None:
    """An answer of bytes, a file region and bytes arrives whole, by sendfile and by copying, also to a slow reader."""
    content = bytes(range(256)) * (size // 256 + 2)
    path = tmp_path / "segment"
    path.write_bytes(content)
    channel = RequestChannel()
    processor = Processor("P", 0, channel.queue, send_files=send_files)
    loop = threading.Thread(target=processor.run)
    handler = threading.Thread(target=run_files, args=(channel.queue, os.open(path, os.O_RDONLY), 7, size))
    loop.start()
    handler.start()
    ours, theirs = socket.socketpair()
    with ours:
        assert processor.offer(theirs.detach())
        ours.settimeout(10)
        ours.sendall(frame(b"<>") * 3)
        for _ in range(3):
            assert answer(ours) == b"<>" + content[7 : 7 + size] + b"<>"
    processor.finish_stop()
    channel.close()
    loop.join(10)
    handler.join(10)
    assert not loop.is_alive()


@pytest.mark.parametrize("send_files", [True, False])
def test_file_shorter_than_promised_closes(tmp_path: Path, send_files: bool) -> None:
    """A region that ends before its length closes the connection: what follows would be read as file content."""
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    channel = RequestChannel()
    processor = Processor("P", 0, channel.queue, send_files=send_files)
    loop = threading.Thread(target=processor.run)
    handler = threading.Thread(target=run_files, args=(channel.queue, os.open(path, os.O_RDONLY), 0, 10))
    loop.start()
    handler.start()
    ours, theirs = socket.socketpair()
    with ours:
        assert processor.offer(theirs.detach())
        ours.settimeout(10)
        ours.sendall(frame(b"<>"))
        assert read_exactly(ours, 11) == struct.pack(">i", 14) + b"<>short"
        assert_closed(ours)
    processor.finish_stop()
    channel.close()
    loop.join(10)
    handler.join(10)


def test_security_that_cannot_be() -> None:
    """Of a listener that is not there, or no ListenerSecurity; refused before anything is bound."""
    listener = Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)
    with pytest.raises(ValueError, match="security names 'OTHER', the listeners are PLAINTEXT"):
        SocketServer([listener], Queue(5), security={"OTHER": ListenerSecurity()})
    with pytest.raises(TypeError, match="must be a ListenerSecurity, not int"):
        SocketServer([listener], Queue(5), security={"PLAINTEXT": 5})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="authentication must be an Authentication, not int"):
        Processor("PLAINTEXT", 0, Queue(5), authentication=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TlsServer"):
        Processor("PLAINTEXT", 0, Queue(5), tls=5)  # type: ignore[arg-type]
