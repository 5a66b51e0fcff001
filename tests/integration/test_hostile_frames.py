"""Frames that no client sends: each may close its own connection, without harm to other clients.

With KBROKER_TEST_BOOTSTRAP=host:port, the tests run against any broker, without checks of its memory.
"""

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import hostile, wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.client import SteadyProducer
from tests.support.descriptors import socket_count
from tests.support.wire import Closed, Connection

MAX_GROWTH_BYTES = 32 << 20
TOPIC, STEADY_TOPIC = "hostile", "steady"
COORDINATOR_LOAD_IN_PROGRESS = 14  # Kafka's error when its block of ids is used up
FRAME_TIMEOUT_S = 30  # time within which a frame must be complete


@dataclass
class Target:
    bootstrap: str
    pid: int | None
    producer: SteadyProducer
    ranges: dict[int, tuple[int, int]]
    base_rss: int = 0
    base_sockets: int = 0

    def check(self) -> None:
        """Check that new and old clients are served in time, and that memory and sockets have not grown."""
        assert wire.responses(self.bootstrap, within=1.0), "ApiVersions on a new connection got no response within 1 s"
        assert self.producer.is_unharmed()
        if self.pid is None:
            return
        pid = self.pid
        growth = rss_bytes(pid) - self.base_rss
        assert growth <= MAX_GROWTH_BYTES, f"memory grew by {growth >> 20} MiB"
        wait_for("sockets are closed again", lambda: socket_count(pid) <= self.base_sockets, 5)


@pytest.fixture(scope="module")
def target(bootstrap: str, session_broker: BrokerProcess | None) -> Iterator[Target]:
    for topic in (TOPIC, STEADY_TOPIC):
        with Connection(bootstrap) as connection:
            assert wire.first_topic_error(connection.ask(wire.create_topic(topic, 1))) in (0, 36)
        wait_for(f"{topic} has a leader", lambda topic=topic: wire.is_ready(bootstrap, topic))  # type: ignore[misc]
    producer = SteadyProducer(bootstrap, STEADY_TOPIC)
    try:
        wait_for("the steady producer runs", lambda: producer.failures or producer.acknowledged > 200)
        found = Target(bootstrap, session_broker.pid if session_broker else None, producer, wire.ranges(bootstrap))
        if found.pid is not None:
            # a large request and an idle connection of a normal client are not growth
            with Connection(bootstrap) as connection:
                connection.ask(wire.produce(TOPIC, 0, wire.batch([bytes(900_000)])))
            found.base_rss, found.base_sockets = rss_bytes(found.pid), socket_count(found.pid)
        yield found
    finally:
        producer.stop()


@pytest.fixture(scope="module")
def unfinished(target: Target) -> Iterator[tuple[Connection, float]]:
    """Frame that is incomplete from the start of the module until the last test."""
    connection = Connection(target.bootstrap)
    connection.send_raw(struct.pack(">i", 1000) + b"\0\x12\0\0")
    if target.pid is not None:
        target.base_sockets += 1
    yield connection, time.monotonic()
    connection.close()


def fate_of(target: Target, data: bytes, patience_s: float) -> str:
    """Send bytes over a new connection; return whether a response came, the connection was closed, or neither."""
    with Connection(target.bootstrap) as connection:
        try:
            connection.send_raw(data)
            connection.socket.settimeout(patience_s)
            connection.receive()
        except Closed:
            return "closed"
        except TimeoutError:
            return "waits"
        return "response"


STATIC_FRAMES = hostile.sizes() + hostile.headers() + hostile.bodies(TOPIC)


@pytest.mark.parametrize("frame", STATIC_FRAMES, ids=lambda frame: frame.name)
def test_hostile_frame_harms_no_other_client(
    target: Target, unfinished: tuple[Connection, float], frame: hostile.Frame
) -> None:
    """A hostile frame closes at most its own connection."""
    fate = fate_of(target, frame.data, 0.3 if frame.fate == "waits" else 5.0)
    assert frame.fate in (fate, "any")
    target.check()


def test_versions_out_of_range(target: Target) -> None:
    """A version that is not supported closes the connection; ApiVersions responds in version 0 with error 35."""
    for frame in hostile.versions(target.ranges):
        assert fate_of(target, frame.data, 5.0) == frame.fate, frame.name
    for version in (-1, target.ranges[wire.API_VERSIONS][1] + 1, 32767):
        with Connection(target.bootstrap) as connection:
            response = connection.ask(wire.header(wire.API_VERSIONS, version, 9, flexible=True))
            assert struct.unpack_from(">ih", response) == (9, 35)
    target.check()


def test_tags_in_the_header_cost_no_memory(target: Target) -> None:
    """Several megabytes of tagged fields in a request header do not multiply in memory."""
    if target.pid is None:
        pytest.skip("memory of a foreign broker is not watched")
    frame = hostile.million_tags()
    for _ in range(3):
        fate_of(target, frame.data, 10.0)
    target.check()


