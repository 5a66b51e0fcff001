"""Appends that a slow disk holds in a file beside the records: reads of the partition, and of others, do not wait."""

import fcntl
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_types import AppendInfo
from kbroker.log.segment._segment import OpenFileCache
from kbroker.testing.waiting import wait_until
from tests.support.fixtures import fixture_of
from tests.support.log_files import batch, open_log, write_transactional

PID = 7
WAIT_S = 20


@contextmanager
def slow(path: Path, pool: ThreadPoolExecutor, append: Callable[..., AppendInfo], *args: object) -> Iterator[None]:
    """Make an append wait, as for a slow disk, in the open of a file that it writes, until the block ends.

    The file has a lease, which the kernel breaks for the open after 45 s, or when it is given back.
    """
    path.touch()
    with path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # sent at the open; ignored unless it has a handler
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        running = pool.submit(append, *args)
        wait_until(lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_UNLCK, what="the append opens the file")
        yield
        assert not running.done()
    assert running.result(WAIT_S).error == 0


pool = fixture_of(ThreadPoolExecutor, 3)


files = fixture_of(OpenFileCache, 1)


def read(log: PartitionLog, isolation: int = 0) -> tuple[int, int]:
    found = log.read(0, isolation=isolation)
    assert found.error == 0
    return len(found.records), len(found.aborted)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_is_created(tmp_path: Path, pool: ThreadPoolExecutor, files: OpenFileCache, suffix: str) -> None:
    """The first entry of an index creates its file, which has the size of a full index."""
    log, other = (open_log(tmp_path / name, config={"index.interval.bytes": 0}, files=files) for name in ("t-0", "t-1"))
    first = batch(b"v")
    assert log.append(first).error == other.append(first).error == 0
    with slow(tmp_path / "t-0" / f"{0:020d}.{suffix}", pool, log.append, batch(b"w")):
        for one in (log, other, log):
            assert pool.submit(read, one).result(WAIT_S)[0] >= len(first)
    assert [facts.offset_entries for facts in log.segments()] == [1]


def test_an_index_of_transactions_that_is_written(
    tmp_path: Path, pool: ThreadPoolExecutor, files: OpenFileCache
) -> None:
    """The marker of an aborted transaction is indexed before it is visible; consumers read on meanwhile."""
    log, other = (open_log(tmp_path / name, files=files) for name in ("t-0", "t-1"))
    write_transactional(log)
    log.append_end_marker(PID, 0, 0, False)
    write_transactional(log, 1)
    assert other.append(batch(b"v")).error == 0
    with slow(tmp_path / "t-0" / f"{0:020d}.txnindex", pool, log.append_end_marker, PID, 0, 0, False):
        for one in (log, other, log):
            for isolation in (0, 1):
                assert pool.submit(read, one, isolation).result(WAIT_S)[1] == (isolation if one is log else 0)
    assert read(log, 1)[1] == 2
