"""A log folder whose fsyncs do not return delays the partitions of no other folder."""

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.common.errors import Errors
from kbroker.log._flusher import Flusher
from kbroker.log.clean_shutdown import FILE_NAME as MARK
from kbroker.testing import EmbeddedBroker
from tests.integration.test_log_dirs import TOPIC, described, is_settled, move
from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client
from tests.support.disk_calls import DiskCalls
from tests.support.kill import create_topic
from tests.support.wire import Connection

PARTITIONS = 4

pytestmark = pytest.mark.slow


class Stall:
    """A broker with two log folders, and partitions in both.

    Each append waits for an fsync. ``b`` is the folder that stalls, ``a`` has the metadata log.
    """

    def __init__(self, folder: Path, start_broker: Callable[..., BrokerProcess]) -> None:
        self.a, self.b = folder / "a", folder / "b"
        self.disk = DiskCalls(folder, folder)
        self.broker = start_broker(
            wrapper=self.disk.wrapper,
            log__dirs=f"{self.a},{self.b}",
            log__flush__interval__messages="1",
            log__flush__offset__checkpoint__interval__ms="100",
        )
        create_topic(self.broker.bootstrap, TOPIC, PARTITIONS)
        self.acked = dict.fromkeys(range(PARTITIONS), 0)
        for partition in range(PARTITIONS):
            self.append(partition)
        self.in_a, self.in_b = (self.partitions(one) for one in (self.a, self.b))
        assert len(self.in_a) == len(self.in_b) == 2

    def partitions(self, folder: Path) -> list[int]:
        return [number for number in range(PARTITIONS) if (folder / f"{TOPIC}-{number}").exists()]

    def append(self, partition: int) -> None:
        """Append a record that is acknowledged."""
        with closing(Connection(self.broker.bootstrap)) as connection:
            response = connection.ask(wire.produce(TOPIC, partition, wire.batch(), acks=-1))
        assert wire.produced(response) == wire.Produced(0, self.acked[partition])
        self.acked[partition] += 1

    def hang(self, partition: int) -> Connection:
        """Make the fsyncs of a partition hang; return a connection that waits for the response to an append."""
        self.disk.block("sync", part=f"/b/{TOPIC}-{partition}/")
        connection = Connection(self.broker.bootstrap)
        connection.send(wire.produce(TOPIC, partition, wire.batch(), acks=-1))
        wait_for("an fsync that hangs", lambda: self.disk.blocked)
        return connection

    def release(self, partition: int, waiting: Connection) -> None:
        """End the hang, after which the append is acknowledged."""
        self.disk.repair()
        with closing(waiting):
            assert wire.produced(waiting.receive()) == wire.Produced(0, self.acked[partition])
        self.acked[partition] += 1

    def check(self) -> None:
        """Check that each partition ends after its last acknowledged record."""
        ends = {number: wire.end_offset(self.broker.bootstrap, TOPIC, number) for number in self.acked}
        assert ends == self.acked


@pytest.fixture
def stall(tmp_path: Path, start_broker: Callable[..., BrokerProcess]) -> Iterator[Stall]:
    made = Stall(tmp_path, start_broker)
    yield made
    made.disk.repair()


def test_other_folders_are_not_delayed(stall: Stall) -> None:
    """While the fsync of a partition hangs, appends to another folder are acknowledged, and its checkpoint is written.

    Another partition of the stalled folder waits in its queue, and is acknowledged afterwards.
    """
    waiting = stall.hang(stall.in_b[0])
    other = Connection(stall.broker.bootstrap)
    other.send(wire.produce(TOPIC, stall.in_b[1], wire.batch(), acks=-1))
    for _ in range(20):
        for partition in stall.in_a:
            stall.append(partition)
    row = f"{TOPIC} {stall.in_a[0]} {stall.acked[stall.in_a[0]]}\n"
    checkpoint = stall.a / "recovery-point-offset-checkpoint"
    wait_for("the checkpoint of the other folder", lambda: checkpoint.exists() and row in checkpoint.read_text())
    assert not other.is_closed_within(0)
    stall.release(stall.in_b[0], waiting)
    stall.release(stall.in_b[1], other)
    stall.check()


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_tasks_of_a_stalled_folder_delay_those_of_no_other(stall: Stall, call: str) -> None:
    """While a checkpoint of a folder hangs, those of another are written, and topics are created there."""
    stall.disk.block(call, part="/b/recovery-point-offset-checkpoint")
    wait_for("a checkpoint that hangs", lambda: stall.disk.blocked)
    partition = stall.in_a[0]
    stall.append(partition)
    row = f"{TOPIC} {partition} {stall.acked[partition]}\n"
    checkpoint = stall.a / "recovery-point-offset-checkpoint"
    wait_for("the checkpoint of the other folder", lambda: checkpoint.exists() and row in checkpoint.read_text())
    create_topic(stall.broker.bootstrap, "new", 1)  # in the first folder: both have as many partitions
    with closing(Connection(stall.broker.bootstrap)) as connection:
        assert wire.produced(connection.ask(wire.produce("new", 0, wire.batch(), acks=-1))) == wire.Produced(0, 0)
    stall.disk.repair()
    stall.check()


