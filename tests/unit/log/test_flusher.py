"""Flusher: every awaited offset is flushed, with fewer syncs than waits."""

import errno
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import SystemClock
from kbroker.log._flusher import Flusher
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.errors import raising


def batch() -> bytes:
    builder = RecordBatchBuilder()
    builder.append(None, b"value", 1)
    return builder.build()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[PartitionLog]]:
    config = {"flush.messages": 1, "message.timestamp.after.max.ms": 2**62}
    logs = [
        PartitionLog(tmp_path / f"t-{i}", "t", i, uuid.UUID(int=1), config, SystemClock(), clean=True) for i in range(3)
    ]
    yield logs
    for log in logs:
        log.close(clean=False)


def test_many_producers_share_syncs(logs: list[PartitionLog]) -> None:
    """All appends to several partitions are flushed when the flusher closes, and one sync serves many appends."""
    flusher = Flusher()
    for log in logs:
        flusher.attach(log)
        flusher.attach(log)
    flusher.start("flusher")
    data = batch()

    def produce() -> None:
        for i in range(300):
            assert logs[i % 3].append(data).error == 0

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert flusher.close()
    assert [log.flushed_offset for log in logs] == [400, 400, 400]
    assert [log.high_watermark for log in logs] == [400, 400, 400]
    assert 3 <= flusher.flushes <= 1200
    assert flusher.failures == 0
    for log in logs:
        flusher.detach(log)
        flusher.detach(log)


def test_waits_that_came_before_the_start_cost_one_sync_each_partition(logs: list[PartitionLog]) -> None:
    """A hundred waiting appends of a partition are flushed by one sync."""
    flusher = Flusher()
    flusher.attach(logs[0])
    for _ in range(100):
        logs[0].append(batch())
    assert flusher.mark(logs[1])
    flusher.start("flusher")
    assert flusher.close()
    assert flusher.flushes == 2
    assert logs[0].flushed_offset == 100


def test_failed_sync_is_counted_and_not_tried_again(logs: list[PartitionLog]) -> None:
    """A failed sync ends the appends to its partition; the other partitions are flushed."""
    flusher = Flusher()
    for log in logs:
        flusher.attach(log)
    logs[0]._inject_fault(sync_errno=errno.EIO)
    for log in logs:
        log.append(batch())
    flusher.start("flusher")
    assert flusher.close()
    assert flusher.failures == 1
    assert [log.flushed_offset for log in logs] == [0, 1, 1]
    assert logs[0].append(batch()).error == 56
    assert logs[0].read(0).error == 0


def test_partition_without_references_is_still_flushed(tmp_path: Path, logs: list[PartitionLog]) -> None:
    """The queue keeps a reference to the partition, and dropping the flusher releases it."""
    flusher = Flusher()
    log = PartitionLog(tmp_path / "x-0", "x", 0, uuid.UUID(int=1), {}, SystemClock(), clean=True)
    log.append(batch())
    assert flusher.mark(log)
    del log
    del flusher
    closed = Flusher()
    assert closed.close()
    assert not closed.mark(logs[0])


def test_a_moved_partition_is_left_to_its_new_flusher(logs: list[PartitionLog]) -> None:
    """The new flusher flushes records that wait at the former one, and later ones; the former flushes none of them."""
    former, flusher = Flusher(), Flusher()
    former.attach(logs[0])
    logs[0].append(batch())
    flusher.attach(logs[0])
    assert flusher.mark(logs[0])
    former.detach(logs[0])
    logs[0].append(batch())
    former.start("former")
    assert former.close()
    assert (former.flushes, logs[0].flushed_offset) == (0, 0)
    flusher.start("flusher")
    assert flusher.close()
    assert (flusher.flushes, logs[0].flushed_offset) == (1, 2)


def test_a_partition_that_returns_is_flushed_again(logs: list[PartitionLog]) -> None:
    """A partition that gets its former flusher back is flushed by it."""
    former, flusher = Flusher(), Flusher()
    former.attach(logs[0])
    for new, old in ((flusher, former), (former, flusher)):
        new.attach(logs[0])
        assert new.mark(logs[0])
        old.detach(logs[0])
    logs[0].append(batch())
    for one in (former, flusher):
        one.start("flusher")
        assert one.close()
    assert (former.flushes, flusher.flushes, logs[0].flushed_offset) == (1, 0, 1)


def test_wrong_arguments_are_refused(logs: list[PartitionLog]) -> None:
    """A wrong log raises an error; a refused log rejects appends."""
    with pytest.raises(TypeError):
        Flusher().attach(None)  # type: ignore[arg-type]
    flusher = Flusher()
    flusher.refuse_appends(logs[2])
    assert logs[2].append(batch()).error == 56


def test_a_flusher_whose_thread_cannot_start_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the start of a broker fails, but its log folders are closed."""
    flusher = Flusher()
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        flusher.start("flusher")
    assert flusher.close()
