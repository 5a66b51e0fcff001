"""Snapshots of a network thread that is blocked or has ended."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from kbroker._core.requests.request_queue import Queue
from kbroker.common.listeners import Listener
from kbroker.network.options import SocketServerOptions
from kbroker.network.processor._processor_snapshot import snapshot
from kbroker.network.socket_server import SocketServer
from tests.support.broker import wait_for

FRAME = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # ApiVersions


@contextlib.contextmanager
def held_up() -> Iterator[tuple[SocketServer, Queue]]:
    """A server whose only network thread waits for space in the request queue."""
    queue = Queue(1)
    server = SocketServer([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)], queue, SocketServerOptions(1))
    server.start()
    try:
        (processor,) = server.processors
        assert snapshot(processor)["answer"] == "ok"
        address = ("127.0.0.1", server.port("PLAINTEXT"))
        with socket.create_connection(address) as first, socket.create_connection(address) as second:
            first.sendall(FRAME)
            wait_for("the queue is full", lambda: len(queue) == 1)
            found = snapshot(processor)
            assert (found["open"], found["muted"]["batch_in_flight"]) == (2, 1)
            second.sendall(FRAME)
            wait_for("the thread is held up", lambda: processor.counters()["requests"] == 2)
            yield server, queue
    finally:
        server.stop()


def test_a_thread_that_is_held_up_is_late_and_one_that_has_ended_says_so() -> None:
    """While the thread waits for space in the full request queue, a snapshot waits with it; after the stop it reports
    the end.
    """
    with held_up() as (server, _):
        (processor,) = server.processors
        answers: list[str] = []
        asker = threading.Thread(target=lambda: answers.append(snapshot(processor, timeout_ms=60_000)["answer"]))
        asker.start()
        server.stop()
        asker.join(20)
        assert answers[0] in ("ok", "ended"), "expected a response when the thread runs again or ends"
        assert snapshot(processor)["answer"] == "ended"


def test_a_late_thread_is_asked_again_later() -> None:
    """A snapshot that timed out does not prevent a later one when the thread runs again."""
    with held_up() as (server, queue):
        (processor,) = server.processors
        assert snapshot(processor, timeout_ms=50)["answer"] in ("late", "busy")
        assert snapshot(processor, timeout_ms=50)["answer"] == "busy"
        queue.refuse_all()
        wait_for("the network thread continues", lambda: snapshot(processor)["answer"] == "ok")