def test_a_stop_closes_the_other_folders(stall: Stall) -> None:
    """A stop closes the folders that respond, then waits for the stalled one, and leaves both cleanly closed."""
    partition = stall.in_b[0]
    waiting = stall.hang(partition)
    process = stall.broker.process
    assert process is not None
    process.terminate()
    wait_for("the clean-shutdown mark of the other folder", (stall.a / MARK).exists, 60)
    assert process.poll() is None
    assert not (stall.b / MARK).exists()
    waiting.close()
    stall.disk.repair()
    assert process.wait(30) == 0
    assert (stall.b / MARK).exists()
    stall.acked[partition] += 1  # although not acknowledged
    stall.broker.start()
    stall.check()


def test_a_kill_keeps_what_was_acknowledged(stall: Stall) -> None:
    """After a kill while an fsync hangs, every folder has its acknowledged records."""
    waiting = stall.hang(stall.in_b[0])
    for partition in stall.in_a:
        stall.append(partition)
    stall.broker.kill()
    waiting.close()
    stall.disk.repair()
    stall.broker.start()
    stall.acked[stall.in_b[0]] += 1  # although not acknowledged: it was in the page cache
    stall.check()


def test_moves_of_other_partitions_from_the_stalled_folder(stall: Stall) -> None:
    """A partition without a hanging fsync moves away from the stalled folder, and is then flushed by the other one."""
    waiting = stall.hang(stall.in_b[0])
    moved = stall.in_b[1]
    queued = Connection(stall.broker.bootstrap)
    queued.send(wire.produce(TOPIC, moved, wire.batch(), acks=-1))
    with closing(Client(stall.broker.bootstrap)) as client:
        assert move(client, moved, stall.a) == 0
    wait_for("the move", lambda: is_settled(stall.broker))
    assert moved in stall.partitions(stall.a)
    assert stall.disk.blocked == 1
    with closing(queued):
        assert wire.produced(queued.receive()) == wire.Produced(0, stall.acked[moved])
    stall.acked[moved] += 1
    for _ in range(5):
        stall.append(moved)
    stall.release(stall.in_b[0], waiting)
    stall.append(moved)
    stall.check()


def test_a_failed_folder_answers_those_that_wait_for_its_flusher(tmp_path: Path) -> None:
    """When a folder fails while an fsync hangs, appends that wait behind it get KAFKA_STORAGE_ERROR at once."""
    settings = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", "log.flush.interval.messages": 1}
    with EmbeddedBroker(settings) as broker:
        broker.create_topic(TOPIC, 2)
        logs = broker.parts.logs
        hosted = logs._hosted[TOPIC, 1]
        assert hosted.log_dir is not None
        busy = Flusher()  # has no thread
        busy.attach(hosted.log)
        with closing(Connection(broker.bootstrap_servers)) as connection:
            connection.send(wire.produce(TOPIC, 1, wire.batch(), acks=-1))
            wait_for("the append", lambda: hosted.log.log_end_offset == 1)
            logs._hosted.note_failure(hosted.log_dir, "reading", OSError(errno.EIO, "broken"))
            response = wire.produced(connection.receive())
        assert response == wire.Produced(Errors.KAFKA_STORAGE_ERROR, -1)
        busy.detach(hosted.log)


def test_a_move_waits_for_the_hanging_fsync_of_its_partition(stall: Stall) -> None:
    """The last step waits for the fsync; meanwhile requests about the folders, and appends, get their responses."""
    partition = stall.in_b[0]
    waiting = stall.hang(partition)
    with closing(Client(stall.broker.bootstrap)) as client:
        assert move(client, partition, stall.a) == 0
        copy = f"{TOPIC}-{partition}.*-future/kbroker-moved-from"
        wait_for("the last step", lambda: list(stall.a.glob(copy)))
        assert described(client)["a"][partition] == [True]
        for other in stall.in_a:
            stall.append(other)
        assert described(client)["b"][partition] == [False]
    stall.release(partition, waiting)
    wait_for("the end of the move", lambda: is_settled(stall.broker))
    assert partition in stall.partitions(stall.a)
    stall.append(partition)
    stall.check()


def test_a_move_to_the_stalled_folder(stall: Stall) -> None:
    """A partition that cannot be copied to its new folder is served in its own, and moves when the disk responds."""
    partition = stall.in_a[0]
    stall.disk.block("sync", part="-future")
    with closing(Client(stall.broker.bootstrap)) as client:
        assert move(client, partition, stall.b) == 0
        wait_for("a copy that hangs", lambda: stall.disk.blocked)
        for _ in range(5):
            stall.append(partition)
        assert described(client)["b"][partition] == [True]
    stall.disk.repair()
    wait_for("the end of the move", lambda: is_settled(stall.broker))
    assert partition in stall.partitions(stall.b)
    stall.append(partition)
    stall.broker.kill()
    stall.broker.start()
    stall.check()
