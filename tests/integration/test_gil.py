"""Native handlers: requests receive responses while no Python code can run in the broker's process."""

import os
import select
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol import codec
from tests.support import wire
from tests.support.wire import Connection

ROOT = Path(__file__).resolve().parents[2]
FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN = 10, 22, 24
HELD_S = 1.2  # the longest wait of a test is a throttle of 0.6 s


class HeldBroker:
    """Broker whose process holds its GIL on request."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.gil_holder", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self.bootstrap, self.sasl, self.tls = self.line().split()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hold(self) -> None:
        """Make the process hold its GIL; return as soon as it does."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{HELD_S}\n")
        self.process.stdin.flush()
        assert self.line() == "spinning"
        time.sleep(0.05)  # the line is written just before the spin begins

    def is_holding(self) -> bool:
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], 0)[0]

    def check_held(self) -> None:
        """Check that the GIL is still held, and wait until it is released."""
        assert self.is_holding(), "the GIL was released too early: the test has shown nothing"
        assert self.line() == "done"

    def stop(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and pipe is not self.process.stdout:
                pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBroker]:
    yield from held_broker(tmp_path_factory)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBroker]:
    """Broker that enforces quotas on every request."""
    yield from held_broker(tmp_path_factory, "quotas")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBroker]:
    """Broker with an authorizer."""
    yield from held_broker(tmp_path_factory, "acls")


def held_broker(tmp_path_factory: pytest.TempPathFactory, *options: str) -> Iterator[HeldBroker]:
    broker = HeldBroker(tmp_path_factory.mktemp("gil") / "data", *options)
    try:
        with Connection(broker.bootstrap) as connection:
            assert wire.first_topic_error(connection.ask(wire.create_topic("held", 1))) == 0
            assert wire.produced(connection.ask(wire.produce("held", 0, wire.batch([b"first"])))).error_code == 0
        yield broker
    finally:
        broker.stop()


NATIVE = {
    "ApiVersions v0": wire.header(wire.API_VERSIONS, 0),
    "ApiVersions v3": wire.header(wire.API_VERSIONS, 3, flexible=False)
    + b"\0"
    + wire.compact("a")
    + wire.compact("b")
    + b"\0",
    "Produce": wire.produce("held", 0, wire.batch([b"while Python is stuck"])),
    "Produce acks=all": wire.produce("held", 0, wire.batch([b"while Python is stuck"]), acks=-1),
    "Fetch": wire.fetch("held"),
    "Fetch read_committed": wire.fetch("held", isolation=1),
}


def check_responses_while_held(connection: Connection, name: str) -> None:
    """Check that fifty responses arrive in time while the GIL is held."""
    slowest = 0.0
    for _ in range(50):
        begun = time.monotonic()
        connection.ask(NATIVE[name])
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < HELD_S / 3, name


@pytest.mark.slow
def test_native_requests_are_handled_without_the_gil(held: HeldBroker) -> None:
    """While the broker's process holds its GIL, native requests receive their responses at once."""
    with Connection(held.bootstrap, timeout=HELD_S + 5) as connection:
        hold_and_check(held, connection)
        held.check_held()


def hold_and_check(held: HeldBroker, connection: Connection) -> None:
    for request in NATIVE.values():
        connection.ask(request)
    held.hold()
    for name in NATIVE:
        check_responses_while_held(connection, name)


@pytest.mark.slow
def test_requests_after_login_are_handled_without_the_gil(held: HeldBroker) -> None:
    """Requests after a login need no GIL, and a login that waits for the GIL does not delay other clients."""
    handshake, token = wire.header(17, 0) + wire.text("PLAIN"), b"\0alice\0secret"
    with (
        Connection(held.sasl, timeout=HELD_S + 5) as connection,
        Connection(held.sasl, timeout=HELD_S + 5) as late,
        Connection(held.bootstrap, timeout=HELD_S + 5) as plain,
    ):
        connection.ask(handshake)
        assert connection.ask(token) == b""
        hold_and_check(held, connection)
        late.send(handshake)
        for request in NATIVE.values():
            begun = time.monotonic()
            plain.ask(request)
            assert time.monotonic() - begun < HELD_S / 3
        held.check_held()
        assert late.receive()
        assert late.ask(token) == b""


