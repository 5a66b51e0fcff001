"""Connections without end and few descriptors: the log keeps its own, and who is there is served on."""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import need, wire
from tests.support.broker import BrokerProcess, socket_count, wait_for
from tests.support.wire import Connection

LIMIT = 256
TOPIC = "t"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prlimit and /proc")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextlib.contextmanager
def idle_connections(broker: BrokerProcess, count: int) -> Iterator[None]:
    """Opened without waiting for the broker, which takes as many as it can; the others stay in its backlog."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", broker.port))
        yield


def produce(connection: Connection, topic: str = TOPIC) -> int:
    return wire.produced(connection.ask(wire.produce(topic, 0, wire.batch([bytes(60_000)])))).error_code


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    need.program("prlimit")
    return start_broker(
        wrapper=("prlimit", f"--nofile={LIMIT}"),
        log__segment__bytes="1048576",  # every few records another file is opened
        socket__listen__backlog__size="1024",
        log__flush__offset__checkpoint__interval__ms="200",
        log__flush__scheduler__interval__ms="100",
        log__flush__interval__ms="100",
    )


def crowd_comes_and_goes(broker: BrokerProcess, client: Connection, turn: int) -> None:
    """400 connections that say nothing: who is connected produces on, topics are made, the acceptor does not spin, and
    newcomers are served as soon as the crowd has left."""
    with idle_connections(broker, 400):
        wait_for("no descriptor is left for sockets", lambda: descriptors(broker.pid) > LIMIT / 2)
        used, since = cpu_seconds(broker.pid), time.monotonic()
        time.sleep(2)  # what the checkpoints and an acceptor do in this time is what is looked at
        assert (cpu_seconds(broker.pid) - used) / (time.monotonic() - since) < 0.2
        for _ in range(100):
            assert produce(client) == 0
        assert wire.first_topic_error(client.ask(wire.create_topic(f"made-{turn}", 4))) == 0
        assert produce(client, f"made-{turn}") == 0
        assert not wire.responses(broker.bootstrap, 0.2)
        assert descriptors(broker.pid) < LIMIT
    wait_for("newcomers are served", lambda: wire.responses(broker.bootstrap))


def assert_nothing_broke(broker: BrokerProcess, acknowledged: int) -> None:
    with Connection(broker.bootstrap) as other:
        assert produce(other) == 0
    assert wire.end_offset(broker.bootstrap, TOPIC) == acknowledged + 1
    output = "".join(broker.output)
    assert "offline" not in output
    assert "Traceback" not in output


def test_idle_connections_leave_the_log_its_descriptors(broker: BrokerProcess) -> None:
    """400 connections without a login took the log folder offline until a restart: a checkpoint found no descriptor."""
    with Connection(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic(TOPIC, 1))) == 0
        crowd_comes_and_goes(broker, client, 0)
    assert_nothing_broke(broker, 100)


@pytest.mark.soak
def test_crowds_come_and_go(broker: BrokerProcess) -> None:
    """Forty crowds one after the other: no descriptor is lost, no record, and each time newcomers are served again."""
    with Connection(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic(TOPIC, 1))) == 0
        for turn in range(40):
            crowd_comes_and_goes(broker, client, turn)
            if turn == 0:
                sockets = socket_count(broker.pid)
        wait_for("the crowds' sockets are closed", lambda: socket_count(broker.pid) <= sockets)
    assert_nothing_broke(broker, 4000)


def test_shortage_is_told(broker: BrokerProcess) -> None:
    """A line says why new connections wait, and what to do."""
    with idle_connections(broker, 400):
        wait_for("it is told", lambda: "new connections wait" in "".join(broker.output), 40)
    assert sum("new connections wait" in line for line in broker.output) == 1
