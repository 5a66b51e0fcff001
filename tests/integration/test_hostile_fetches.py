"""Requests that cost a broker much more than their client: colliding keys, copies, endless waits."""

import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tests.support import wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.wire import Connection

TOPIC = "dear"
NO_SESSION, FETCH_SESSION_ID_NOT_FOUND = 0, 70
PHI = 0x9E3779B97F4A7C15  # multiplier of tables whose hash has no seed
COLLIDING = 60_000


def fetch(
    parts: Iterable[int], topic: str = TOPIC, *, session: int = 0, epoch: int = -1, wait_ms: int = 0, least: int = 1
) -> bytes:
    """Return a Fetch request; with epoch -1 it has no session."""
    return wire.fetch(topic, parts, max_wait_ms=wait_ms, min_bytes=least, session=(session, epoch))


def session_of(response: bytes) -> tuple[int, int]:
    """Return the error code and the session id of a response."""
    error, session = struct.unpack_from(">hi", response, 8)
    return error, session


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = start_broker()
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(TOPIC, 1))) == 0
    return broker


Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def colliding(slot: Callable[[Numbers], Numbers]) -> list[int]:
    """Return partition numbers that a known hash maps to the first slots of a table, 230 to each."""
    found: list[int] = []
    step = 1 << 16  # such arrays fit into the caches of a core
    for start in range(0, 2**32, step):
        numbers = np.arange(start, start + step, dtype=np.uint32).astype(np.int32)
        found += numbers[slot(numbers.astype(np.int64).astype(np.uint64)) < 256].tolist()
        if len(found) >= COLLIDING:
            break
    return found[:COLLIDING]


def seconds(connection: Connection, request: bytes) -> float:
    begun = time.monotonic()
    connection.ask(request)
    return time.monotonic() - begun


def test_produce_of_colliding_partitions(broker: BrokerProcess) -> None:
    """Partition numbers that collide in a known hash make a Produce request no slower than others."""
    chosen = colliding(lambda n: (n * np.uint64(PHI) >> np.uint64(33)) & np.uint64((1 << 17) - 1))
    with Connection(broker.bootstrap, 60) as connection:
        ordinary = seconds(connection, wire.produce_to(TOPIC, range(COLLIDING), None))
        assert seconds(connection, wire.produce_to(TOPIC, chosen, None)) < 10 * ordinary + 0.2


def test_session_of_colliding_partitions(broker: BrokerProcess) -> None:
    """Partition numbers that collide in a known hash make a fetch session no slower than others."""
    name = 1469598103934665603
    for byte in TOPIC.encode():
        name = (name ^ byte) * 1099511628211 & (2**64 - 1)
    name ^= name >> 32

    def slot(n: Numbers) -> Numbers:
        mixed = (n + np.uint64(name)) * np.uint64(PHI)
        slots: Numbers = (mixed ^ (mixed >> np.uint64(29))) & np.uint64((1 << 17) - 1)
        return slots

    chosen = colliding(slot)
    with Connection(broker.bootstrap, 60) as connection:
        ordinary = seconds(connection, fetch(range(COLLIDING), epoch=0))
        assert seconds(connection, fetch(chosen, epoch=0)) < 10 * ordinary + 0.2


@pytest.mark.parametrize("version", [7, 9])
def test_produce_of_more_than_there_can_be(broker: BrokerProcess, version: int) -> None:
    """100,001 topics or partitions in a Produce request close the connection; 100,000 are served."""
    flexible = version >= 9
    end = b"\0" if flexible else b""

    def count(n: int) -> bytes:
        return wire.uvarint(n + 1) if flexible else struct.pack(">i", n)

    def produce(topics: int, parts: int) -> bytes:
        no_records = b"\0" if flexible else struct.pack(">i", -1)
        topic = (b"\x01" if flexible else wire.text("")) + count(parts) + (bytes(4) + no_records + end) * parts + end
        head = wire.header(wire.PRODUCE, version, flexible=flexible) + (b"\0" if flexible else wire.text(None))
        return head + struct.pack(">hi", 1, 1000) + count(topics) + topic * topics + end

    for topics, parts in ((100_001, 0), (1, 100_001), (2, 50_001)):
        with Connection(broker.bootstrap) as connection:
            connection.send(produce(topics, parts))
            assert connection.is_closed_within(10)
    for topics, parts in ((100_000, 0), (1, 100_000)):
        with Connection(broker.bootstrap) as connection:
            connection.ask(produce(topics, parts))


