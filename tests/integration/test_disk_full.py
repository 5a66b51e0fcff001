"""Disk that is full or fails: Produce is refused with KAFKA_STORAGE_ERROR, and other requests are served."""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import need, wire
from tests.support.broker import BrokerProcess, cpu_seconds, wait_for
from tests.support.client import Client, more_partitions, set_configs
from tests.support.small_disk import fill, mounted
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


def says(broker: BrokerProcess, text: str) -> bool:
    """Return whether a line of the broker's log contains the text."""
    return any(text in line for line in broker.output)


def produce_until_refused(broker: BrokerProcess, topic: str, attempts: int = 400) -> int:
    """Produce until the broker returns an error; return the number of acknowledged batches."""
    for acknowledged in range(attempts):
        response = produce(broker, topic)
        if response.error_code != 0:
            assert response.error_code == KAFKA_STORAGE_ERROR
            return acknowledged
        assert response.base_offset == acknowledged
    raise AssertionError(f"{attempts} batches fitted: the disk was never full")


def read_count(broker: BrokerProcess, topic: str) -> int:
    """Fetch a partition from its start to its end; return the number of records, each at its offset."""
    offset = 0
    with Connection(broker.bootstrap) as connection:
        while True:
            response = wire.fetched(connection.ask(wire.fetch(topic, offset=offset)))
            assert response.error_code == 0
            batches = response.batches()
            if not batches:
                return offset
            for base, _, count, _ in batches:
                assert base == offset
                offset += count


def test_file_size_limit(start_broker: Callable[..., BrokerProcess]) -> None:
    """A write that the system refuses returns KAFKA_STORAGE_ERROR; acknowledged records are readable, even after a
    restart.
    """
    need.program("prlimit")
    broker = start_broker(wrapper=("prlimit", f"--fsize={FILE_LIMIT}"))
    make_topic(broker, "full")
    make_topic(broker, "other")
    acknowledged = produce_until_refused(broker, "full")
    assert acknowledged > 40
    assert wire.responses(broker.bootstrap)
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
    """Separate file system of 48 MiB."""
    with mounted(tmp_path / "disk", 48) as place:
        yield place


def test_full_disk(small_disk: Path, start_broker: Callable[..., BrokerProcess]) -> None:
    """On a full disk Produce is refused and Fetch served; the deletion of a topic frees space without a restart."""
    broker = start_broker(folder=small_disk / "data", log__segment__delete__delay__ms="0")
    make_topic(broker, "ballast")
    make_topic(broker, "kept")
    for number in range(5):
        assert produce(broker, "kept") == wire.Produced(0, number)
    produce_until_refused(broker, "ballast")
    wait_for("the failed append is logged", lambda: says(broker, "the last of partition ballast-0: No space left"))
    assert read_count(broker, "kept") == 5
    assert wire.responses(broker.bootstrap)
    with Connection(broker.bootstrap) as connection:
        delete = wire.header(wire.DELETE_TOPICS, 1) + b"\0\0\0\1" + wire.text("ballast") + b"\0\0\x27\x10"
        assert wire.first_topic_error(connection.ask(delete)) == 0
    wait_for("the deletion makes room", lambda: produce(broker, "kept").error_code == 0, 30, 0.2)
    assert read_count(broker, "kept") >= 6
    assert broker.stop() == 0
    broker.start()
    assert read_count(broker, "kept") >= 6


def create_partitions(broker: BrokerProcess, topic: str, count: int) -> int:
    """Increase the number of partitions to ``count``; return the error code."""
    with Client(broker.bootstrap) as client:
        (result,) = client.call("CreatePartitions", 2, more_partitions(topic, count))["Results"]
    return int(result["ErrorCode"])


