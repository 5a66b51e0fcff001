"""ListOffsets of the native handler: the same as the Python handler's, which Kafka's recorded responses judge."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.apis import api02_list_offsets
from kbroker.common.errors import ProtocolError
from kbroker.protocol import codec
from kbroker.requests.context import RequestContext
from kbroker.testing import VirtualBroker
from tests.support import wire
from tests.support.wire import Closed, Connection, batch, create_topic, produce

LIST_OFFSETS = wire.LIST_OFFSETS
VERSIONS = range(1, 12)
TIMES = (-1, -2, -3, -4, -5, -6, -7, 0, 1, 2**62)
PID, TRANSACTIONAL = 7, 16


@pytest.fixture(scope="module")
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as running, Connection(running.bootstrap_servers) as admin:
        for name in ("one", "two"):
            admin.ask(create_topic(name, 3))
        for number in range(5):
            admin.ask(produce("one", 0, batch([b"v"], timestamp_ms=running.clock.wall_ms() + 10 * (number % 3))))
        log = running.context.topics.partition("one", 1)
        guard = log.start_verification(PID, 0, 0)[1]
        for sequence in range(3):
            data = batch(
                [b"t"], attributes=TRANSACTIONAL, producer_id=PID, producer_epoch=0, base_sequence=sequence,
                timestamp_ms=running.clock.wall_ms(),
            )  # fmt: skip
            assert log.append(data, verification_guard=guard if sequence == 0 else 0).error == 0
        yield running


def fitting(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """The body without what version 1 does not have."""
    return body if version > 1 else {name: value for name, value in body.items() if name != "IsolationLevel"}


def frame(version: int, body: dict[str, Any]) -> bytes:
    return codec.encode_request_frame(LIST_OFFSETS, version, 3, "me", fitting(version, body))[4:]


def asked(connection: Connection, version: int, body: dict[str, Any]) -> Any:
    return codec.decode_response_frame(LIST_OFFSETS, version, connection.ask(frame(version, body)))[1]


def python(broker: VirtualBroker, version: int, body: dict[str, Any]) -> Any:
    """What the Python handler says, through the codec as the client's."""
    request = codec.decode_request(
        LIST_OFFSETS, version, codec.encode_request(LIST_OFFSETS, version, fitting(version, body)), max_elements=1000
    )
    found = api02_list_offsets.handle(broker.context, request, RequestContext(LIST_OFFSETS, version))
    return codec.decode_response(LIST_OFFSETS, version, codec.encode_response(LIST_OFFSETS, version, found))


def body_of(*topics: tuple[str, list[tuple[int, int, int]]], isolation: int = 0) -> dict[str, Any]:
    return {
        "ReplicaId": -1,
        "IsolationLevel": isolation,
        "TimeoutMs": 1000,
        "Topics": [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": index, "CurrentLeaderEpoch": epoch, "Timestamp": time}
                    for index, epoch, time in rows
                ],
            }
            for name, rows in topics
        ],
    }


def declined(broker: VirtualBroker) -> int:
    return broker.parts.native_apis.declined


@pytest.mark.parametrize("version", VERSIONS)
def test_every_time_is_served_natively(broker: VirtualBroker, version: int) -> None:
    """Ends and times, by isolation level; an epoch to come and one that is over are refused. Nothing goes to Python."""
    now = broker.clock.wall_ms()
    times = (*TIMES, now, now + 5, now + 10, now + 20, now + 21)
    before = declined(broker)
    with Connection(broker.bootstrap_servers) as one:
        for isolation in (0, 1):
            for epoch in (-1, 0, 3):
                for time in times:
                    body = body_of(
                        ("one", [(0, epoch, time), (1, epoch, time)]), ("two", [(2, epoch, time)]), isolation=isolation
                    )
                    assert asked(one, version, body) == python(broker, version, body)
    assert declined(broker) == before


def test_last_stable_offset_is_the_latest_of_read_committed(broker: VirtualBroker) -> None:
    with Connection(broker.bootstrap_servers) as one:
        for isolation, offset in ((0, 3), (1, 0)):
            found = asked(one, 7, body_of(("one", [(1, -1, -1)]), isolation=isolation))
            assert found["Topics"][0]["Partitions"][0]["Offset"] == offset


@pytest.mark.parametrize("version", VERSIONS)
def test_odd_requests_are_pythons(broker: VirtualBroker, version: int) -> None:
    """What is not there, or is named twice, and nothing at all: one response each, Kafka's."""
    bodies = [
        body_of(),
        body_of(("one", [])),
        body_of(("absent", [(0, -1, -1)])),
        body_of(("one", [(3, -1, -1)])),
        body_of(("one", [(-1, -1, -1)])),
        body_of(("one", [(0, -1, -1), (0, -1, -2)])),
        body_of(("one", [(0, -1, -1)]), ("one", [(1, -1, -2)])),
        body_of(("one", [(0, -1, -1)]), ("two", []), ("absent", [])),
    ]
    with Connection(broker.bootstrap_servers) as one:
        for body in bodies:
            assert asked(one, version, body) == python(broker, version, body)


def test_random_requests(broker: VirtualBroker) -> None:
    rng = random.Random(20)
    with Connection(broker.bootstrap_servers) as one:
        for _ in range(300):
            topics = [
                (
                    rng.choice(["one", "two", "absent", "one", ""]),
                    [
                        (rng.randint(-1, 3), rng.choice((-1, -1, 0, 1)), rng.choice(TIMES))
                        for _ in range(rng.randint(0, 4))
                    ],
                )
                for _ in range(rng.randint(0, 3))
            ]
            body, version = body_of(*topics, isolation=rng.choice((0, 1, 2))), rng.choice(VERSIONS)
            assert asked(one, version, body) == python(broker, version, body)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Cut off, one byte another, a length made huge, or bytes put in."""
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 2:
            return data[:at] + b"\x7f\xff\xff\xff" + data[at + 4 :]
    return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]


@pytest.mark.parametrize("version", [1, 3, 4, 6, 10, 11])
def test_hostile_bodies(broker: VirtualBroker, version: int) -> None:
    """Invalid bytes close the connection, any other body gets the Python handler's response; the broker lives."""
    rng = random.Random(version)
    good = body_of(("one", [(0, -1, -1), (1, 0, -3)]), ("two", [(2, -1, 0)]), isolation=1)
    head = wire.header(LIST_OFFSETS, version, 3, flexible=version >= 6)
    encoded = codec.encode_request(LIST_OFFSETS, version, fitting(version, good))
    for _ in range(150):
        body = damaged(rng, encoded)
        try:
            wanted = codec.decode_request(LIST_OFFSETS, version, body, max_elements=100_000)
        except ProtocolError:
            wanted = None
        with Connection(broker.bootstrap_servers) as one:
            one.send(head + body)
            try:
                response = one.receive()
            except (Closed, ConnectionError):
                assert wanted is None
                continue
        assert wanted is not None
        found = codec.decode_response_frame(LIST_OFFSETS, version, response)[1]
        handled = api02_list_offsets.handle(broker.context, wanted, RequestContext(LIST_OFFSETS, version))
        encoded = codec.encode_response(LIST_OFFSETS, version, handled)
        assert found == codec.decode_response(LIST_OFFSETS, version, encoded)
    with Connection(broker.bootstrap_servers) as one:
        assert asked(one, version, good) == python(broker, version, good)
