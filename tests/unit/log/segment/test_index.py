"""Offset, time and transaction indexes by Kafka's test vectors (TI, OI, AX)."""

from pathlib import Path

import pytest

from tests.native.log_indexes import OffsetIndex, TimeIndex, TransactionIndex


def test_time_lookup_vectors(tmp_path: Path) -> None:
    """TI-1: look-ups below, between and at entries return Kafka's results."""
    index = TimeIndex(tmp_path, 45, 30 * 12)
    assert index.lookup(100) == (-1, 45)
    for i in range(1, 30):
        index.maybe_append(10 * i, 45 + 10 * i)
    assert index.lookup(9) == (-1, 45)
    assert index.lookup(25) == (20, 65)
    assert index.lookup(30) == (30, 75)


def test_time_index_keeps_one_place_for_the_closing_entry(tmp_path: Path) -> None:
    """TI-2: an index for 30 entries is full at 29, and accepts only the closing entry."""
    index = TimeIndex(tmp_path, 0, 30 * 12)
    for i in range(29):
        assert not index.is_full
        index.maybe_append(i, i)
    assert index.is_full
    with pytest.raises(ValueError, match="full"):
        index.maybe_append(100, 100)
    index.maybe_append(100, 100, is_closing=True)
    assert len(index) == 30


def test_time_index_order(tmp_path: Path) -> None:
    """An equal timestamp writes nothing; a smaller one, or a smaller offset, is refused."""
    index = TimeIndex(tmp_path, 0, 1200)
    index.maybe_append(10, 10)
    index.maybe_append(10, 20)
    assert len(index) == 1
    for stamp, offset in ((9, 30), (11, 9)):
        with pytest.raises(ValueError, match="order"):
            index.maybe_append(stamp, offset)


def test_offset_append_out_of_order(tmp_path: Path) -> None:
    """OI-1: offset 50 after 51 is refused."""
    index = OffsetIndex(tmp_path, 45, 240)
    index.append(51, 0)
    with pytest.raises(ValueError, match="order"):
        index.append(50, 1)


def test_offset_lookup_extremes(tmp_path: Path) -> None:
    """OI-2: an empty index returns its base, and the last entry is found."""
    index = OffsetIndex(tmp_path, 45, 30 * 8)
    assert index.lookup(45) == (45, 0)
    for i in range(30):
        index.append(46 + i, i)
    assert index.is_full
    assert index.lookup(45) == (45, 0)
    assert index.lookup(75) == (75, 29)
    assert index.lookup(60) == (60, 14)


def test_the_offset_after_a_position(tmp_path: Path) -> None:
    """The first entry at or after a position bounds a read, also in a file that was not mapped before."""
    index = OffsetIndex(tmp_path, 45, 30 * 8)
    assert index.offset_after(0) == -1
    for i in range(3):
        index.append(50 + i, 100 * i)
    index.seal()
    again = OffsetIndex(tmp_path, 45, 30 * 8)
    assert again.load()
    assert [again.offset_after(position) for position in (0, 1, 100, 101, 200, 201)] == [50, 51, 51, 52, 52, -1]


def test_file_is_kafkas(tmp_path: Path) -> None:
    """Entries are big-endian; the file is preallocated to whole entries while active, and trimmed when sealed."""
    index = OffsetIndex(tmp_path, 45, 101)
    file = tmp_path / "00000000000000000045.index"
    assert not file.exists()  # no file before the first entry
    index.append(50, 7)
    assert file.stat().st_size == 96
    index.seal()
    assert file.read_bytes() == (5).to_bytes(4, "big") + (7).to_bytes(4, "big")
    again = OffsetIndex(tmp_path, 45, 101)
    assert again.load()
    assert again.lookup(60) == (50, 7)


@pytest.mark.parametrize("content", [b"\0" * 7, b"\0\0\0\5\0\0\0\0\0\0\0\0\0\0\0\0", b"\xff" * 8, b"\0" * 800])
def test_damaged_offset_index_is_reported(tmp_path: Path, content: bytes) -> None:
    """A truncated entry, decreasing or negative offsets, and a file above the maximum size fail the sanity check."""
    (tmp_path / "00000000000000000045.index").write_bytes(content)
    assert not OffsetIndex(tmp_path, 45, 101).load()


def test_collect_aborted_vectors(tmp_path: Path) -> None:
    """AX-1: a look-up returns the overlapping entries and whether later segments may have more, after a reload too."""
    index = TransactionIndex(tmp_path, 0)
    rows = [(0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40)]
    for row in rows:
        index.append(*row)
    for each in (index, TransactionIndex(tmp_path, 0)):
        assert each.collect(0, 100) == (rows, False)
        assert each.collect(0, 32) == (rows[:3], True)
        assert each.collect(0, 35)[0] == rows
        assert each.collect(10, 35)[0] == rows
        assert each.collect(11, 35)[0] == rows[1:]
        assert each.collect(20, 41)[0] == rows[2:]
    assert (tmp_path / "00000000000000000000.txnindex").stat().st_size == 4 * 34


def test_aborted_last_offset_must_increase(tmp_path: Path) -> None:
    """AX-2: offset 15 after 15 is refused."""
    index = TransactionIndex(tmp_path, 0)
    index.append(0, 0, 15, 16)
    with pytest.raises(ValueError, match="order"):
        index.append(1, 5, 15, 16)