@pytest.mark.slow
def test_partitions_that_find_no_room_leave_nothing(
    small_disk: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    """Partitions that cannot be created on a full disk leave no folder, and can be created when there is space."""
    broker = start_broker(folder=small_disk / "data")
    make_topic(broker, "t")
    filler = fill(small_disk)
    before = sorted((small_disk / "data").glob("*-*/"))
    assert create_partitions(broker, "t", 5) == KAFKA_STORAGE_ERROR
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic("new", 3))) == KAFKA_STORAGE_ERROR
    assert produce(broker, "t").error_code == KAFKA_STORAGE_ERROR
    wait_for("no folder is left", lambda: sorted((small_disk / "data").glob("*-*/")) == before)
    filler.unlink()
    assert create_partitions(broker, "t", 5) == 0
    make_topic(broker, "new")
    assert produce(broker, "new") == wire.Produced(0, 0)
    assert produce(broker, "t") == wire.Produced(0, 0)
    assert "Traceback" not in "".join(broker.output)


def alter_topic(broker: BrokerProcess, topic: str, name: str, value: str) -> int:
    """Set one config of a topic; return the error code."""
    with Client(broker.bootstrap) as client:
        (result,) = client.call("IncrementalAlterConfigs", 1, set_configs(2, topic, {name: value}))["Responses"]
    return int(result["ErrorCode"])


@pytest.mark.soak
def test_lower_retention_makes_room(small_disk: Path, start_broker: Callable[..., BrokerProcess]) -> None:
    """On a full disk, a lower `retention.bytes` deletes old segments, and Produce succeeds again."""
    broker = start_broker(
        folder=small_disk / "data", log__segment__delete__delay__ms="0", log__segment__bytes="4194304",
        log__retention__check__interval__ms="500",
    )  # fmt: skip
    make_topic(broker, "ballast")
    acknowledged = produce_until_refused(broker, "ballast")
    filler = fill(small_disk)
    assert filler.stat().st_size < 4 << 20
    assert produce(broker, "ballast").error_code == KAFKA_STORAGE_ERROR
    assert alter_topic(broker, "ballast", "retention.bytes", str(8 << 20)) == 0
    wait_for("the lower retention makes room", lambda: produce(broker, "ballast").error_code == 0, 90, 0.5)
    with Connection(broker.bootstrap) as connection:
        newest = wire.produced(connection.ask(wire.produce("ballast", 0, wire.batch([VALUE])))).base_offset
    assert newest > acknowledged
    assert "Traceback" not in "".join(broker.output)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Separate ext4 file system, and a function that makes it read-only, as an I/O error does."""
    need.root("to mount an ext4 image")
    need.program("mount", "umount", "findmnt", "mkfs.ext4")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    options = "loop,errors=remount-ro"
    made = subprocess.run(["mount", "-o", options, image, place], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        need.lack(f"needs to mount an ext4 image: {made.stderr.strip()}")
    try:
        device = subprocess.run(["findmnt", "-no", "SOURCE", place], check=True, capture_output=True, text=True).stdout
        trigger = Path("/sys/fs/ext4", Path(device.strip()).name, "trigger_fs_error")
        if not trigger.exists():
            need.lack(f"needs {trigger}, with which the kernel's ext4 can be made to fail")
        yield place, lambda: trigger.write_text("kbroker's test of a disk that turns read-only")  # type: ignore[misc]
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_disk_that_turns_read_only(
    failing_disk: tuple[Path, Callable[[], None]], start_broker: Callable[..., BrokerProcess]
) -> None:
    """The first failed write is logged with its reason and reads are served; after a remount no record is missing."""
    disk, fail = failing_disk
    broker = start_broker(folder=disk / "data", log__flush__interval__messages="1")
    make_topic(broker, "kept")
    make_topic(broker, "other")
    for number in range(5):
        assert produce(broker, "kept") == wire.Produced(0, number)
    fail()
    assert produce(broker, "kept").error_code == KAFKA_STORAGE_ERROR
    logged = re.compile(rf"log folder {disk / 'data'} is offline: .*\[Errno 30\] Read-only file system")
    wait_for("the failed folder is logged", lambda: any(map(logged.search, broker.output)), 60)
    assert produce(broker, "other").error_code == KAFKA_STORAGE_ERROR
    wait_for("refused appends are logged", lambda: says(broker, "1 append failed, the last of partition"), 60)
    assert read_count(broker, "kept") == 5
    assert create_partitions(broker, "kept", 2) != 0
    assert broker.is_alive()
    broker.stop()
    subprocess.run(["umount", disk], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", disk.with_name("image"), disk], check=True)
    broker.start()
    assert read_count(broker, "kept") == 5
    assert produce(broker, "kept") == wire.Produced(0, 5)


def test_full_disk_and_the_request_log(small_disk: Path, start_broker: Callable[..., BrokerProcess]) -> None:
    """Request log records that find no space are dropped and counted; lines stay complete, and logging resumes."""
    folder = small_disk / "log"
    broker = start_broker(
        folder=small_disk / "data", log__segment__delete__delay__ms="0", kbroker__request__log__topic="__request_log",
        kbroker__request__log__dir=str(folder),
    )  # fmt: skip
    make_topic(broker, "ballast")
    produce_until_refused(broker, "ballast")
    with Connection(broker.bootstrap) as client:

        def is_logged() -> bool:
            assert client.ask(wire.header(wire.API_VERSIONS, 0))
            return any("the request log has dropped" in line for line in broker.output)

        wait_for("the drops are logged", is_logged, 60, 0)
        delete = wire.header(wire.DELETE_TOPICS, 1) + b"\0\0\0\1" + wire.text("ballast") + b"\0\0\x27\x10"
        assert wire.first_topic_error(client.ask(delete)) == 0

        def is_written() -> bool:
            assert client.ask(wire.header(wire.API_VERSIONS, 0, client_id="after"))
            return any(b'"clientId":"after"' in file.read_bytes() for file in folder.iterdir())

        wait_for("the log goes on", is_written, 60, 0.05)

    def whole_lines() -> list[int]:
        lines = [line for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines(keepends=True)]
        return [json.loads(line)["sequence"] for line in lines if line.endswith(b"\n")]

    newest = whole_lines()[-1]
    written = read_count(broker, "__request_log")
    assert broker.stop() == 0
    numbers = whole_lines()
    assert numbers == sorted(set(numbers))
    assert written > 0
    # which of the two ran out of space first varies
    assert len(numbers) < numbers[-1] or written < newest, "nothing was dropped"
    assert "Traceback" not in "".join(broker.output)


def refused_start(broker: BrokerProcess) -> str:
    with pytest.raises(AssertionError, match="ended with"):
        broker.start()
    return broker.tail()


def test_read_only_folder(small_disk: Path) -> None:
    """A start with a read-only folder is refused with its name and without a traceback."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    said = refused_start(BrokerProcess(small_disk / "data"))
    assert str(small_disk / "data") in said
    assert "Traceback" not in said


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    """A start with a file as log folder is refused with its name and without a traceback."""
    (tmp_path / "data").write_text("no folder")
    said = refused_start(BrokerProcess(tmp_path / "data"))
    assert str(tmp_path / "data") in said
    assert "Traceback" not in said


