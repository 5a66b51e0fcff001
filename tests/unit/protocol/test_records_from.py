"""Reading of a few records from a batch: limits, partial decompression, and damage."""

import cramjam
import pytest

from kbroker.common.errors import ProtocolError
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, RecordBatch, build_batch, iter_batches
from tests.unit.protocol.test_records import with_payload

HEADERS = [("one", b"1"), ("null", None), ("three", b"")]
ALL = 1 << 20


def batch_of(*records: Record, codec: CompressionType = CompressionType.NONE) -> RecordBatch:
    (batch,) = iter_batches(build_batch(records, compression=codec, base_offset=100))
    return batch


@pytest.mark.parametrize("codec", list(CompressionType))
def test_they_are_what_all_of_them_are(codec: CompressionType) -> None:
    """Nulls, empty strings, headers and offset gaps are the same as in ``records``."""
    rows = [Record(b"k", None, 5, HEADERS), Record(None, b"", 6), Record(b"", b"v", 7, offset=107)]
    batch = batch_of(*rows, codec=codec)
    found, found_bytes, unpacked_bytes, is_cut = batch.records_from(0, 10, ALL, 10)
    expected = [
        (
            *(offset, time, key, value, tuple((name.encode(), text) for name, text in headers), len(headers)),
            *(-1 if data is None else len(data) for data in (key, value)),
        )
        for offset, time, key, value, headers in batch.records()
    ]
    assert found == expected
    assert (found_bytes, is_cut) == (len(batch_of(*rows).raw) - 61, False)
    assert (unpacked_bytes > 0) == (codec is not CompressionType.NONE)
    assert [row[0] for row in batch.records_from(101, 10, ALL, 10)[0]] == [101, 107]
    assert [row[0] for row in batch.records_from(102, 10, ALL, 10)[0]] == [107]
    assert batch.records_from(108, 10, ALL, 10)[0] == []


def test_limits() -> None:
    """Reading stops at the number of rows or with the record that reaches the byte limit; all headers are counted."""
    batch = batch_of(*(Record(b"k", b"v" * 9, 5, HEADERS) for _ in range(5)))
    size = (batch.size_bytes - 61) // 5
    for limits, count in (((2, ALL), 2), ((9, ALL), 5), ((5, 0), 1), ((5, size), 2), ((5, size - 1), 1)):
        assert len(batch.records_from(0, *limits, 3)[0]) == count
    (row,) = batch.records_from(0, 1, ALL, 2)[0]
    assert row[4:6] == (((b"one", b"1"), (b"null", None)), 3)
    (row,) = batch.records_from(0, 1, ALL, 0)[0]
    assert row[4:6] == ((), 3)
    (row,) = batch.records_from(0, 1, ALL, 1, ALL, 4)[0]
    assert row[2:] == (b"k", b"vvvv", ((b"one", b"1"),), 3, 1, 9)
    for rows, headers in ((0, 1), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="1 row and 0 headers at least"):
            batch.records_from(0, rows, ALL, headers)


def test_damage() -> None:
    """A wrong checksum is an error; damaged records are tested in ``test_records.py``."""
    data = bytearray(build_batch([Record(b"k", b"v", 5)]))
    data[-1] ^= 1
    (batch,) = iter_batches(data)
    with pytest.raises(ProtocolError, match="checksum"):
        batch.records_from(0, 1, ALL, 1)


@pytest.mark.parametrize("codec", [one for one in CompressionType if one is not CompressionType.NONE])
def test_a_large_batch_is_cut(codec: CompressionType) -> None:
    """Only as much is decompressed as the records need, and at most the given number of bytes."""
    rows = [Record(None, bytes(200_000), 5) for _ in range(30)]
    batch = batch_of(*rows, codec=codec)
    found, _, unpacked_bytes, is_cut = batch.records_from(0, 1, ALL, 1)
    assert ([row[0] for row in found], is_cut) == ([100], False)
    assert unpacked_bytes <= 1 << 18
    found, _, unpacked_bytes, is_cut = batch.records_from(0, 9, 1 << 30, 1, 500_000)
    assert ([row[0] for row in found], is_cut) == ([100, 101], True)
    assert unpacked_bytes <= 500_000
    assert batch.records_from(120, 1, ALL, 1, 500_000)[0::3] == ([], True)
    assert batch.records_from(129, 9, 1 << 30, 1)[0][0][0] == 129


def test_damage_behind_the_first_step() -> None:
    """A damaged record is an error, not a truncation of the result."""
    packed = bytes(cramjam.zstd.compress(build_batch([Record(None, bytes(100_000), 5)] * 9)[61:-1]))
    (batch,) = iter_batches(with_payload(CompressionType.ZSTD, packed, 9))
    with pytest.raises(ProtocolError, match="damaged record"):
        batch.records_from(0, 9, ALL, 1)


def test_a_snappy_block_is_not_decompressed_in_part() -> None:
    """Raw Snappy, which some clients send, is one block."""
    packed = bytes(cramjam.snappy.compress_raw(build_batch([Record(None, bytes(10_000), 5)])[61:]))
    (batch,) = iter_batches(with_payload(CompressionType.SNAPPY, packed, 1))
    with pytest.raises(ProtocolError, match="more than 9999 bytes uncompressed"):
        batch.records_from(0, 1, ALL, 1, 9_999)


def test_a_large_snappy_block_is_decompressed_whole() -> None:
    """A block larger than the first step is read at the step whose limit it fits."""
    packed = bytes(cramjam.snappy.compress_raw(build_batch([Record(None, bytes(100_000), 5)] * 9)[61:]))
    (batch,) = iter_batches(with_payload(CompressionType.SNAPPY, packed, 9))
    found, _, unpacked_bytes, is_cut = batch.records_from(0, 2, ALL, 1)
    assert ([row[7] for row in found], is_cut) == ([100_000, 100_000], False)
    assert unpacked_bytes > 900_000