@pytest.mark.parametrize("bad", hostile.bad_batches(), ids=lambda bad: bad.name)
def test_bad_batch_is_refused(target: Target, bad: hostile.BadBatch) -> None:
    """An invalid batch gets one of its allowed results, and a refused one is not appended."""
    before = wire.end_offset(target.bootstrap, TOPIC)
    with Connection(target.bootstrap) as connection:
        response = wire.produced(connection.ask(wire.produce(TOPIC, 0, bad.records)))
        assert response.error_code in bad.codes
        good = wire.produced(connection.ask(wire.produce(TOPIC, 0, wire.batch([b"good"]))))
    assert good.error_code == 0
    if response.error_code != 0:
        assert good.base_offset == before
    target.check()


def test_greedy_fetches(target: Target) -> None:
    """Offsets out of range are refused with error 1, and the claimed sizes of a Fetch neither block nor allocate."""
    with Connection(target.bootstrap) as connection:
        for offset in (-5, 10**15, 2**63 - 1):
            assert wire.fetched(connection.ask(wire.fetch(TOPIC, offset=offset))).error_code == 1
        connection.ask(wire.fetch(TOPIC, max_bytes=-1))
        connection.ask(wire.fetch(TOPIC, partition_max_bytes=-1))
        connection.ask(wire.fetch(TOPIC, max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1))
        connection.ask(wire.fetch(TOPIC, max_wait_ms=-1))
        response = connection.ask(wire.fetch(TOPIC, partitions=range(1, 100_001)))
        assert wire.fetched(response).error_code == 3
    target.check()


def test_fetch_whose_client_has_disconnected(target: Target) -> None:
    """Fetches that wait do not delay other clients, and their connections are closed at the end of the wait at the
    latest.
    """
    end = wire.end_offset(target.bootstrap, TOPIC)
    with wire.crowd(target.bootstrap, 50) as waiting:
        for connection in waiting:
            connection.send(wire.fetch(TOPIC, offset=end, max_wait_ms=3000, min_bytes=2**31 - 1))
        assert wire.responses(target.bootstrap)
        assert target.producer.is_unharmed()
    target.check()


def test_fetch_that_would_wait_for_ever(start_broker: Callable[..., BrokerProcess]) -> None:
    """A fetch that would wait 24 days is removed with its connection, when that has been idle too long."""
    broker = start_broker(connections__max__idle__ms="2000")
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(TOPIC, 1))) == 0
    base = socket_count(broker.pid)
    with wire.crowd(broker.bootstrap, 20) as waiting:
        for connection in waiting:
            connection.send(wire.fetch(TOPIC, max_wait_ms=2**31 - 1, min_bytes=2**31 - 1))
        assert wire.responses(broker.bootstrap)
    wait_for("idle connections are closed", lambda: socket_count(broker.pid) <= base, 15)
    assert wire.responses(broker.bootstrap)


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "x" * 250, b"nul\0x", "", "a b", "../../etc/passwd"], ids=lambda name: repr(name)[:24]
)
def test_illegal_topic_names(target: Target, name: str | bytes) -> None:
    """An invalid topic name is refused with INVALID_TOPIC_EXCEPTION."""
    with Connection(target.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(name, 1))) == 17
    target.check()


@pytest.mark.parametrize("partitions", [2**31 - 1, 0, -5, -(2**31)])
def test_impossible_partition_counts(target: Target, partitions: int) -> None:
    """An impossible number of partitions is refused before anything is created."""
    with Connection(target.bootstrap) as connection:
        code = wire.first_topic_error(connection.ask(wire.create_topic("impossible", partitions)))
    assert code in (37, 44)
    target.check()


def test_many_producer_ids(target: Target) -> None:
    """Requests for 20,000 producer ids return different ids and take no memory permanently."""
    request = wire.header(wire.INIT_PRODUCER_ID, 0) + wire.text(None) + struct.pack(">i", 60000)
    wanted, run = 20_000, 500
    seen: set[int] = set()
    received = 0
    with Connection(target.bootstrap, timeout=60) as connection:
        while received < wanted:
            connection.send_raw(hostile.framed(request) * run)
            for _ in range(run):
                _, _, error, producer_id, epoch = struct.unpack(">iihqh", connection.receive())
                assert error in (0, COORDINATOR_LOAD_IN_PROGRESS)
                if error == 0:
                    assert epoch == 0
                    seen.add(producer_id)
                    received += 1
    assert len(seen) == received, "one producer id was given twice"
    target.check()


def test_same_correlation_id_twice(target: Target) -> None:
    """Two requests with the same correlation id receive two responses in order."""
    request = hostile.framed(wire.header(wire.API_VERSIONS, 0, 5))
    with Connection(target.bootstrap) as connection:
        connection.send_raw(request * 2)
        assert [connection.receive()[:4] for _ in range(2)] == [struct.pack(">i", 5)] * 2
    target.check()


