"""Record batches compared with a model: a list of records."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, batch_at, build_batch, columns, iter_batches, iter_records

blobs = st.none() | st.binary(max_size=200)
times = st.integers(-1, 2**43) | st.integers(-(2**63), 2**63 - 1)
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=3)
record_lists = st.lists(st.builds(Record, blobs, blobs, times, headers), min_size=1, max_size=30)
codecs = st.sampled_from(CompressionType)


@settings(deadline=None)
@given(st.lists(st.tuples(record_lists, codecs), max_size=4), st.integers(0, 2**62))
def test_batches_hold_what_was_put_in(batches: list[tuple[list[Record], CompressionType]], base_offset: int) -> None:
    """The rows and the columns of batches equal the records that were written, with every codec."""
    data = b""
    model: list[Record] = []
    for records, codec in batches:
        data += build_batch(records, compression=codec, base_offset=base_offset + len(model))
        model += [r._replace(offset=base_offset + len(model) + i) for i, r in enumerate(records)]
    assert list(iter_records(data)) == model
    got = columns(data)
    assert got.offsets.tolist() == [r.offset for r in model]
    assert got.timestamps_ms.tolist() == [r.timestamp_ms for r in model]
    assert list(got.keys) == [r.key for r in model]  # type: ignore[call-overload]
    assert list(got.values) == [r.value for r in model]  # type: ignore[call-overload]
    ends = got.header_offsets.tolist()
    pairs = list(zip(got.header_keys, got.header_values, strict=True))  # type: ignore[call-overload]
    assert [pairs[a:b] for a, b in itertools.pairwise(ends)] == [[(k.encode(), v) for k, v in r.headers] for r in model]


@settings(deadline=None)
@given(record_lists, codecs, st.data())
def test_no_truncation_and_no_damage_passes(records: list[Record], codec: CompressionType, draw: st.DataObject) -> None:
    """A truncated or damaged batch is refused."""
    data = bytearray(build_batch(records, compression=codec))
    with pytest.raises(ProtocolError):
        columns(bytes(data[: draw.draw(st.integers(1, len(data) - 1))]))
    at = draw.draw(st.integers(16, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        columns(bytes(data))
    with pytest.raises(ProtocolError):
        list(iter_records(bytes(data)))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_batches_or_refused(data: bytes) -> None:
    """Arbitrary bytes are read to their end or raise ProtocolError."""
    for read in (columns, lambda d: list(iter_batches(d)), lambda d: columns(d, allow_truncated=True)):
        with contextlib.suppress(ProtocolError):
            read(data)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(0, 5))
def test_any_records_section_is_read_or_refused(section: bytes, count: int) -> None:
    """A batch with a valid checksum and arbitrary record bytes is read or refused, equally as rows and as columns."""
    from tests.unit.protocol.test_records import with_payload

    data = with_payload(0, section, count)
    assert batch_at(data).is_crc_valid
    try:
        rows = list(iter_records(data))
    except ProtocolError:
        rows = None
    try:
        assert columns(data).offsets.tolist() == ([] if rows is None else [r.offset for r in rows])
        assert rows is not None
    except ProtocolError:
        assert rows is None
