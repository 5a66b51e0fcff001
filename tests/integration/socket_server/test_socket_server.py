"""Requests and responses over sockets with each back end: invalid frames, order, throttles, resets."""

import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.native.echo import run_echo
from tests.support.socket_rig import Rig, assert_closed, frame, read_exactly, response, until


@pytest.fixture
def client(rig: Rig) -> socket.socket:
    """Client of the server."""
    return rig.connect()


@pytest.mark.parametrize("size", [101, 2**31 - 1, -1, -(2**31)])
def test_impossible_sizes_close_the_connection(rig: Rig, size: int) -> None:
    """A size above the limit or below zero closes only the connection that sent it (SS-1)."""
    rig.serve()
    good, bad = rig.connect(), rig.connect()
    bad.sendall(struct.pack(">i", size) + b"x" * 50)
    assert_closed(bad)
    good.sendall(frame(b"still here"))
    assert response(good) == b"still here"


def test_empty_frame_is_a_request(client: socket.socket, rig: Rig) -> None:
    """An empty frame is a request, and a response can be empty."""
    client.sendall(frame(b""))
    request = rig.receive()
    assert bytes(request.payload) == b""
    request.respond(b"")
    assert response(client) == b""


def test_requests_of_a_closed_client_are_delivered(client: socket.socket, rig: Rig) -> None:
    """Pipelined requests are delivered although their client has disconnected (SS-7)."""
    client.sendall(b"".join(frame(b"%d" % i) for i in range(10)))
    client.close()
    for i in range(10):
        request = rig.receive()
        assert bytes(request.payload) == b"%d" % i
        request.respond_nothing()
    until(lambda: rig.open_connections() == 0, "closed")


def test_no_op_goes_on_with_the_next_request(client: socket.socket, rig: Rig) -> None:
    """Requests that need no response are delivered one after another (SS-8)."""
    client.sendall(b"".join(frame(b"%d" % i) for i in range(3)))
    for i in range(3):
        request = rig.receive()
        assert rig.channel.receive(0) is None
        assert bytes(request.payload) == b"%d" % i
        request.respond_nothing()


def test_throttle_outlasts_the_response(client: socket.socket, rig: Rig) -> None:
    """The response is sent at once; the next request is read only when the throttle has ended (SS-9, SS-10)."""
    client.sendall(frame(b"1") + frame(b"2"))
    request = rig.receive()
    throttle = request.start_throttle()
    request.respond(b"one")
    assert response(client) == b"one"
    assert rig.channel.receive(0.05) is None
    throttle.end()
    throttle.end()
    second = rig.receive()
    assert bytes(second.payload) == b"2"
    ended = second.start_throttle()
    ended.end()
    second.respond(b"two")
    assert response(client) == b"two"
    client.sendall(frame(b"3"))
    rig.receive().respond(b"three")
    assert response(client) == b"three"
    assert rig.count("illegal_states") == 0


def test_throttle_of_a_closed_connection(client: socket.socket, rig: Rig) -> None:
    """The end of a throttle has no effect after the connection is closed."""
    client.sendall(frame(b"1"))
    request = rig.receive()
    throttle = request.start_throttle()
    request.close()
    assert_closed(client)
    until(lambda: rig.open_connections() == 0, "closed")
    throttle.end()


def test_forgotten_request_closes_its_connection(client: socket.socket, rig: Rig) -> None:
    """A request that is garbage collected without a response closes its connection; a second response is an error."""
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
        with pytest.raises(ValueError, match="has its response already"):
            again()
    assert bytes(view) == b"2"


def test_a_request_without_memory_closes_its_connection() -> None:
    """Whichever allocation fails, the client does not wait. It runs in another process, as any thread may fail."""
    pytest.importorskip("_testcapi")
    code = """
import _testcapi
from tests.support.socket_rig import Rig, assert_closed, frame, response, until
rig = Rig("auto")
request = None
for number in range(100):
    client = rig.connect()
    client.sendall(frame(b"x"))
    until(lambda: len(rig.channel.queue) == 1, "a request")
    try:
        _testcapi.set_nomemory(number, number + 1)
        request = rig.channel.receive(10)
    except MemoryError:
        pass
    finally:
        _testcapi.remove_mem_hooks()
    if request is not None:
        break
    if len(rig.channel.queue):
        rig.receive().close()
    client.settimeout(10)
    assert_closed(client)
request.respond(b"ok")
assert response(client) == b"ok"
rig.close()
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def test_wrong_response_type_leaves_the_request_open(client: socket.socket, rig: Rig) -> None:
    """A response of a wrong type raises TypeError, and another response can be sent."""
    client.sendall(frame(b"1"))
    request = rig.receive()
    with pytest.raises(TypeError):
        request.respond("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        request.respond([b"part", 3])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        request.respond([b"part", memoryview(b"every other")[::2]])
    request.respond([b"part", bytearray(b"ial"), memoryview(b"")])
    assert response(client) == b"partial"


@pytest.mark.parametrize("request_batch_max", [1, 16])
def test_pipelined_requests_get_responses_in_order(backend: object, request_batch_max: int) -> None:
    """The responses to 10,000 pipelined requests are complete and in order, with any size of a request batch."""
    rig = Rig(backend, request_batch_max=request_batch_max)
    rig.serve()
    client = rig.connect()
    stream = b"".join(frame(b"%09d" % i) for i in range(10000))
    sender = threading.Thread(target=client.sendall, args=(stream,))
    sender.start()
    assert read_exactly(client, len(stream)) == stream
    sender.join(10)
    rig.close()


def test_responses_given_backwards_are_sent_in_order(backend: object) -> None:
    """Responses that a handler completes in reverse order are sent in the order of the requests."""
    rig = Rig(backend)
    handler = threading.Thread(target=run_echo, args=(rig.channel.queue,), kwargs={"backwards": True})
    handler.start()
    client = rig.connect()
    stream = b"".join(frame(b"%09d" % i) for i in range(1000))
    client.sendall(stream)
    assert read_exactly(client, len(stream)) == stream
    rig.close()
    handler.join(10)


def test_reset_in_the_middle_of_a_request(rig: Rig) -> None:
    """A reset inside a frame or before a response does not affect later connections."""
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
    assert response(client) == b"fine"


def test_reset_while_a_request_is_out(client: socket.socket, rig: Rig) -> None:
    """A reset connection is closed at once, not when the response of its request is ready."""
    client.sendall(frame(b"whole"))
    request = rig.receive()
    assert rig.open_connections() == 1
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: rig.open_connections() == 0, "closed")
    request.respond(b"no reader")


def test_reset_while_more_requests_are_out(client: socket.socket, rig: Rig) -> None:
    """Complete requests that were read before a reset are delivered."""
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


def test_half_closed_client_gets_its_responses(client: socket.socket, rig: Rig) -> None:
    """A client that has shut down its sending side still receives its responses, and then the end of the stream."""
    client.sendall(frame(b"1") + frame(b"2"))
    client.shutdown(socket.SHUT_WR)
    for _ in range(2):
        request = rig.receive()
        request.respond(bytes(request.payload))
    assert (response(client), response(client), client.recv(1)) == (b"1", b"2", b"")


def test_close_follows_earlier_responses(client: socket.socket, rig: Rig) -> None:
    """`close` ends the connection after the earlier responses; later pipelined requests are dropped."""
    client.sendall(frame(b"1") + frame(b"2") + frame(b"3"))
    rig.receive().respond(b"one")
    rig.receive().close()
    assert response(client) == b"one"
    assert_closed(client)
    assert rig.channel.receive(0.02) is None