def test_few_descriptors(start_broker: Callable[..., BrokerProcess]) -> None:
    """Without descriptors the acceptor waits without spinning; open connections are served, and later new ones too."""
    need.program("prlimit")
    limit = 96
    broker = start_broker(wrapper=("prlimit", f"--nofile={limit}:{limit}"))
    make_topic(broker, "few")
    with Connection(broker.bootstrap) as old:
        old.ask(wire.header(wire.API_VERSIONS, 0))
        crowd: list[Connection] = []
        try:
            for _ in range(limit + 4):  # connections above the limit wait in the backlog of 50
                crowd.append(Connection(broker.bootstrap))
            before = cpu_seconds(broker.pid)
            for _ in range(20):  # about a second of requests
                assert old.ask(wire.header(wire.API_VERSIONS, 0))
                assert not wire.responses(broker.bootstrap, within=0.05)
            assert cpu_seconds(broker.pid) - before < 0.5
        finally:
            for connection in crowd:
                connection.close()
        wait_for("new connections are served again", lambda: wire.responses(broker.bootstrap))
        assert wire.produced(old.ask(wire.produce("few", 0, wire.batch()))).error_code == 0


def test_soft_limit_of_descriptors_is_raised(start_broker: Callable[..., BrokerProcess]) -> None:
    """The start raises the soft limit of open files to the hard limit."""
    need.program("prlimit")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    broker = start_broker(wrapper=("prlimit", f"--nofile=256:{hard}"))
    assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
