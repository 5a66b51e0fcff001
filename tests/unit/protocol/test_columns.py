"""Record batches as Arrow buffers: layout, ranges, limits, codecs and damage."""

import struct
from typing import Any

import pytest

from kbroker._core.codec.crc32c import crc32c
from kbroker.common.errors import Errors, ProtocolError
from kbroker.protocol import _columns as native
from kbroker.protocol._columns import ArrowColumns, whole_batches
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, build_batch
from tests.support.control_batches import build_control_batch

ALL = native.OFFSET | native.TIMESTAMP | native.TIMESTAMP_TYPE | native.KEY | native.VALUE | native.HEADERS
END = 1 << 62
RECORDS = [
    Record(b"k0", b"value 0", 1000, [("h", b"x"), ("", None)]),
    Record(None, b"", 1001, []),
    Record(b"", None, -1, [("é", b"")]),
]


def ints(view: memoryview | None, kind: str) -> list[int]:
    assert view is not None
    return list(struct.unpack(f"<{view.nbytes // struct.calcsize(kind)}{kind}", view))


def strings(rows: int, buffers: Any) -> list[bytes | None]:
    """Return a binary column as a list after a check of its null count against its bitmap."""
    nulls, bitmap, ends, data = buffers
    at = ints(ends, "i")
    assert len(at) == rows + 1
    valid = [bitmap is None or bool(bitmap[i >> 3] >> (i & 7) & 1) for i in range(rows)]
    assert nulls == valid.count(False)
    return [bytes(data[at[i] : at[i + 1]]) if valid[i] else None for i in range(rows)]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_columns_hold_what_the_batch_held(codec: CompressionType) -> None:
    """Every column, including nulls and headers, has the values of the batch for every codec."""
    columns = ArrowColumns(ALL)
    batch = build_batch(RECORDS, compression=codec, base_offset=40)
    assert columns.append(batch, 0, 0, END) == len(batch)
    assert (columns.row_count, columns.next_offset) == (3, 43)
    rows, offsets, timestamps, types, keys, values, headers = columns.take()
    assert rows == 3
    assert ints(offsets, "q") == [40, 41, 42]
    assert ints(timestamps, "q") == [1_000_000, 1_001_000, -1000]
    assert ints(types, "i") == [0, 0, 0]
    assert keys is not None
    assert strings(3, keys) == [b"k0", None, b""]
    assert values is not None
    assert strings(3, values) == [b"value 0", b"", None]
    assert headers is not None
    nulls, bitmap, ends, count, header_keys, header_values = headers
    assert (nulls, bitmap is not None and bitmap[0] & 7, ints(ends, "i"), count) == (1, 0b101, [0, 2, 2, 3], 3)
    assert strings(3, header_keys) == [b"h", b"", "é".encode()]
    assert strings(3, header_values) == [b"x", None, b""]


def test_taking_begins_anew() -> None:
    """Rows after a take start at index 0, bitmaps included."""
    columns = ArrowColumns(native.KEY)
    for record in (RECORDS[1], RECORDS[0]):
        columns.append(build_batch([record]), 0, 0, END)
        keys = columns.take()[4]
        assert keys is not None
        assert strings(1, keys) == [record.key]
    assert columns.row_count == columns.size_bytes == 0


def test_a_batch_may_be_larger_than_the_last() -> None:
    """Memory is allocated by the size of the last batch, and extended if the next batch is larger."""
    columns = ArrowColumns(ALL)
    for count in (3, 1000, 1, 40, 5000):
        records = [(b"key %d" % i, b"value %d" % i) for i in range(count)]
        columns.append(build_batch(records), 0, 0, END)
        rows, offsets, _, _, keys, values, _ = columns.take()
        assert rows == count
        assert ints(offsets, "q") == list(range(count))
        assert strings(count, keys) == [key for key, _ in records]
        assert strings(count, values) == [value for _, value in records]


def test_many_rows_cross_the_bytes_of_the_bitmap() -> None:
    """The validity bit of each row is in the right byte of the bitmap."""
    columns = ArrowColumns(native.VALUE)
    columns.append(build_batch([(None, None if i == 20 else b"%d" % i) for i in range(100)]), 0, 0, END)
    values = columns.take()[5]
    assert values is not None
    assert strings(100, values) == [None if i == 20 else b"%d" % i for i in range(100)]


def test_unwanted_columns_cost_nothing() -> None:
    """Only requested columns are filled."""
    columns = ArrowColumns(native.OFFSET)
    columns.append(build_batch(RECORDS), 0, 0, END)
    assert columns.size_bytes == 0
    rows, offsets, *others = columns.take()
    assert (rows, ints(offsets, "q"), others) == (3, [0, 1, 2], [None] * 5)


