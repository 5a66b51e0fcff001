"""Wrong order of calls, wrong threads and faulty parts: bad input that needs more than one call."""

import selectors
import socket
import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.network.selector import IllegalStateError, Selector
from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.purgatory import Purgatory
from kbroker.network.options import SocketServerOptions
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer
from kbroker.protocol._encoder import Plan, encode
from tests.property.bad_input_rows.core import Liar, Waiting
from tests.property.bad_input_rows.network import HERE
from tests.property.bad_input_rows.protocol import ABSENT, TAGGED
from tests.support.bad_input import refused


def test_a_key_that_cannot_be_compared_loses_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed comparison is reported, and every operation of the key is returned."""
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda why: reported.append(why.exc_type))
    with Purgatory("p", VirtualClock()) as purgatory:
        waiting = [Waiting(5) for _ in range(3)]
        for operation in waiting:
            assert not purgatory.try_complete_else_watch(operation, [Liar()])
        assert purgatory.cancel_for_key(Liar()) == waiting
        assert (purgatory.watched, purgatory.delayed) == (0, 0)
    assert reported == [ZeroDivisionError] * 3


def test_descriptors_that_are_no_sockets() -> None:
    """Closed sockets are an OSError, impossible numbers a ValueError, and other objects a TypeError."""
    selector = Selector()
    gone, other = socket.socketpair()
    gone.close()
    other.close()
    with pytest.raises(OSError, match="cannot register"):
        selector.register(gone, "x")
    assert refused(selector.register, -1, "x") is ValueError
    assert refused(selector.register, 2**31, "x") is ValueError
    assert refused(selector.register, "fd", "x") is TypeError
    assert not selector.is_open("x")
    selector.close()


def test_very_long_waits() -> None:
    """A time-out beyond the poller's integers is a long wait, not an error and not a poll without waiting."""
    for backend in ("auto", selectors.DefaultSelector()):
        for timeout_ms in (2**31, 2**32 + 5, 2**63 - 1):
            selector = Selector(backend=backend) if backend == "auto" else Selector(backend=selectors.DefaultSelector())
            ours, theirs = socket.socketpair()
            selector.register(ours, "a")
            waker = threading.Thread(target=theirs.sendall, args=(b"\0\0\0\1x",))
            waker.start()
            while not selector.completed_receives:
                selector.poll(timeout_ms)
            waker.join()
            theirs.close()
            selector.completed_receives[0].release()
            selector.close()


def test_a_second_thread_is_turned_away() -> None:
    """While one thread polls, every call from another thread except wakeup raises IllegalStateError."""
    selector = Selector()
    ours, theirs = socket.socketpair()
    selector.register(ours, "a")
    inside, done = threading.Event(), threading.Event()

    def poll() -> None:
        inside.set()
        while not done.is_set():
            selector.poll(10_000)

    thread = threading.Thread(target=poll)
    thread.start()
    inside.wait()
    for call in (selector.counters, lambda: selector.mute("a"), lambda: selector.poll(0)):
        refusal = None
        while refusal is None:  # the thread may not poll yet
            try:
                call()
            except IllegalStateError as why:
                refusal = str(why)
        assert "another thread" in refusal
    done.set()
    while thread.is_alive():
        selector.wakeup()
        thread.join(0.01)
    theirs.close()
    selector.close()


class Forgetful(selectors.SelectSelector):
    """Selector that reports events of descriptors that were never registered, and events with invalid keys."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        tags: tuple[object, ...] = (12345, -1, None, "x", 2**70, [])
        strange = [selectors.SelectorKey(None, 1, 3, tag) for tag in tags]  # type: ignore[arg-type]
        return [(key, 3) for key in strange] + super().select(0)


def test_a_back_end_that_reports_strangers() -> None:
    """Events of unregistered descriptors are dropped, and the other events are handled."""
    selector = Selector(backend=Forgetful())
    ours, theirs = socket.socketpair()
    selector.register(ours, "a")
    theirs.sendall(b"\0\0\0\1x")
    for _ in range(3):
        selector.poll(0)
        if selector.completed_receives:
            break
    assert [bytes(r.payload) for r in selector.completed_receives] == [b"x"]
    selector.completed_receives[0].release()
    selector.close()
    theirs.close()


def test_order_of_calls() -> None:
    """Stopping before starting, starting twice and stopping twice raise an error or do nothing, and leave no thread."""
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
    """The port is free again after a network thread could not be created."""
    server = SocketServer([HERE], Queue(5), SocketServerOptions(framing="lines"))
    with pytest.raises(ValueError, match="framing"):
        server.start()
    assert server.listeners == []


def test_responses_that_are_no_bytes() -> None:
    """A request whose response was refused can still have a response, and only that response is sent."""
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


def test_a_field_of_other_versions_comes_before_tagged_ones() -> None:
    """A field of other versions may precede tagged fields."""
    assert encode(Plan("x", True, [ABSENT, TAGGED]), {}) == b"\0"
