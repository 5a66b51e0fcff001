"""Containers of C structs: hash table, heap, latest index."""

import pytest

from tests.native.containers import NumberHeap, NumberTable, places_before, seeded_hash


def test_table_finds_by_hash_and_number() -> None:
    """Two entries with one hash are distinct, and an entry with another hash in the same bucket is not matched."""
    table = NumberTable()
    for number, h in ((1, 5), (2, 5), (3, 5 + 16), (4, 2**64 - 1)):
        table.add(number, h)
    assert [table.has(n, h) for n, h in ((1, 5), (2, 5), (3, 5), (3, 21), (4, 2**64 - 1), (4, 0))] == [
        True, True, False, True, True, False
    ]  # fmt: skip
    table.remove(1, 5)
    assert (table.has(1, 5), table.has(2, 5), len(table)) == (False, True, 3)
    with pytest.raises(KeyError):
        table.remove(1, 5)


def test_table_grows_when_it_is_full() -> None:
    """16 buckets hold 16 entries, the 17th makes 64 buckets, and no entry is lost."""
    table = NumberTable()
    assert (table.buckets, table.has(0, 0), table.numbers()) == (0, False, [])
    for number in range(17):
        table.add(number, number * 7)
        assert table.buckets == (16 if number < 16 else 64)
    assert sorted(table.numbers()) == list(range(17))
    assert all(table.has(number, number * 7) for number in range(17))


@pytest.mark.parametrize("spread", [0, 1, 16, 2**40])
def test_a_sweep_may_remove_what_it_meets(spread: int) -> None:
    """A sweep that removes the current node visits every other node once, with chains of any length."""
    table = NumberTable()
    for number in range(100):
        table.add(number, number * spread)
    table.remove_even()
    assert sorted(table.numbers()) == list(range(1, 100, 2))
    assert len(table) == 50


def test_heap_gives_the_smallest_first() -> None:
    """Entries with equal keys are in any order, each once, and an empty heap returns None."""
    heap = NumberHeap(200)
    keys = [(i * 37) % 101 - 50 for i in range(200)]
    for number, key in enumerate(keys):
        heap.add(number, key)
    taken = [heap.take_top() for _ in range(200)]
    assert [key for key, _ in filter(None, taken)] == sorted(keys)
    assert sorted(number for _, number in filter(None, taken)) == list(range(200))
    assert (heap.top(), heap.take_top(), len(heap)) == (None, None, 0)


def test_heap_removes_from_its_middle_and_raises() -> None:
    """Removal of an absent entry has no effect, and a raised key sinks."""
    heap = NumberHeap(8)
    for number in range(7):
        heap.add(number, number)
    heap.remove(3)
    heap.remove(3)
    heap.remove(7)
    heap.raise_to(0, 5)
    assert heap.top() == (1, 1)
    keys = [row[0] for row in iter(heap.take_top, None)]
    assert keys == [1, 2, 4, 5, 5, 6]
    heap.add(3, 9)
    assert heap.top() == (9, 3)


def test_latest_index_returns_where_a_key_was() -> None:
    """Each entry gets the index of the latest equal entry before it, or -1."""
    assert places_before([7, 8, 7, 2**64 - 1, 7, 8, 0]) == [-1, -1, 0, -1, 2, 1, -1]
    assert places_before([]) == []
    many = [i % 500 for i in range(1000)]
    assert places_before(many, seed=12345) == [-1] * 500 + list(range(500))


def test_seeds_change_hashes() -> None:
    """Bytes after the eighth and the length change the hash, and so does the seed."""
    assert len({seeded_hash(data, 1) for data in (b"", b"\0", b"\0" * 8, b"\0" * 9, b"12345678", b"123456789")}) == 6
    assert seeded_hash(b"client", 1) != seeded_hash(b"client", 2)


def test_seeded_hash_reads_each_byte() -> None:
    """Keys of one size that differ in one byte have different hashes, whatever the size and the place of the byte."""
    for size in range(1, 20):
        keys = [bytes(size), *(bytes(at) + b"\x01" + bytes(size - at - 1) for at in range(size))]
        keys += [bytes(at) + b"\x80" + bytes(size - at - 1) for at in range(size)]
        assert len({seeded_hash(key, 7) for key in keys}) == 2 * size + 1
