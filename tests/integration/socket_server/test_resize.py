"""Changes of the number of network threads (`num.network.threads`) at run time."""

import gc
import os
import socket
import struct
import sys
import threading
from typing import Any

import pytest

from tests.support.socket_rig import Rig, assert_closed, frame, response, until


def ids(rig: Rig) -> list[int]:
    return [processor.processor_id for processor in rig.server.processors]


def network_threads() -> int:
    return sum("network-thread" in thread.name for thread in threading.enumerate())


def ask(client: socket.socket) -> bytes:
    client.sendall(frame(b"x"))
    return response(client)


def test_new_threads_take_their_turn(rig: Rig) -> None:
    """New connections are distributed to the new threads too; existing connections stay where they are."""
    rig.serve()
    old = rig.connect()
    assert ask(old)
    rig.server.resize(3)
    assert ids(rig) == [0, 1, 2]
    for client in [rig.connect() for _ in range(6)]:
        assert ask(client)
    assert [p.counters()["connections_created"] for p in rig.server.processors] == [3, 2, 2]
    assert ask(old)


def test_threads_that_end_close_their_connections(backend: object) -> None:
    """The last threads end and close their connections, whose clients reconnect; processor ids are not reused."""
    rig = Rig(backend, network_threads=3)
    rig.serve()
    clients = [rig.connect() for _ in range(6)]
    for client in clients:
        assert ask(client)
    rig.server.resize(1)
    assert ids(rig) == [0]
    for number, client in enumerate(clients):
        if number % 3 == 0:
            assert ask(client)
        else:
            assert_closed(client)
            assert ask(rig.connect())
    # a thread closes the socket before it updates the count
    until(lambda: rig.server.connection_quotas.count() == 6, "closed connections are not counted any more")
    rig.server.resize(2)
    assert ids(rig) == [0, 3]
    rig.close()


def resized_during_a_request(backend: object) -> tuple[Rig, socket.socket, Any]:
    """Return a server whose second thread ends, the client of that thread and its request, without a response."""
    rig = Rig(backend, network_threads=2)
    _, client = rig.connect(), rig.connect()
    client.sendall(frame(b"asks"))
    request = rig.receive()
    rig.server.resize(1)
    return rig, client, request


def test_a_response_that_is_ready_is_still_sent(backend: object) -> None:
    """A response that is ready is sent before its thread ends: it may belong to the request for fewer threads."""
    rig, client, request = resized_during_a_request(backend)
    request.respond(b"done")
    assert response(client) == b"done"
    assert_closed(client)
    rig.close()


def test_a_response_that_takes_longer_is_dropped(backend: object) -> None:
    """A thread that ends waits one second for responses; a later response is dropped."""
    rig, client, request = resized_during_a_request(backend)
    assert_closed(client)
    request.respond(b"too late")
    rig.serve()
    assert ask(rig.connect())
    rig.close()


def test_a_size_that_cannot_be(rig: Rig) -> None:
    """A size below 1 is refused; after the stop a resize has no effect."""
    with pytest.raises(ValueError, match="network_threads must be >= 1, got 0"):
        rig.server.resize(0)
    rig.server.begin_stop()
    rig.server.resize(5)
    assert ids(rig) == [0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts /proc/self/fd")
def test_growth_and_shrinking_under_load_leave_nothing_behind() -> None:
    """Clients receive whole responses during resizes, after which threads, descriptors and tables are as before."""
    rig = Rig("auto", network_threads=2)
    rig.serve()
    port = rig.server.port("PLAINTEXT")
    done = threading.Event()
    failures: list[BaseException] = []
    received = [0] * 4

    def load(number: int) -> None:
        try:
            while not done.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", port), 10) as client:
                        while not done.is_set():
                            payload = struct.pack(">iq", number, received[number])
                            client.sendall(frame(payload))
                            assert response(client) == payload
                            received[number] += 1
                except (ConnectionError, AssertionError) as error:
                    if isinstance(error, AssertionError) and "closed after 0 of 4" not in str(error):
                        raise
        except BaseException as error:
            failures.append(error)

    gc.collect()
    threads, descriptors = network_threads(), len(os.listdir("/proc/self/fd"))
    clients = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    for _ in range(25):
        for count in (4, 8, 4, 1, 2):
            rig.server.resize(count)
            seen = sum(received)
            until(lambda seen=seen: sum(received) > seen + 5 or failures, "clients are served")  # type: ignore[misc]
    done.set()
    for client in clients:
        client.join(20)
    assert failures == []
    until(lambda: network_threads() == threads, "threads that retired have ended")
    until(lambda: rig.server.connection_quotas.count() == 0, "all connections are closed")
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "the descriptors of the connections are closed")
    assert len(rig.server.request_metrics) <= 8 + 7, "too many tables: those of ended threads are not reused"
    rig.close()
