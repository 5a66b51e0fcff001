"""A few records out of a batch: where they begin and end, and what of damage is seen."""

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, RecordBatch, build_batch, iter_batches

HEADERS = [("one", b"1"), ("null", None), ("three", b"")]
ALL = 1 << 20


def batch_of(*records: Record, codec: CompressionType = CompressionType.NONE) -> RecordBatch:
    (batch,) = iter_batches(build_batch(records, compression=codec, base_offset=100))
    return batch


@pytest.mark.parametrize("codec", list(CompressionType))
def test_they_are_what_all_of_them_are(codec: CompressionType) -> None:
    """Nulls, empty strings, headers and gaps between offsets as ``records`` gives them."""
    rows = [Record(b"k", None, 5, HEADERS), Record(None, b"", 6), Record(b"", b"v", 7, offset=107)]
    batch = batch_of(*rows, codec=codec)
    found, unpacked_bytes = batch.records_from(0, 10, ALL, 10)
    expected = [
        (offset, time, key, value, tuple((name.encode(), text) for name, text in headers), len(headers))
        for offset, time, key, value, headers in batch.records()
    ]
    assert found == expected
    assert (unpacked_bytes > 0) == (codec is not CompressionType.NONE)
    assert [row[0] for row in batch.records_from(101, 10, ALL, 10)[0]] == [101, 107]
    assert [row[0] for row in batch.records_from(102, 10, ALL, 10)[0]] == [107]
    assert batch.records_from(108, 10, ALL, 10)[0] == []


def test_limits() -> None:
    """So many rows; bytes up to the record that passes them; the first headers, and how many there are."""
    batch = batch_of(*(Record(b"k", b"v" * 9, 5, HEADERS) for _ in range(5)))
    size = 10 + len(b"onenullthree1")
    for limits, count in (((2, ALL), 2), ((9, ALL), 5), ((5, 0), 1), ((5, size), 2), ((5, size - 1), 1)):
        assert len(batch.records_from(0, *limits, 3)[0]) == count
    (row,), _ = batch.records_from(0, 1, ALL, 2)
    assert row[4:] == (((b"one", b"1"), (b"null", None)), 3)
    (row,), _ = batch.records_from(0, 1, ALL, 0)
    assert row[4:] == ((), 3)
    for rows, headers in ((0, 1), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="1 row and 0 headers at least"):
            batch.records_from(0, rows, ALL, headers)


def test_damage() -> None:
    """A wrong checksum, and more bytes than allowed; damaged records are in ``test_records.py``."""
    data = bytearray(build_batch([Record(b"k", b"v", 5)]))
    data[-1] ^= 1
    (batch,) = iter_batches(data)
    with pytest.raises(ProtocolError, match="checksum"):
        batch.records_from(0, 1, ALL, 1)
    batch = batch_of(Record(None, bytes(10_000), 5), codec=CompressionType.ZSTD)
    with pytest.raises(ProtocolError, match="more than 9999 bytes uncompressed"):
        batch.records_from(0, 1, ALL, 1, 9_999)
