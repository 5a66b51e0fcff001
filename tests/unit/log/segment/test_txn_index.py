"""Transaction index with failed reads and writes of its file: no entry is lost."""

import errno
import os
from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from tests.native.log_indexes import TransactionIndex
from tests.support.limits import no_descriptors, no_file_growth
from tests.support.log_files import batch, open_log, write_transactional

PID = 7


def abort(log: PartitionLog) -> int:
    """Append an aborted transaction of one record, and return its offset."""
    offset = write_transactional(log, producer_id=PID)
    assert log.append_end_marker(PID, 0, 0, False).error == 0
    return offset


def test_entry_that_cannot_be_written(tmp_path: Path) -> None:
    """The entry is neither in the file nor in memory, and the next entry has its place."""
    index = TransactionIndex(tmp_path, 0)
    with no_file_growth(), pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
        index.append(1, 0, 10, 11)
    assert index.collect(0, 100)[0] == []
    index.append(2, 0, 10, 11)
    assert index.collect(0, 100)[0] == TransactionIndex(tmp_path, 0).collect(0, 100)[0] == [(2, 0, 10, 11)]


def test_collect_of_many(tmp_path: Path) -> None:
    """The entries of a read are found anywhere in the index."""
    index = TransactionIndex(tmp_path, 0)
    rows = [(i, 10 * i, 10 * i + 9, 10 * i + 10) for i in range(1000)]
    for row in rows:
        index.append(*row)
    for first in (0, 1, 499, 500, 998, 999):
        for offset in (10 * first, 10 * first + 9):
            assert index.collect(offset, 10 * first + 25) == (rows[first : first + 3], first < 998)
    assert index.collect(9999, 20000) == (rows[999:], False)
    assert index.collect(10000, 20000) == ([], False)
    assert TransactionIndex(tmp_path, 5).collect(0, 10) == ([], False)


def test_flush_without_a_descriptor_can_be_tried_again(tmp_path: Path) -> None:
    """A flush without a descriptor does not fail the log, and the next flush writes the entries to disk."""
    log = open_log(tmp_path / "t-0")
    abort(log)
    with no_descriptors(), pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        log.flush()
    assert not log.is_failed
    assert log.flush() == 2
    assert log.append(batch(b"b")).error == 0
