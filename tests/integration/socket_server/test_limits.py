"""Limits of a socket server: idle time, duration of a frame, memory, connections in total and per address."""

import struct

from kbroker._core.clock import VirtualClock
from kbroker._core.requests.memory_pool import MemoryPool
from tests.support.socket_rig import Rig, assert_closed, frame, response, until


def test_idle_connections_expire(backend: object) -> None:
    """An idle connection and a connection with a request in progress both expire; a late response is dropped (SS-4,
    SS-5).
    """
    clock = VirtualClock()
    rig = Rig(backend, clock)
    idle, busy = rig.connect(), rig.connect()
    idle.sendall(frame(b"a"))
    rig.receive().respond(b"a")
    assert response(idle) == b"a"
    busy.sendall(frame(b"b") + frame(b"c"))
    late = rig.receive()
    clock.advance_ms(60001)
    until(lambda: rig.count("connections_expired") == 1, "one connection expired")
    clock.advance_ms(1)
    until(lambda: rig.count("connections_expired") == 2, "both connections expired")
    assert_closed(idle)
    assert_closed(busy)
    late.respond(b"late")  # SS-6: the request "c" is never delivered
    fresh = rig.connect()
    fresh.sendall(frame(b"fresh"))
    request = rig.receive()
    assert bytes(request.payload) == b"fresh"
    request.respond(b"ok")
    assert response(fresh) == b"ok"
    rig.close()


def test_frame_that_never_completes(backend: object) -> None:
    """A frame that is not complete within its timeout closes the connection and returns its memory to the pool."""
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
    """Requests beyond the memory pool stay in their sockets until responses free memory."""
    pool = MemoryPool(100, 100)
    rig = Rig(backend, pool=pool)
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        client.sendall(frame(b"p" * 100))
    for left in range(3, 0, -1):
        request = rig.receive()
        assert (pool.available_bytes, len(rig.channel)) == (0, 0)
        request.respond(b"%d" % left)
    assert sorted(response(client) for client in clients) == [b"1", b"2", b"3"]
    until(lambda: pool.available_bytes == 100, "all back")
    rig.close()


def test_excess_connections_close_the_least_active(backend: object) -> None:
    """A lower `max.connections` closes the least recently active connections, one per pass."""
    rig = Rig(backend, max_connections=3)
    first, second, third = rig.connect(), rig.connect(), rig.connect()
    for client in (second, first, third):
        client.sendall(frame(b"1"))
        rig.receive().respond(b"1")
        assert response(client) == b"1"
    rig.server.connection_quotas.update(2, 100)
    assert_closed(second)
    third.sendall(frame(b"3"))
    rig.receive().respond(b"3")
    assert response(third) == b"3"
    assert rig.server.connection_quotas.count() == 2
    rig.close()


def test_a_connection_above_the_limit_waits(backend: object) -> None:
    """A connection above `max.connections` is served when another connection is closed."""
    rig = Rig(backend, max_connections=1)
    rig.serve()
    first = rig.connect()
    first.sendall(frame(b"1"))
    assert response(first) == b"1"
    second = rig.connect()
    second.sendall(frame(b"2"))
    (acceptor,) = rig.server.acceptors
    until(lambda: acceptor.accepted == 2, "the second was accepted")
    assert rig.server.connection_quotas.count() == 1
    first.close()
    assert response(second) == b"2"
    rig.close()


def test_one_address_above_its_limit_is_closed(backend: object) -> None:
    """A connection above the limit of its address is closed; when another one is closed, a new one is served (SS-2)."""
    rig = Rig(backend, max_connections_per_ip=5)
    rig.serve()
    clients = [rig.connect() for _ in range(5)]
    for client in clients:
        client.sendall(frame(b"1"))
        assert response(client) == b"1"
    assert_closed(rig.connect())
    assert (rig.server.connection_quotas.count("127.0.0.1"), rig.server.connection_quotas.refused) == (5, 1)
    clients[0].close()
    until(lambda: rig.server.connection_quotas.count() == 4, "the closed connection is not counted any more")
    again = rig.connect()
    again.sendall(frame(b"2"))
    assert response(again) == b"2"
    rig.close()
    assert rig.server.connection_quotas.count() == 0


def test_a_connection_that_the_server_closes(backend: object) -> None:
    """A client that notices the close of its connection can connect again at once: it is not counted any more."""
    rig = Rig(backend, max_connections_per_ip=1)
    for _ in range(3):
        client = rig.connect()
        client.sendall(frame(b"1"))
        rig.receive().close()
        assert_closed(client)
        assert rig.server.connection_quotas.count() == 0
    rig.close()


def test_an_address_with_a_limit_of_its_own(backend: object) -> None:
    """The override of an address takes precedence over the common limit, even when it is set at run time."""
    rig = Rig(backend, max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 1, "::1": 7})
    rig.serve()
    first = rig.connect()
    first.sendall(frame(b"1"))
    assert response(first) == b"1"
    assert_closed(rig.connect())
    rig.server.connection_quotas.update(100, 0, {"127.0.0.1": 2})
    second = rig.connect()
    second.sendall(frame(b"2"))
    assert response(second) == b"2"
    rig.close()
