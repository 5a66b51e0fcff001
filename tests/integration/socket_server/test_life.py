"""Start and stop of a socket server: names, addresses, last responses, freed resources."""

import gc
import socket
import sys
import threading

import pytest

from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.key_signal import KeySignal
from kbroker.common.listeners import Listener
from kbroker.network.processor._processor import Processor
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer
from kbroker.network.transport.authentication import ListenerSecurity
from tests.support.descriptors import descriptors
from tests.support.errors import raising
from tests.support.socket_rig import Rig, assert_closed, frame, response, until


def test_connection_ids_count_per_processor(rig: Rig) -> None:
    """A connection id has both addresses, the processor and a number that grows with each connection (SS-3)."""
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


def test_stop_sends_queued_responses(rig: Rig) -> None:
    """After `begin_stop`, responses are still sent; after `finish_stop`, connections are closed and late responses
    dropped.
    """
    client, other = rig.connect(), rig.connect()
    client.sendall(frame(b"1"))
    request = rig.receive()
    other.sendall(frame(b"o"))
    never = rig.receive()
    rig.server.begin_stop()
    with pytest.raises(OSError):
        socket.create_connection(client.getpeername(), 1)
    request.respond(b"done")
    assert response(client) == b"done"
    rig.channel.close()
    assert rig.server.finish_stop()
    assert_closed(client)
    assert_closed(other)
    never.respond(b"too late")


def test_a_start_without_threads_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start during which any one thread failed to start, a stop ends the other threads."""
    start = threading.Thread.start
    for failing in ("network-thread", "acceptor", "network-watch"):

        def fail(thread: threading.Thread, failing: str = failing) -> None:
            if failing in thread.name:
                raise RuntimeError("can't start new thread")
            start(thread)

        server = SocketServer([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)], RequestChannel().queue)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError, match="can't start"):
                server.start(lambda: None)  # type: ignore[arg-type, return-value]
        assert server.stop()


def test_an_entrance_without_a_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without new threads, connections within the process are refused and leave nothing; later ones succeed."""
    tables = len(rig.server.request_metrics)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        for _ in range(3):
            with pytest.raises(OSError, match="starts no more threads"):
                rig.server.connect("User:alice", "127.0.0.1")
    with rig.server.connect("User:alice", "127.0.0.1") as client:
        client.sendall(frame(b"x"))
        request = rig.receive()
        assert request.principal == "User:alice"
        request.respond_nothing()
    assert len(rig.server.request_metrics) == tables + 1


def serve_and_drop(rig: Rig) -> None:
    """Make 50 connections, half with an incomplete frame and a third closed, then stop the server."""
    rig.serve()
    for i in range(50):
        client = rig.connect()
        client.sendall(frame(b"x") if i % 2 else b"\0")
        if i % 3 == 0:
            client.close()
    until(lambda: rig.count("connections_created") == 50, "all accepted")
    rig.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/fd")
def test_descriptors_and_threads_come_back(backend: object) -> None:
    """After connections, resets and a stop, the server has freed its descriptors and ended its threads.

    Descriptors that earlier tests close meanwhile, and their threads that end, are not counted.
    """
    Rig(backend).close()
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())
    serve_and_drop(Rig(backend))
    assert descriptors() - before == set()
    assert set(threading.enumerate()) - threads == set()


def test_thread_names_are_kafkas(rig: Rig) -> None:
    """The threads have the names of Kafka's threads."""
    names = {thread.name for thread in threading.enumerate()}
    assert "data-plane-kafka-network-thread-0-ListenerName(PLAINTEXT)-PLAINTEXT-0" in names
    port = rig.server.port("PLAINTEXT")
    assert f"data-plane-kafka-socket-acceptor-ListenerName(PLAINTEXT)-PLAINTEXT-{port}" in names


def test_address_in_use_is_named() -> None:
    """If a listener cannot be bound, the error names it and the listeners that were bound before it are closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = SocketServer(
            [Listener("A", "PLAINTEXT", "127.0.0.1", 0), Listener("B", "PLAINTEXT", "127.0.0.1", port)],
            RequestChannel().queue,
        )
        with pytest.raises(OSError, match=f"cannot listen on B://127.0.0.1:{port}"):
            server.start()
        assert server.listeners == []


def test_security_that_cannot_be() -> None:
    """Security for an unknown listener, or of a wrong type, is refused before a port is bound."""
    listener = Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)
    with pytest.raises(ValueError, match="security names 'OTHER', the listeners are PLAINTEXT"):
        SocketServer([listener], Queue(5), security={"OTHER": ListenerSecurity()})
    with pytest.raises(TypeError, match="must be a ListenerSecurity, not int"):
        SocketServer([listener], Queue(5), security={"PLAINTEXT": 5})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="authentication must be an Authentication, not int"):
        Processor("PLAINTEXT", 0, Queue(5), security=ListenerSecurity(authentication=5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TlsServer"):
        Processor("PLAINTEXT", 0, Queue(5), security=ListenerSecurity(tls=5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="security must be a ListenerSecurity, not int"):
        Processor("PLAINTEXT", 0, Queue(5), security=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed must have at most 2 signals, got 3"):
        Processor("PLAINTEXT", 0, Queue(5), closed=(KeySignal(),) * 3)
    with pytest.raises(TypeError, match="KeySignal"):
        Processor("PLAINTEXT", 0, Queue(5), closed=(KeySignal(), 5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options must be SocketServerOptions, not int"):
        Processor("PLAINTEXT", 0, Queue(5), 5)  # type: ignore[arg-type]
