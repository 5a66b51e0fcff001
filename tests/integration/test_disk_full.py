"""A disk that takes no more: produce is refused with KAFKA_STORAGE_ERROR, everything else goes on."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import need, wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.wire import Connection

KAFKA_STORAGE_ERROR = 56
VALUE = bytes(400_000)
FILE_LIMIT = 24 << 20

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses Linux's ways to fill a disk")


def make_topic(broker: BrokerProcess, name: str) -> None:
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic(name, 1))) == 0


def produce(broker: BrokerProcess, topic: str, value: bytes = VALUE) -> wire.Produced:
    with Connection(broker.bootstrap) as connection:
        return wire.produced(connection.ask(wire.produce(topic, 0, wire.batch([value]))))


def produce_until_refused(broker: BrokerProcess, topic: str, attempts: int = 400) -> int:
    """Produce until an error comes; return how many were acknowledged."""
    for acknowledged in range(attempts):
        answer = produce(broker, topic)
        if answer.error_code != 0:
            assert answer.error_code == KAFKA_STORAGE_ERROR
            return acknowledged
        assert answer.base_offset == acknowledged
    raise AssertionError(f"{attempts} batches fitted: the disk was never full")


def read_count(broker: BrokerProcess, topic: str) -> int:
    """Fetch a partition from its start to its end; return the number of records, each at its offset."""
    offset = 0
    with Connection(broker.bootstrap) as connection:
        while True:
            answer = wire.fetched(connection.ask(wire.fetch(topic, offset=offset)))
            assert answer.error_code == 0
            batches = answer.batches()
            if not batches:
                return offset
            for base, _, count, _ in batches:
                assert base == offset
                offset += count


def test_file_size_limit(start_broker: Callable[..., BrokerProcess]) -> None:
    """A write that the system refuses is answered with error 56; reads go on, and a restart brings all back."""
    need.program("prlimit")
    broker = start_broker(wrapper=("prlimit", f"--fsize={FILE_LIMIT}"))
    make_topic(broker, "full")
    make_topic(broker, "other")
    acknowledged = produce_until_refused(broker, "full")
    assert acknowledged > 40
    assert wire.answers(broker.bootstrap)
    assert read_count(broker, "full") == acknowledged
    assert produce(broker, "other").error_code == 0, "another partition, with room, was refused too"
    assert broker.is_alive()
    broker.stop()
    broker.wrapper = []
    broker.start()
    assert read_count(broker, "full") == acknowledged
    assert read_count(broker, "other") == 1
    assert produce(broker, "full") == wire.Produced(0, acknowledged)
    assert "Traceback" not in "".join(broker.output)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB of its own."""
    if os.geteuid() != 0:
        need.lack("needs root to mount a small tmpfs")
    need.program("mount", "umount")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        need.lack(f"needs to mount a small tmpfs: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk(small_disk: Path, start_broker: Callable[..., BrokerProcess]) -> None:
    """On a full disk produce gets error 56; fetch and admin go on; deleting a topic makes room without a restart."""
    broker = start_broker(folder=small_disk / "data", log__segment__delete__delay__ms="0")
    make_topic(broker, "ballast")
    make_topic(broker, "kept")
    for number in range(5):
        assert produce(broker, "kept") == wire.Produced(0, number)
    produce_until_refused(broker, "ballast")
    assert read_count(broker, "kept") == 5
    assert wire.answers(broker.bootstrap)
    with Connection(broker.bootstrap) as connection:
        delete = wire.header(wire.DELETE_TOPICS, 1) + b"\0\0\0\1" + wire.text("ballast") + b"\0\0\x27\x10"
        assert wire.first_topic_error(connection.ask(delete)) == 0
    wait_for("room again after the deletion", lambda: produce(broker, "kept").error_code == 0, 30, 0.2)
    assert read_count(broker, "kept") >= 6
    assert broker.stop() == 0
    broker.start()
    assert read_count(broker, "kept") >= 6


def test_full_disk_and_the_request_log(small_disk: Path, start_broker: Callable[..., BrokerProcess]) -> None:
    """Records that find no room are counted and told, clients are served, whole lines stay; with room it goes on."""
    folder = small_disk / "log"
    broker = start_broker(
        folder=small_disk / "data", log__segment__delete__delay__ms="0", kbroker__request__log__topic="__request_log",
        kbroker__request__log__dir=str(folder),
    )  # fmt: skip
    make_topic(broker, "ballast")
    produce_until_refused(broker, "ballast")
    with Connection(broker.bootstrap) as client:

        def is_told() -> bool:
            assert client.ask(wire.header(wire.API_VERSIONS, 0))
            return any("the request log has dropped" in line for line in broker.output)

        wait_for("the drops are told", is_told, 60, 0)
        delete = wire.header(wire.DELETE_TOPICS, 1) + b"\0\0\0\1" + wire.text("ballast") + b"\0\0\x27\x10"
        assert wire.first_topic_error(client.ask(delete)) == 0

        def is_written() -> bool:
            assert client.ask(wire.header(wire.API_VERSIONS, 0, client_id="after"))
            return any(b'"clientId":"after"' in file.read_bytes() for file in folder.iterdir())

        wait_for("the log goes on", is_written, 60, 0.05)
    written = read_count(broker, "__request_log")
    assert broker.stop() == 0
    numbers = [
        json.loads(line)["sequence"] for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()
    ]
    assert numbers == sorted(set(numbers))
    assert 0 < len(numbers) < numbers[-1], "nothing was dropped, or nothing written"
    assert written > 0
    assert "Traceback" not in "".join(broker.output)


def refused_start(broker: BrokerProcess) -> str:
    with pytest.raises(AssertionError, match="ended with"):
        broker.start()
    return broker.tail()


def test_read_only_folder(small_disk: Path) -> None:
    """A folder that cannot be written is refused at the start, by name, in one line."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    said = refused_start(BrokerProcess(small_disk / "data"))
    assert str(small_disk / "data") in said
    assert "Traceback" not in said


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    """A log folder that is a file is refused at the start, by name, in one line."""
    (tmp_path / "data").write_text("no folder")
    said = refused_start(BrokerProcess(tmp_path / "data"))
    assert str(tmp_path / "data") in said
    assert "Traceback" not in said


def test_few_descriptors(start_broker: Callable[..., BrokerProcess]) -> None:
    """With descriptors used up, accepting waits without spinning; who is connected goes on, and room is used again."""
    need.program("prlimit")
    limit = 96
    broker = start_broker(wrapper=("prlimit", f"--nofile={limit}:{limit}"))
    make_topic(broker, "few")
    with Connection(broker.bootstrap) as old:
        old.ask(wire.header(wire.API_VERSIONS, 0))
        crowd: list[Connection] = []
        try:
            for _ in range(limit + 4):  # those past the limit wait in the backlog, which holds 50
                crowd.append(Connection(broker.bootstrap))
            before = cpu_seconds(broker.pid)
            for _ in range(20):  # about a second of a client that goes on
                assert old.ask(wire.header(wire.API_VERSIONS, 0))
                assert not wire.answers(broker.bootstrap, within=0.05)
            assert cpu_seconds(broker.pid) - before < 0.5
        finally:
            for connection in crowd:
                connection.close()
        wait_for("newcomers are served again", lambda: wire.answers(broker.bootstrap), 10)
        assert wire.produced(old.ask(wire.produce("few", 0, wire.batch()))).error_code == 0


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_soft_limit_of_descriptors_is_raised(start_broker: Callable[..., BrokerProcess]) -> None:
    """The soft limit of open files is raised to the hard one at the start."""
    need.program("prlimit")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    broker = start_broker(wrapper=("prlimit", f"--nofile=256:{hard}"))
    assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
