"""Flusher: every awaited offset is flushed, with fewer syncs than waits."""

import errno
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import SystemClock
from kbroker.log._flusher import FlusherPool
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import RecordBatchBuilder


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


@pytest.mark.parametrize("threads", [1, 3])
def test_many_producers_share_syncs(logs: list[PartitionLog], threads: int) -> None:
    """All appends to several partitions are flushed when the pool closes, and one sync serves many appends."""
    pool = FlusherPool(threads)
    for log in logs:
        pool.attach(log)
        pool.attach(log)
    pool.start()
    data = batch()

    def produce() -> None:
        for i in range(300):
            assert logs[i % 3].append(data).error == 0

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert pool.close()
    assert [log.flushed_offset for log in logs] == [400, 400, 400]
    assert [log.high_watermark for log in logs] == [400, 400, 400]
    assert 3 <= pool.flushes <= 1200
    assert pool.failures == 0
    for log in logs:
        pool.detach(log)
        pool.detach(log)


def test_waits_that_came_before_the_start_cost_one_sync_each_partition(logs: list[PartitionLog]) -> None:
    """A hundred waiting appends of a partition are flushed by one sync."""
    pool = FlusherPool()
    pool.attach(logs[0])
    for _ in range(100):
        logs[0].append(batch())
    assert pool.mark(logs[1])
    pool.start()
    assert pool.close()
    assert pool.flushes == 2
    assert logs[0].flushed_offset == 100


def test_failed_sync_is_counted_and_not_tried_again(logs: list[PartitionLog]) -> None:
    """A failed sync ends the appends to its partition; the other partitions are flushed."""
    pool = FlusherPool()
    for log in logs:
        pool.attach(log)
    logs[0]._inject_fault(sync_errno=errno.EIO)
    for log in logs:
        log.append(batch())
    pool.start()
    assert pool.close()
    assert pool.failures == 1
    assert [log.flushed_offset for log in logs] == [0, 1, 1]
    assert logs[0].append(batch()).error == 56
    assert logs[0].read(0).error == 0


def test_partition_without_references_is_still_flushed(tmp_path: Path, logs: list[PartitionLog]) -> None:
    """The queue keeps a reference to the partition, and dropping the pool releases it."""
    pool = FlusherPool()
    log = PartitionLog(tmp_path / "x-0", "x", 0, uuid.UUID(int=1), {}, SystemClock(), clean=True)
    log.append(batch())
    assert pool.mark(log)
    del log
    del pool
    closed = FlusherPool()
    assert closed.close()
    assert not closed.mark(logs[0])


def test_wrong_arguments_are_refused(logs: list[PartitionLog]) -> None:
    """A wrong thread count and a wrong log raise an error; a refused log rejects appends."""
    with pytest.raises(ValueError, match="threads"):
        FlusherPool(0)
    with pytest.raises(TypeError, match="threads"):
        FlusherPool("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        FlusherPool().attach(None)  # type: ignore[arg-type]
    pool = FlusherPool()
    pool.refuse_appends(logs[2])
    assert logs[2].append(batch()).error == 56
