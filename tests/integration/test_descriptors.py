"""Few descriptors and many connections: the log keeps its descriptors, and open connections are served."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.log.segment._segment import OpenFileCache
from kbroker.testing import EmbeddedBroker
from tests.support import need, wire
from tests.support.broker import SERVE, BrokerProcess, cpu_seconds, wait_for
from tests.support.descriptors import descriptors, socket_count
from tests.support.wire import Connection

LIMIT = 256
TOPIC = "t"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prlimit and /proc")


def wait_for_checkpoints(broker: BrokerProcess, count: int) -> None:
    """Wait until the recovery points have been written ``count`` more times."""
    path = broker.folder / "recovery-point-offset-checkpoint"

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    for _ in range(count):
        last = written()
        wait_for("a checkpoint is written", lambda last=last: written() != last, 60)  # type: ignore[misc]


@contextlib.contextmanager
def idle_connections(broker: BrokerProcess, count: int) -> Iterator[None]:
    """Open connections without waiting for the broker, which accepts as many as it can."""
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
        log__segment__bytes="1048576",  # a new segment is opened every few records
        socket__listen__backlog__size="1024",
        log__flush__offset__checkpoint__interval__ms="200",
        log__flush__scheduler__interval__ms="100",
        log__flush__interval__ms="100",
    )


def crowd_comes_and_goes(broker: BrokerProcess, client: Connection, turn: int) -> None:
    """Open 400 idle connections: a connected client produces, topics are created, the acceptor does not spin, and new
    connections are served as soon as the idle ones are closed.
    """
    with idle_connections(broker, 400):
        wait_for("no descriptor is left for sockets", lambda: len(descriptors(broker.pid)) > LIMIT / 2)
        used, since = cpu_seconds(broker.pid), time.monotonic()
        wait_for_checkpoints(broker, 8)  # the CPU time during these checkpoints is measured
        assert (cpu_seconds(broker.pid) - used) / (time.monotonic() - since) < 0.2
        for _ in range(100):
            assert produce(client) == 0
        assert wire.first_topic_error(client.ask(wire.create_topic(f"made-{turn}", 4))) == 0
        assert produce(client, f"made-{turn}") == 0
        assert not wire.responses(broker.bootstrap, 0.2)
        assert len(descriptors(broker.pid)) < LIMIT
    wait_for("new connections are served", lambda: wire.responses(broker.bootstrap))


def assert_nothing_broke(broker: BrokerProcess, acknowledged: int) -> None:
    with Connection(broker.bootstrap) as other:
        assert produce(other) == 0
    assert wire.end_offset(broker.bootstrap, TOPIC) == acknowledged + 1
    output = "".join(broker.output)
    assert "offline" not in output
    assert "Traceback" not in output


def test_idle_connections_leave_the_log_its_descriptors(broker: BrokerProcess) -> None:
    """400 idle connections do not take the descriptors that the log needs, so that the log folder stays online."""
    with Connection(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic(TOPIC, 1))) == 0
        crowd_comes_and_goes(broker, client, 0)
    assert_nothing_broke(broker, 100)


@pytest.mark.soak
def test_crowds_come_and_go(broker: BrokerProcess) -> None:
    """After forty times 400 idle connections, no descriptor and no record is lost, and new connections are served."""
    with Connection(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic(TOPIC, 1))) == 0
        for turn in range(40):
            crowd_comes_and_goes(broker, client, turn)
            if turn == 0:
                sockets = socket_count(broker.pid)
        wait_for("the crowds' sockets are closed", lambda: socket_count(broker.pid) <= sockets)
    assert_nothing_broke(broker, 4000)


def test_shortage_is_logged(broker: BrokerProcess) -> None:
    """A line says why new connections wait, and what to do."""
    with idle_connections(broker, 400):
        wait_for("the shortage is logged", lambda: "new connections wait" in "".join(broker.output), 40)
    assert sum("new connections wait" in line for line in broker.output) == 1


@pytest.mark.parametrize("limit", [6, 10, 20, 40])
def test_a_start_with_too_few_descriptors_says_so(tmp_path: Path, limit: int) -> None:
    """A start with a limit of open files that is too low is refused with the needed limit and a hint."""
    need.program("prlimit")
    options = ["--listener", "127.0.0.1:0", "--data-dir", str(tmp_path), "--set", "num.network.threads=2"]
    command = ["prlimit", f"--nofile={limit}", sys.executable, *SERVE, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"kbroker: the limit of open files is too low: expected at least 47, found {limit}; raise it (ulimit -n, "
        "LimitNOFILE in a systemd unit, --ulimit nofile of a container)\n"
    )


def test_the_fewest_descriptors_are_enough(start_broker: Callable[..., BrokerProcess]) -> None:
    """The smallest accepted limit suffices for topics, records and a restart with two listeners."""
    need.program("prlimit")
    broker = start_broker(
        wrapper=("prlimit", "--nofile=54"),
        listeners="PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0",
        listener__security__protocol__map="PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
        num__network__threads="2",
    )
    for turn in range(2):
        with Connection(broker.bootstrap) as client:
            assert wire.first_topic_error(client.ask(wire.create_topic(f"{TOPIC}-{turn}", 40))) == 0
            for number in range(10):
                assert produce(client, f"{TOPIC}-{turn}") == 0, number
        assert broker.stop() == 0
        broker.start()
    assert "Traceback" not in "".join(broker.output)


def test_open_segments_follow_the_raised_limit(start_broker: Callable[..., BrokerProcess]) -> None:
    """A broker raises its soft limit at the start, and keeps a quarter of the new limit for open segments."""
    need.program("prlimit")
    broker = start_broker(wrapper=("prlimit", "--nofile=128:1024"))
    partitions = 128 // 4 + 8
    with Connection(broker.bootstrap) as client:
        assert wire.first_topic_error(client.ask(wire.create_topic(TOPIC, partitions))) == 0
        for index in range(partitions):
            assert wire.produced(client.ask(wire.produce(TOPIC, index, wire.batch()))).error_code == 0
    files = [Path(target) for _, target in descriptors(broker.pid)]
    assert sum(one.suffix == ".log" and one.parent.name.startswith(f"{TOPIC}-") for one in files) == partitions


def test_connections_leave_descriptors_for_all_open_segments(tmp_path: Path) -> None:
    """The acceptor reserves as many descriptors as the log may keep segments open."""
    limit = 12_288
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "kbroker.nofile.limit": limit}
    with need.open_files(limit), EmbeddedBroker(settings) as running:
        first = Connection(running.bootstrap_servers)  # stays open, so that no descriptor becomes free below
        assert first.ask(wire.header(wire.API_VERSIONS, 0, 77))
        taken = [os.open(tmp_path, os.O_RDONLY)]
        try:
            while taken[-1] < limit - OpenFileCache().capacity:
                taken.append(os.dup(taken[0]))
            with Connection(running.bootstrap_servers):  # the acceptor notices the shortage when it accepts
                assert not wire.responses(running.bootstrap_servers, 0.2)
        finally:
            first.close()
            for one in taken:
                os.close(one)
        wait_for("new connections are served", lambda: wire.responses(running.bootstrap_servers))
