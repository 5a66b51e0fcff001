"""The socket server and its threads: wrong settings, wrong order, wrong thread."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.requests.request_queue import Queue
from kbroker.common.listeners import Listener
from kbroker.network._acceptor import Acceptor
from kbroker.network.processor._processor import Processor
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer, SocketServerOptions
from tests.support.bad_input import JUNK, OBJECTS, at_any_pace, attempt, refused, storm

HERE = Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)


@at_any_pace
@given(st.data())
def test_processor(data: st.DataObject) -> None:
    """Settings are refused one by one; a processor that never runs can be asked and stopped."""
    names = ("pool", "clock", "framing", "max_size_bytes", "delimiter", "idle_ms", "frame_timeout_ms",
        "request_batch_max",
             "principal", "listener_id", "max_connections", "send_files")  # fmt: skip
    chosen = data.draw(st.dictionaries(st.sampled_from(names), JUNK, max_size=2))
    queue = st.one_of(st.just(Queue(5)), OBJECTS)
    attempt(lambda: lambda *given: Processor(*given, **chosen), data, [JUNK, JUNK, queue], (BufferError,))
    processor = Processor("x", 0, Queue(5))
    descriptors = st.one_of(OBJECTS.filter(lambda x: not isinstance(x, bool)), st.integers(max_value=-1))
    storm(
        data, processor, {"offer": [descriptors], "counters": [], "begin_stop": [], "finish_stop": [], "__init__": []}
    )
    with pytest.raises(RuntimeError, match="needs its own thread"):
        processor.run()


@at_any_pace
@given(st.data())
def test_acceptor(data: st.DataObject) -> None:
    """A descriptor that is none and a list without processors are refused; the main thread is not taken."""
    processor = Processor("x", 0, Queue(5))
    listeners = st.one_of(
        OBJECTS.filter(lambda x: not isinstance(x, bool)), st.integers(2**20, 2**70), st.integers(max_value=-1)
    )
    attempt(lambda: Acceptor, data, [listeners, st.one_of(st.just([processor]), JUNK)], ())
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert refused(Acceptor, server.fileno(), [processor, 5]) is TypeError
        assert refused(Acceptor, server.fileno(), [processor], send_buffer_bytes=2**40) is ValueError
        acceptor = Acceptor(server.fileno(), [processor])
        storm(data, acceptor, {"stop": [], "accepted": [], "out_of_descriptors": [], "blocked_ns": []})
        with pytest.raises(RuntimeError, match="needs its own thread"):
            acceptor.run()


@at_any_pace
@given(st.data())
def test_server(data: st.DataObject) -> None:
    """What is no listener, queue, pool, clock or option is refused before a socket is made."""
    server = attempt(lambda: SocketServer, data, [JUNK, JUNK, JUNK], (AttributeError,))
    assert server is None
    queue = Queue(5)
    keywords = data.draw(
        st.dictionaries(st.sampled_from(["pool", "clock", "options"]), OBJECTS.filter(bool), max_size=2)
    )
    if keywords:
        assert refused(SocketServer, [HERE], queue, **keywords) is TypeError
    assert refused(SocketServer, [], queue) is ValueError
    assert refused(SocketServer, [HERE, "x"], queue) is TypeError
    assert refused(SocketServer, [HERE], queue, SocketServerOptions(network_threads=0)) is ValueError


def test_order_of_calls() -> None:
    """Stopped before started, started twice, stopped twice: an error or nothing, and no thread is left."""
    before = threading.active_count()
    never = SocketServer([HERE], Queue(5))
    never.begin_stop()
    assert never.stop()
    channel = RequestChannel()
    server = SocketServer([HERE], channel.queue, SocketServerOptions(network_threads=1))
    with pytest.raises(KeyError):
        server.port("PLAINTEXT")
    server.start()
    with pytest.raises(RuntimeError):
        server.start()
    assert server.stop()
    assert server.stop()
    assert threading.active_count() == before


def test_a_wrong_option_found_at_the_start_leaves_nothing() -> None:
    """The port is free again when a network thread could not be made."""
    server = SocketServer([HERE], Queue(5), SocketServerOptions(framing="lines"))
    with pytest.raises(ValueError, match="framing"):
        server.start()
    assert server.listeners == []


def test_responses_that_are_no_bytes() -> None:
    """After a refused answer the request can still be answered, and only the second answer is sent."""
    channel = RequestChannel()
    server = SocketServer([HERE], channel.queue, SocketServerOptions(network_threads=1))
    server.start()
    with socket.create_connection(("127.0.0.1", server.port("PLAINTEXT")), timeout=10) as client:
        client.sendall(b"\0\0\0\1x")
        request = channel.receive(10)
        assert request is not None
        for wrong in (5, "text", [b"stale", "text"], [b"stale", memoryview(b"abcd")[::2]], object(), [None]):
            assert refused(request.respond, wrong) is TypeError
        request.respond([b"good", bytearray(b"!")])
        assert client.recv(100) == b"\0\0\0\5good!"
        assert refused(request.respond, b"again") is ValueError
        assert refused(request.start_throttle) is ValueError
    server.stop()