def test_a_range_cuts_inside_batches() -> None:
    """Records before and after the range are omitted, and batches after the range are not read."""
    data = b"".join(build_batch(RECORDS, base_offset=at) for at in (0, 3, 6))
    columns = ArrowColumns(native.OFFSET)
    position = columns.append(data, 0, 2, 5)
    assert ints(columns.take()[1], "q") == [2, 3, 4]
    assert position == len(data) * 2 // 3


def test_it_stops_behind_the_batch_that_reaches_a_limit() -> None:
    """Batches are read whole, and the next call continues where the last one stopped."""
    one = build_batch(RECORDS)
    columns = ArrowColumns(native.VALUE)
    position, seen = 0, []
    while True:
        position = columns.append(one * 5, position, 0, END, limit_rows=4)
        seen.append((columns.row_count, columns.is_full))
        if not columns.is_full:
            break
        columns.take()
    assert seen == [(6, True), (6, True), (3, False)]
    columns.take()
    columns.append(one * 5, 0, 0, END, limit_bytes=8)
    assert (columns.is_full, columns.size_bytes) == (True, 14)


def test_control_batches_are_passed_over() -> None:
    """A marker advances the next offset and is not a row."""
    columns = ArrowColumns(ALL)
    columns.append(
        build_control_batch(
            commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=7
        ),
        0,
        0,
        END,
    )
    assert (columns.row_count, columns.next_offset) == (0, 8)


def test_log_append_time_is_reported() -> None:
    """With LogAppendTime, each record has timestampType 1 and the batch's timestamp."""
    columns = ArrowColumns(native.TIMESTAMP | native.TIMESTAMP_TYPE)
    columns.append(build_batch(RECORDS[:2], log_append_time=True), 0, 0, END)
    _, _, timestamps, types, *_ = columns.take()
    assert (ints(timestamps, "q"), ints(types, "i")) == ([1_001_000] * 2, [1, 1])


def test_a_time_beyond_microseconds_is_held_at_the_end() -> None:
    """A timestamp above the range of microseconds becomes the maximum instead of overflowing."""
    columns = ArrowColumns(native.TIMESTAMP)
    columns.append(build_batch([Record(None, b"", 1 << 60)]), 0, 0, END)
    assert ints(columns.take()[2], "q") == [2**63 - 1]


def test_a_cut_last_batch_is_left() -> None:
    """A batch that a Fetch response truncates is neither read nor an error, and its base offset is returned."""
    one = build_batch(RECORDS)
    columns = ArrowColumns(ALL)
    assert columns.append(one + one[:-1], 0, 0, END) == len(one)
    assert columns.row_count == 3
    assert whole_batches(one + one[:-1]) == (len(one), 3)
    assert whole_batches(one[:-1]) == (0, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_named(magic: int) -> None:
    """A message of format 0 or 1, which is shorter than a batch header, is an error that names the format."""
    message = struct.pack(">qiIbb", 5, 14, 0, magic, 0) + struct.pack(">ii", -1, -1)
    with pytest.raises(ProtocolError) as caught:
        ArrowColumns(ALL).append(message, 0, 0, END)
    assert caught.value.error is Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert f"message format {magic} (batch at offset 5)" in str(caught.value)


def damaged(at: int, value: int) -> bytes:
    data = bytearray(build_batch(RECORDS, base_offset=9))
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (damaged(-1, 0x55), "wrong checksum (batch at offset 9)"),
        (damaged(16, 3), "message format 3 is unknown (batch at offset 9)"),
        (damaged(11, 1), "batch length below a header's"),
    ],
)
def test_damage_is_an_error_that_names_the_batch(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        ArrowColumns(ALL).append(data, 0, 0, END)
    assert caught.value.error is Errors.CORRUPT_MESSAGE
    assert message in str(caught.value)


def test_a_claimed_count_takes_no_memory() -> None:
    """A record count above the bytes of a batch is refused before memory is allocated."""
    data = bytearray(build_batch(RECORDS))
    data[57:61] = struct.pack(">i", 2**31 - 1)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    with pytest.raises(ProtocolError, match="damaged record"):
        ArrowColumns(ALL).append(bytes(data), 0, 0, END)


def test_a_bomb_ends_at_its_cap() -> None:
    """A batch whose uncompressed size exceeds the cap is refused."""
    batch = build_batch([(None, bytes(100_000))], compression=CompressionType.GZIP)
    with pytest.raises(ProtocolError, match="more bytes uncompressed than allowed"):
        ArrowColumns(ALL).append(batch, 0, 0, END, cap_bytes=50_000)


def test_a_position_outside_is_refused() -> None:
    for position in (-1, 2):
        with pytest.raises(ValueError, match="outside the 1 bytes"):
            ArrowColumns(ALL).append(b"x", position, 0, END)
