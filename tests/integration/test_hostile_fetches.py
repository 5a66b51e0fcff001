"""Requests chosen to cost the broker more than their sender: by colliding keys, by copies, by waiting for ever."""

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
PHI = 0x9E3779B97F4A7C15  # the multiplier that unseeded tables used
COLLIDING = 60_000


def fetch(
    parts: Iterable[int], topic: str = TOPIC, *, session: int = 0, epoch: int = -1, wait_ms: int = 0, least: int = 1
) -> bytes:
    """With a session, which is none at epoch -1."""
    return wire.fetch(topic, parts, max_wait_ms=wait_ms, min_bytes=least, session=(session, epoch))


def session_of(response: bytes) -> tuple[int, int]:
    """Error code and session id."""
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
    """Partition numbers that fall into the first slots of a table, 230 into each: the next 60,000 slots are taken."""
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
    """Partition numbers that meet in one slot of a known hash cost no more than others."""
    chosen = colliding(lambda n: (n * np.uint64(PHI) >> np.uint64(33)) & np.uint64((1 << 17) - 1))
    with Connection(broker.bootstrap, 60) as connection:
        ordinary = seconds(connection, wire.produce_to(TOPIC, range(COLLIDING), None))
        assert seconds(connection, wire.produce_to(TOPIC, chosen, None)) < 10 * ordinary + 0.2


def test_session_of_colliding_partitions(broker: BrokerProcess) -> None:
    """Nor do they in a fetch session."""
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
    """100,001 topics or partitions in one Produce end the connection; 100,000 are served."""
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
    """100,001 topics in one Fetch end the connection, though no partition of them is asked for."""
    for topics in (100_000, 100_001):
        head = wire.header(wire.FETCH, 4) + struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, topics)
        with Connection(broker.bootstrap) as connection:
            connection.send(head + (wire.text("") + struct.pack(">i", 0)) * topics)
            if topics <= 100_000:
                connection.receive()
            else:
                assert connection.is_closed_within(10)


def test_session_of_long_names(broker: BrokerProcess) -> None:
    """A name of 32 KB said once is not kept 20,000 times: that client goes on without a session."""
    base = rss_bytes(broker.pid)
    with Connection(broker.bootstrap, 30) as connection:
        for _ in range(3):
            response = connection.ask(fetch(range(20_000), "n" * 32_000, epoch=0))
            assert session_of(response) == (0, NO_SESSION)
        wait_for("freed memory is given back", lambda: rss_bytes(broker.pid) - base < 100 << 20)
    with Connection(broker.bootstrap) as connection:  # what was refused has been given back
        error, session = session_of(connection.ask(fetch([0], epoch=0)))
        assert (error, session != NO_SESSION) == (0, True)


def test_session_that_grows(broker: BrokerProcess) -> None:
    """Sessions have a share of memory; a client that asks for more gets no session, and others are served."""
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
    """A fetch that has waited frees its partitions when it completes, not when the purgatory is next purged."""
    base = rss_bytes(broker.pid)
    many = fetch([0] * 100_000, wait_ms=5)
    with Connection(broker.bootstrap, 30) as connection:
        for _ in range(20):
            connection.ask(many)
    assert rss_bytes(broker.pid) - base < 100 << 20


def test_waiting_fetches_of_closed_connections(start_broker: Callable[..., BrokerProcess]) -> None:
    """A fetch that would wait 24 days is let go of soon after its connection is closed."""
    broker = start_broker(connections__max__idle__ms="1000")
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(TOPIC, 1))) == 0
    many = fetch([0] * 100_000, wait_ms=2**31 - 1, least=2**31 - 1)
    base = rss_bytes(broker.pid)
    with wire.crowd(broker.bootstrap, 20) as waiting:
        for connection in waiting:
            connection.send(many)
        wait_for("the fetches wait", lambda: rss_bytes(broker.pid) - base > 150 << 20, 10)
    wait_for("they are let go of", lambda: rss_bytes(broker.pid) - base < 60 << 20, 20)


def test_fetch_of_a_topic_deleted_meanwhile(broker: BrokerProcess) -> None:
    """A fetch that waits for records of a topic on disk completes when it is deleted, not when the wait is over."""
    with Connection(broker.bootstrap, 10) as waiting, Connection(broker.bootstrap) as other:
        waiting.send(wire.fetch(TOPIC, max_wait_ms=60_000, min_bytes=1 << 20))
        time.sleep(0.2)  # it may not have begun to wait: then it completes all the same
        delete = wire.header(wire.DELETE_TOPICS, 1) + struct.pack(">i", 1) + wire.text(TOPIC) + struct.pack(">i", 1000)
        other.ask(delete)
        assert wire.fetched(waiting.receive()).error_code == 3