def test_pipelining_without_reading(target: Target) -> None:
    """A client that sends without reading responses is no longer read, so that memory stays bounded."""
    request = hostile.framed(wire.header(wire.API_VERSIONS, 0)) * 100
    with Connection(target.bootstrap) as connection:
        connection.socket.settimeout(0.5)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += connection.socket.send(request)
        except TimeoutError:
            pass  # the broker has stopped reading, and the buffers of the system are full
        assert sent < 64 << 20, "the broker went on reading requests of a client that reads no response"
        assert wire.responses(target.bootstrap)
        if target.pid is not None:
            assert rss_bytes(target.pid) - target.base_rss <= MAX_GROWTH_BYTES
    target.check()


def test_slow_readers(target: Target) -> None:
    """Fifty consumers that do not read their large responses take only the memory of their sockets' buffers."""
    value = bytes(500_000)
    with Connection(target.bootstrap) as connection:
        for _ in range(20):
            assert wire.produced(connection.ask(wire.produce(TOPIC, 0, wire.batch([value])))).error_code == 0
    start = wire.end_offset(target.bootstrap, TOPIC) - 20
    with wire.crowd(target.bootstrap, 50) as readers:
        request = wire.fetch(TOPIC, offset=start, max_bytes=50 << 20, partition_max_bytes=50 << 20)
        for reader in readers:
            for _ in range(3):
                reader.send(request)
        assert wire.responses(target.bootstrap)
        assert target.producer.is_unharmed()
        if target.pid is not None:
            assert rss_bytes(target.pid) - target.base_rss <= MAX_GROWTH_BYTES
        last = wire.fetched(readers[0].receive())
        assert last.error_code == 0
        assert len(last.records) >= 20 * len(value)
    target.check()


def test_silent_clients(target: Target) -> None:
    """Two hundred silent clients do not affect other clients."""
    with wire.crowd(target.bootstrap, 200):
        assert wire.responses(target.bootstrap)
        assert target.producer.is_unharmed()
    target.check()


def test_reset_in_the_middle_of_a_request(target: Target) -> None:
    """A reset in the middle of a request appends nothing and leaves nothing behind."""
    request = hostile.framed(wire.produce(TOPIC, 0, wire.batch([bytes(200_000)])))
    before = wire.end_offset(target.bootstrap, TOPIC)
    for part in (1, 4, 20, len(request) // 2, len(request) - 1):
        for _ in range(5):
            connection = Connection(target.bootstrap)
            connection.send_raw(request[:part])
            connection.reset()
    assert wire.end_offset(target.bootstrap, TOPIC) == before
    target.check()


def test_reset_in_the_middle_of_a_response(target: Target) -> None:
    """A reset in the middle of a response leaves nothing behind."""
    with Connection(target.bootstrap) as connection:
        for _ in range(8):
            connection.ask(wire.produce(TOPIC, 0, wire.batch([bytes(500_000)])))
    start = wire.end_offset(target.bootstrap, TOPIC) - 8
    for _ in range(20):
        connection = Connection(target.bootstrap)
        connection.send(wire.fetch(TOPIC, offset=start, max_bytes=50 << 20, partition_max_bytes=50 << 20))
        assert connection.socket.recv(100)
        connection.reset()
    target.check()


def test_many_unfinished_frames_hold_no_memory(target: Target) -> None:
    """A hundred incomplete frames of 50 MB take memory only for the bytes that were sent."""
    if target.pid is None:
        pytest.skip("Apache Kafka allocates what is announced, and would end here")
    with wire.crowd(target.bootstrap, 100) as begun:
        for connection in begun:
            connection.send_raw(struct.pack(">i", 50_000_000) + b"\0")
        assert wire.responses(target.bootstrap)
        assert target.producer.is_unharmed()
        assert rss_bytes(target.pid) - target.base_rss <= MAX_GROWTH_BYTES
    target.check()


def test_connections_that_come_and_go(target: Target) -> None:
    """A thousand connections that are opened and closed leave nothing behind."""
    for _ in range(1000):
        Connection(target.bootstrap).close()
    target.check()


def test_output_holds_no_traceback(target: Target, session_broker: BrokerProcess | None) -> None:
    """Hostile input causes no traceback, and not a log line for each frame."""
    if session_broker is None:
        pytest.skip("the output of a foreign broker is not seen")
    log = "".join(session_broker.output)
    assert "Traceback" not in log
    assert "panic" not in log
    assert len(log) < 200_000
    assert Path(f"/proc/{session_broker.pid}").exists()


def test_unfinished_frame_is_given_up(target: Target, unfinished: tuple[Connection, float]) -> None:
    """A connection whose frame is incomplete is closed 30 s after the frame's length arrived."""
    if target.pid is None:
        pytest.skip("a limit of kbroker; other brokers wait for their idle time")
    connection, begun = unfinished
    left = FRAME_TIMEOUT_S + 10 - (time.monotonic() - begun)
    assert connection.is_closed_within(max(left, 0.5)), f"still open {FRAME_TIMEOUT_S + 10} s after its length"
    target.base_sockets -= 1
    target.check()