@pytest.mark.slow
def test_requests_in_tls_are_handled_without_the_gil(held: HeldBroker) -> None:
    """Requests in a TLS session need no GIL after the handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Connection(held.tls, timeout=HELD_S + 5) as connection:
        connection.socket = context.wrap_socket(connection.socket)
        connection.ask(NATIVE["ApiVersions v0"])
        held.hold()
        for name in NATIVE:
            check_responses_while_held(connection, name)
        held.check_held()


@pytest.mark.slow
def test_new_connection_is_served_without_the_gil(held: HeldBroker) -> None:
    """A new connection is accepted and served without the GIL."""
    held.hold()
    for _ in range(20):
        assert wire.responses(held.bootstrap, within=0.5)
    held.check_held()


@pytest.mark.slow
def test_parked_fetch_is_completed_without_the_gil(held: HeldBroker) -> None:
    """A delayed fetch is completed by a produce, and another by its timeout, without the GIL."""
    end = wire.end_offset(held.bootstrap, "held")
    with (
        Connection(held.bootstrap) as reader,
        Connection(held.bootstrap) as patient,
        Connection(held.bootstrap) as writer,
    ):
        held.hold()
        reader.send(wire.fetch("held", offset=end, max_wait_ms=20_000))
        patient.send(wire.fetch("held", offset=end, max_wait_ms=500, min_bytes=1 << 20))
        time.sleep(0.1)
        assert wire.produced(writer.ask(wire.produce("held", 0, wire.batch([b"news"])))) == wire.Produced(0, end)
        assert wire.fetched(reader.receive()).batches()[0][0] == end
        assert wire.fetched(patient.receive()).error_code == 0
        held.check_held()


def begin_transaction(connection: Connection, name: str) -> tuple[int, int]:
    """Begin a transaction with the partition; return its producer id and epoch."""

    def ask(key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        frame = codec.encode_request_frame(key, version, 1, "gil", body)[4:]
        return codec.decode_response_frame(key, version, connection.ask(frame))[1]

    deadline = time.monotonic() + 30
    while True:
        found = ask(INIT_PRODUCER_ID, 2, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
        if found["ErrorCode"] == 0:
            break
        assert time.monotonic() < deadline, found  # the coordinator loads its topic
        assert ask(FIND_COORDINATOR, 2, {"Key": name, "KeyType": 1})["ErrorCode"] in (0, 15)
    who = found["ProducerId"], found["ProducerEpoch"]
    added = {
        "V3AndBelowTransactionalId": name,
        "V3AndBelowProducerId": who[0],
        "V3AndBelowProducerEpoch": who[1],
        "V3AndBelowTopics": [{"Name": "held", "Partitions": [0]}],
    }
    (topic,) = ask(ADD_PARTITIONS_TO_TXN, 3, added)["ResultsByTopicV3AndBelow"]
    assert topic["ResultsByPartition"][0]["PartitionErrorCode"] == 0
    return who


@pytest.mark.slow
def test_batches_of_an_open_transaction_take_no_gil(held: HeldBroker) -> None:
    """After the first batch of a transaction, whose verification needs Python, further batches are appended, and
    read_committed fetches completed, without the GIL.
    """
    with Connection(held.bootstrap, timeout=HELD_S + 5) as writer, Connection(held.bootstrap) as reader:
        producer_id, epoch = begin_transaction(writer, "gil")

        def put(sequence: int) -> wire.Produced:
            data = wire.batch(
                [b"v"], attributes=16, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            return wire.produced(writer.ask(wire.produce("held", 0, data, acks=-1, transactional_id="gil")))

        first = put(0)
        assert first.error_code == 0
        held.hold()
        deadline, sequence, slowest = time.monotonic() + HELD_S - 0.5, 0, 0.0
        while time.monotonic() < deadline:
            sequence += 1
            begun = time.monotonic()
            assert put(sequence) == wire.Produced(0, first.base_offset + sequence)
            got = wire.fetched(reader.ask(wire.fetch("held", offset=first.base_offset, isolation=1)))
            assert (got.error_code, got.records) == (0, b"")
            slowest = max(slowest, time.monotonic() - begun)
        held.check_held()
        assert sequence > 100
        assert slowest < 0.5


@pytest.mark.slow
def test_cold_request_waits_for_the_gil(held: HeldBroker) -> None:
    """A request that Python serves receives no response before the GIL is released, as a counter-check."""
    describe = wire.header(wire.DESCRIBE_CLUSTER, 0, 3, flexible=True) + b"\0\0"
    with Connection(held.bootstrap) as connection:
        assert struct.unpack_from(">i", connection.ask(describe)) == (3,)
        held.hold()
        begun = time.monotonic()
        connection.send(describe)
        assert connection.receive()[:4] == struct.pack(">i", 3)
        assert time.monotonic() - begun > HELD_S / 2
        assert held.line() == "done"


@pytest.mark.slow
def test_enforced_quotas_take_no_gil(limited: HeldBroker) -> None:
    """Quotas of known and new clients are recorded and checked without the GIL."""
    with Connection(limited.bootstrap, timeout=HELD_S + 5) as connection:
        for request in NATIVE.values():
            connection.ask(request)
        limited.hold()
        for name, request in NATIVE.items():
            check_responses_while_held(connection, name)
            for number in range(100):
                client_id = wire.text(f"{name} {number}")
                connection.ask(request[:8] + client_id + request[8 + 2 + len("raw") :])
        limited.check_held()


@pytest.mark.slow
def test_the_authorizer_takes_no_gil(guarded: HeldBroker) -> None:
    """Requests are allowed, denied and logged by the authorizer without the GIL."""
    with Connection(guarded.bootstrap, timeout=HELD_S + 5) as connection:
        guarded.hold()
        for name in ("Produce", "Fetch"):
            check_responses_while_held(connection, name)
        for _ in range(50):
            refused = connection.ask(wire.produce("denied", 0, wire.batch([b"refused"])))
            assert wire.produced(refused).error_code == 29
        guarded.check_held()


@pytest.mark.slow
def test_a_throttle_begins_and_ends_without_the_gil(limited: HeldBroker) -> None:
    """A client over its quota is muted for its throttle time and read again without the GIL."""
    request = wire.produce("held", 0, wire.batch([b"x" * 105_000]))
    request = request[:8] + wire.text("slow") + request[8 + 2 + len("raw") :]
    with Connection(limited.bootstrap) as connection:
        limited.hold()
        response = connection.ask(request)
        (throttle_ms,) = struct.unpack(">i", response[-4:])
        begun = time.monotonic()
        assert 400 < throttle_ms < 600
        connection.ask(NATIVE["ApiVersions v0"])
        assert time.monotonic() - begun > throttle_ms / 1000 - 0.05
        limited.check_held()