def test_fetch_of_more_topics_than_there_can_be(broker: BrokerProcess) -> None:
    """100,001 topics in a Fetch request close the connection, even without partitions."""
    for topics in (100_000, 100_001):
        head = wire.header(wire.FETCH, 4) + struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, topics)
        with Connection(broker.bootstrap) as connection:
            connection.send(head + (wire.text("") + struct.pack(">i", 0)) * topics)
            if topics <= 100_000:
                connection.receive()
            else:
                assert connection.is_closed_within(10)


def test_session_of_long_names(broker: BrokerProcess) -> None:
    """A client whose 20,000 partitions would each keep a copy of a name of 32 KB has no session."""
    base = rss_bytes(broker.pid)
    with Connection(broker.bootstrap, 30) as connection:
        for _ in range(3):
            response = connection.ask(fetch(range(20_000), "n" * 32_000, epoch=0))
            assert session_of(response) == (0, NO_SESSION)
        wait_for("freed memory is given back", lambda: rss_bytes(broker.pid) - base < 100 << 20)
    with Connection(broker.bootstrap) as connection:  # the memory of the refused sessions is available again
        error, session = session_of(connection.ask(fetch([0], epoch=0)))
        assert (error, session != NO_SESSION) == (0, True)


def test_session_that_grows(broker: BrokerProcess) -> None:
    """A session that exceeds the memory for sessions is refused, and other clients are served."""
    base = rss_bytes(broker.pid)
    step, codes = 100_000, []
    with Connection(broker.bootstrap, 30) as connection:
        error, session = session_of(connection.ask(fetch(range(step), epoch=0)))
        assert (error, session != NO_SESSION) == (0, True)
        for turn in range(1, 14):
            response = connection.ask(fetch(range(turn * step, (turn + 1) * step), session=session, epoch=turn))
            codes.append(session_of(response)[0])
            if codes[-1]:
                break
        assert codes[-1] == FETCH_SESSION_ID_NOT_FOUND
        for _ in range(10):
            connection.ask(fetch(range(step), epoch=0))
        assert rss_bytes(broker.pid) - base < 400 << 20
        assert session_of(connection.ask(fetch([0])))[0] == 0


def test_completed_fetches_hold_nothing(broker: BrokerProcess) -> None:
    """A delayed fetch frees its partitions when it completes, not at the next purge of the purgatory."""
    base = rss_bytes(broker.pid)
    many = fetch([0] * 100_000, wait_ms=5)
    with Connection(broker.bootstrap, 30) as connection:
        for _ in range(20):
            connection.ask(many)
    assert rss_bytes(broker.pid) - base < 100 << 20


def test_waiting_fetches_of_closed_connections(start_broker: Callable[..., BrokerProcess]) -> None:
    """A fetch that would wait for 24 days is removed soon after its connection is closed."""
    broker = start_broker(connections__max__idle__ms="1000")
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(TOPIC, 1))) == 0
    many = fetch([0] * 100_000, wait_ms=2**31 - 1, least=2**31 - 1)
    base = rss_bytes(broker.pid)
    with wire.crowd(broker.bootstrap, 20) as waiting:
        for connection in waiting:
            connection.send(many)
        wait_for("the fetches wait", lambda: rss_bytes(broker.pid) - base > 150 << 20)
    wait_for("the memory of the fetches is released", lambda: rss_bytes(broker.pid) - base < 60 << 20)


def test_fetch_of_a_topic_deleted_meanwhile(broker: BrokerProcess) -> None:
    """A delayed fetch completes when its topic is deleted, not at the end of its wait."""
    with Connection(broker.bootstrap, 10) as waiting, Connection(broker.bootstrap) as other:
        waiting.send(wire.fetch(TOPIC, max_wait_ms=60_000, min_bytes=1 << 20))
        time.sleep(0.2)  # if the fetch does not wait yet, it completes as well
        delete = wire.header(wire.DELETE_TOPICS, 1) + struct.pack(">i", 1) + wire.text(TOPIC) + struct.pack(">i", 1000)
        other.ask(delete)
        assert wire.fetched(waiting.receive()).error_code == 3
