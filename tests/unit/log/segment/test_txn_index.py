"""Transaction index with failed reads and writes of its file: no entry is lost."""

import errno
import os
import random
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from kbroker._core.codec.crc32c import crc32c
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


@pytest.mark.parametrize("written_bytes", [0, 10])
def test_entry_that_cannot_be_written(tmp_path: Path, written_bytes: int) -> None:
    """The entry is neither in the file nor in memory, and the next entry has its place."""
    index = TransactionIndex(tmp_path, 0)
    with no_file_growth(written_bytes), pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
        index.append(1, 0, 10, 11)
    assert path_of(tmp_path).read_bytes() == b""
    assert index.collect(0, 100)[0] == []
    index.append(2, 0, 10, 11)
    assert index.collect(0, 100)[0] == TransactionIndex(tmp_path, 0).collect(0, 100)[0] == [(2, 0, 10, 11)]


Row = tuple[int, int, int, int]
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def row_of(number: int) -> Row:
    return 5000 + number % 7, 10 * number, 10 * number + 9, 10 * number + 10


def encoded(rows: Iterable[Row]) -> bytes:
    """Return the file of the rows."""
    return b"".join(struct.pack(">hqqqq", 0, *row) for row in rows)


def path_of(folder: Path) -> Path:
    return folder / f"{0:020d}.txnindex"


def check_rows(index: TransactionIndex, rows: list[Row]) -> None:
    """Compare reads around the ends of blocks, and the sum."""
    count = len(rows)
    for first in {0, 1, 63, 64, 65, count // 2, count - 2, count - 1} & {*range(count)}:
        for offset in (10 * first, 10 * first + 9):
            assert index.collect(offset, 10 * first + 25) == (rows[first : first + 3], first < count - 2)
    assert index.collect(0, HIGHEST) == (rows, False)
    assert index.collect(10 * count, HIGHEST) == ([], False)
    assert index.sum() == (count, crc32c(encoded(rows)))


def rebuild(index: TransactionIndex, rows: list[Row]) -> bool:
    """Rebuild an index; return whether its file differed."""
    index.begin_rebuild()
    for row in rows:
        index.append(*row)
    return bool(index.end_rebuild())


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_collect_of_many(tmp_path: Path, count: int) -> None:
    """The entries of a read are found anywhere in the index, even after the next opening, and need little memory."""
    rows = [*map(row_of, range(count))]
    index = TransactionIndex(tmp_path, 0)
    for row in rows:
        index.append(*row)
    check_rows(index, rows)
    assert path_of(tmp_path).read_bytes() == encoded(rows)
    assert index.entry_bytes <= 4 * count + 6 * (count // 64 + 1)
    again = TransactionIndex(tmp_path, 0)
    again.expect(*index.sum())
    assert again.sum() == index.sum()
    check_rows(again, rows)
    with pytest.raises(ValueError, match="out of order"):
        again.append(*rows[-1])
    again.append(*row_of(count))
    check_rows(again, [*rows, row_of(count)])
    assert TransactionIndex(tmp_path, 5).collect(0, 10) == ([], False)


def test_any_numbers(tmp_path: Path) -> None:
    """Each number of 64 bits is kept, whatever its differences are."""
    numbers = [LOWEST, LOWEST + 1, -1, 0, 1, 127, 1 << 32, HIGHEST - 1, HIGHEST]
    for seed in range(50):
        draw = random.Random(seed)
        ends = sorted({draw.choice([draw.choice(numbers), draw.randrange(HIGHEST)]) for _ in range(300)})
        rows = [(draw.choice(numbers), draw.choice(numbers), end, draw.choice(numbers)) for end in ends]
        index = TransactionIndex(tmp_path / str(seed), LOWEST)
        (tmp_path / str(seed)).mkdir()
        for row in rows:
            index.append(*row)
        for low in (LOWEST, *draw.sample(ends, 5), HIGHEST):
            high = draw.choice(numbers)
            reached = [row for row in rows if row[2] >= low]
            complete = next((place for place, row in enumerate(reached) if row[3] >= high), None)
            reached = reached if complete is None else reached[: complete + 1]
            assert index.collect(low, high) == ([row for row in reached if row[1] < high], complete is not None)


@pytest.mark.parametrize("changed", [None, 0, 63, 64, 100, 899])
@pytest.mark.parametrize("rebuilt", [0, 64, 100, 900, 1000])
def test_rebuild_of_many(tmp_path: Path, changed: int | None, rebuilt: int) -> None:
    """A rebuild writes from the first entry that differs, and removes surplus entries."""
    file = path_of(tmp_path)
    file.write_bytes(encoded(map(row_of, range(900))))
    if changed is not None:
        with file.open("r+b") as opened:
            opened.seek(34 * changed + 2)
            opened.write(b"\1")
    rows = [*map(row_of, range(rebuilt))]
    index = TransactionIndex(tmp_path, 0)
    assert rebuild(index, rows) == (rebuilt != 900 or changed is not None)
    assert (file.read_bytes() if rows else b"") == encoded(rows)
    assert file.exists() == bool(rows)
    check_rows(index, rows)
    index.append(*row_of(rebuilt))
    check_rows(index, [*rows, row_of(rebuilt)])
    assert not rebuild(index, [*rows, row_of(rebuilt)])
    assert rebuild(index, rows)
    check_rows(index, rows)


@pytest.mark.parametrize("torn", [1, 33, 34 * 64 + 2])
def test_torn_file_is_rebuilt(tmp_path: Path, torn: int) -> None:
    """A file that ends within an entry is used up to it, differs from the batches, and is completed."""
    rows = [*map(row_of, range(100))]
    path_of(tmp_path).write_bytes(encoded(rows)[:torn])
    whole = torn // 34
    index = TransactionIndex(tmp_path, 0)
    assert index.collect(0, HIGHEST) == (rows[:whole], False)
    assert index.sum() == (whole, crc32c(encoded(rows[:whole])))
    index = TransactionIndex(tmp_path, 0)
    assert rebuild(index, rows)
    check_rows(index, rows)
    assert path_of(tmp_path).read_bytes() == encoded(rows)


def test_file_without_the_required_sum(tmp_path: Path) -> None:
    """A changed file is refused when its entries are first needed; its sum does not need them."""
    rows = [*map(row_of, range(100))]
    path_of(tmp_path).write_bytes(encoded(rows))
    index = TransactionIndex(tmp_path, 0)
    index.expect(99, crc32c(encoded(rows[:99])))
    assert index.sum() == (99, crc32c(encoded(rows[:99])))
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        index.collect(0, HIGHEST)
    index.expect(100, crc32c(encoded(rows)))
    check_rows(index, rows)


def test_flush_without_a_descriptor_can_be_tried_again(tmp_path: Path) -> None:
    """A flush without a descriptor does not fail the log, and the next flush writes the entries to disk."""
    log = open_log(tmp_path / "t-0")
    abort(log)
    with no_descriptors(), pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        log.flush()
    assert not log.is_failed
    assert log.flush() == 2
    assert log.append(batch(b"b")).error == 0
