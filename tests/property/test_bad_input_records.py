"""Record batches: builders and readers given what is no record and no batch."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol._columns import Array, BinaryColumn
from kbroker.protocol._records import RecordBatch
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.bad_input import BUFFERS, JUNK, OBJECTS, at_any_pace, attempt, refused, storm

ERRORS = (OverflowError, BufferError, ProtocolError, AttributeError)
GOOD = records.build_batch([(b"k", b"v"), (None, b"w" * 40)], base_timestamp_ms=5)
HEADERS = st.one_of(JUNK, st.lists(st.tuples(JUNK, JUNK), max_size=2), st.dictionaries(st.text(), BUFFERS, max_size=2))
BATCHES = st.one_of(
    JUNK, st.just(GOOD), st.builds(lambda i, b: GOOD[:i] + b + GOOD[i:], st.integers(0, 90), st.binary())
)
OFFSETS = st.one_of(st.integers(-5, 200), JUNK)
NAMES = [n for n in dir(RecordBatch) if not n.startswith("_") and n != "records"]


@at_any_pace
@given(st.data())
def test_builder(data: st.DataObject) -> None:
    """A refused record leaves the batch as it was: what is built in the end can be read."""
    attempt(lambda: RecordBatchBuilder, data, [JUNK], ERRORS)
    names = ("base_offset", "base_timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "leader_epoch")
    chosen = data.draw(st.dictionaries(st.sampled_from(names), JUNK, max_size=2))
    attempt(lambda: lambda: RecordBatchBuilder(**chosen), data, [], ERRORS)
    builder = RecordBatchBuilder(data.draw(st.integers(0, 4)))
    calls = {"append": [st.one_of(BUFFERS, JUNK), BUFFERS, JUNK, HEADERS, OFFSETS], "build": [JUNK], "size_bytes": []}
    storm(data, builder, {**calls, "__len__": []}, ERRORS)
    batch = records.batch_at(builder.build())
    assert batch is not None
    assert len(batch.records()) == len(builder) == batch.record_count


@at_any_pace
@given(st.data())
def test_readers(data: st.DataObject) -> None:
    """Any bytes at any place give a batch, nothing, or a documented error."""
    batch = attempt(lambda: records.batch_at, data, [BATCHES, OFFSETS], ERRORS)
    for thing in (batch, RecordBatch.__new__(RecordBatch)):
        if thing is not None:
            storm(data, thing, {**dict.fromkeys(NAMES, ()), "records": [JUNK], "__repr__": []}, ERRORS)
    for read in (records.iter_batches, records.iter_records):
        attempt(lambda read=read: lambda x: list(read(x)), data, [BATCHES], ERRORS)
    keywords = data.draw(st.dictionaries(st.sampled_from(["min_offset", "cap_bytes", "allow_truncated"]), JUNK))
    found = attempt(lambda: lambda x: records.columns(x, **keywords), data, [BATCHES], ERRORS)
    for column in (found.keys if found else None, BinaryColumn.__new__(BinaryColumn)):
        if column is not None:
            storm(
                data,
                column,
                {"__getitem__": [st.one_of(st.integers(-5, 5), JUNK)], "__len__": []},
                (*ERRORS, IndexError),
            )
    assert bytes(memoryview(Array.__new__(Array))) == b""


@at_any_pace
@given(st.data())
def test_whole_batches(data: st.DataObject) -> None:
    """A list of junk is no list of records."""
    rows = st.one_of(OBJECTS, st.lists(st.one_of(st.tuples(BUFFERS, BUFFERS), st.tuples(JUNK, JUNK), JUNK), max_size=3))
    attempt(lambda: records.build_batch, data, [rows], ERRORS)
    assert refused(records.batch_at, GOOD, -1) is ValueError
    assert refused(records.batch_at, GOOD, len(GOOD) + 1) is ValueError
