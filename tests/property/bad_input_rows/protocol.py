"""Rows of the protocol: codec, plans and record batches."""

from array import array
from typing import Any

from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol import codec, records
from kbroker.protocol._columns import Array, BinaryColumn
from kbroker.protocol._decoder import decode, decode_from, skip_tags
from kbroker.protocol._encoder import KINDS, Plan, encode
from kbroker.protocol._records import RecordBatch
from kbroker.protocol.records import RecordBatchBuilder
from kbroker.protocol.schema import request_plan
from tests.support.bad_input import BUFFERS, JUNK, OBJECTS, Call, Life, Object, Refusal, Row, Storm, attempt

ERRORS = (ProtocolError, OverflowError, BufferError, RuntimeError)
KEYS = st.one_of(st.sampled_from(sorted(codec.apis())), JUNK)
VERSIONS = st.one_of(st.integers(-1, 20), JUNK)
DATA = st.one_of(BUFFERS, JUNK)
FIELD = st.tuples(
    st.one_of(st.text(max_size=2), JUNK), st.one_of(st.sampled_from(sorted(KINDS)), JUNK), st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), st.booleans(), st.one_of(st.integers(-1, 3), JUNK), JUNK,
    st.one_of(st.none(), st.just(Plan("child", False, [])), JUNK),
)  # fmt: skip
# Lengths and counts, in both forms of the wire format, that exceed the data, among short ones.
LENGTHS = st.lists(
    st.sampled_from([b"\x7f\xff\xff\xff", b"\x04\0\0\0", b"\xff\xff\xff\x7f", b"\0", b"\0\0", b"\0\1a", b"\2"]),
    max_size=12,
).map(b"".join)
MESSAGES = [
    (read, api.key, version)
    for api in codec.apis().values()
    for read, (first, last) in (
        (codec.decode_request, api.request_versions),
        (codec.decode_response, api.response_versions),
    )
    for version in range(first, last + 1)
]
FIELDS = st.one_of(st.lists(st.one_of(FIELD, FIELD, JUNK), max_size=4), JUNK)
PLAN_NAME = st.one_of(st.text(max_size=3), JUNK)


def decode_message(message: tuple[Any, int, int], data: bytes) -> Any:
    read, key, version = message
    return read(key, version, data)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[int, int, dict[str, object]]:
    """Draw a request body with the right names and some wrong values."""
    schema = codec.api(draw(st.sampled_from(sorted(codec.apis()))))
    version = draw(st.integers(*schema.request_versions))
    body = request_plan(schema.key, version).default()
    for name in draw(st.lists(st.sampled_from(sorted(body) or ["none"]), max_size=3)):
        body[name] = draw(st.one_of(JUNK, st.lists(st.one_of(JUNK, st.dictionaries(st.text(), JUNK, max_size=2)))))
    return schema.key, version, body


def there_and_back(message: tuple[int, int, dict[str, object]], *more: object) -> Any:
    """Return the decoded form of an encoded request body."""
    encoded = codec.encode_request(*message, *more)
    try:
        return codec.decode_request(message[0], message[1], encoded)
    except Exception as why:
        raise AssertionError("an encoded body cannot be decoded") from why


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw an accepted plan of any fields, or an empty plan; the default of a plan is a body."""
    try:
        plan = Plan(draw(PLAN_NAME), draw(st.booleans()), draw(FIELDS))
    except (TypeError, ValueError, KeyError, *ERRORS):
        plan = Plan("empty", True, [])
    assert isinstance(plan.default(), dict)
    return plan


def encode_default(plan: Any, own: bool, *more: Any) -> Any:
    return encode(plan, plan.default() if own and isinstance(plan, Plan) else {}, *more)


PLAN_ERRORS = (*ERRORS, KeyError)
PLANS = st.one_of(plans(), plans(), JUNK)

RECORD_ERRORS = (OverflowError, BufferError, ProtocolError, AttributeError)
GOOD = records.build_batch([(b"k", b"v"), (None, b"w" * 40)], base_timestamp_ms=5)
HEADERS = st.one_of(JUNK, st.lists(st.tuples(JUNK, JUNK), max_size=2), st.dictionaries(st.text(), BUFFERS, max_size=2))
BATCHES = st.one_of(
    JUNK, st.just(GOOD), st.builds(lambda i, b: GOOD[:i] + b + GOOD[i:], st.integers(0, 90), st.binary())
)
OFFSETS = st.one_of(st.integers(-5, 200), JUNK)
BATCH_NAMES = [n for n in dir(RecordBatch) if not n.startswith("_") and n != "records"]
BUILDER_NAMES = ("base_offset", "base_timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "leader_epoch")
BUILDER_CALLS = {
    "append": [st.one_of(BUFFERS, JUNK), BUFFERS, JUNK, HEADERS, OFFSETS], "build": [JUNK], "size_bytes": [],
    "__len__": [],
}  # fmt: skip
BATCH_STORM = Storm({**dict.fromkeys(BATCH_NAMES, ()), "records": [JUNK], "__repr__": []}, RECORD_ERRORS)
COLUMN_STORM = Storm(
    {"__getitem__": [st.one_of(st.integers(-5, 5), JUNK)], "__len__": []}, (*RECORD_ERRORS, IndexError)
)
ENDS = st.lists(st.integers(-2, 9), min_size=1, max_size=4).map(lambda ends: memoryview(array("i", ends)))
BINARY_BUFFERS = st.one_of(JUNK, st.tuples(JUNK, st.one_of(st.none(), DATA), st.one_of(ENDS, DATA), DATA))
COLUMN_WORDS = ("min_offset", "cap_bytes", "allow_truncated")
ROWS_OF_RECORDS = st.one_of(
    OBJECTS, st.lists(st.one_of(st.tuples(BUFFERS, BUFFERS), st.tuples(JUNK, JUNK), JUNK), max_size=3)
)


def builder(data: st.DataObject) -> Life:
    """Yield a builder, in which a refused record changes nothing: the batch that it builds can be read."""
    made = RecordBatchBuilder(data.draw(st.integers(0, 4)))
    yield made
    batch = records.batch_at(made.build())
    assert batch is not None
    assert len(batch.records()) == len(made) == batch.record_count


def batches(data: st.DataObject) -> Life:
    """Yield the batch at any offset of any bytes, or None if there is none, then a batch without bytes."""
    yield attempt(data, records.batch_at, [BATCHES, OFFSETS], RECORD_ERRORS)
    yield RecordBatch.__new__(RecordBatch)


def columns(data: st.DataObject) -> Life:
    words = data.draw(st.dictionaries(st.sampled_from(COLUMN_WORDS), JUNK))
    found = attempt(data, records.columns, [BATCHES], RECORD_ERRORS, words)
    yield found.keys if found else None
    yield attempt(data, BinaryColumn, [st.integers(-1, 3), BINARY_BUFFERS], RECORD_ERRORS)
    assert bytes(memoryview(Array.__new__(Array))) == b""


ROWS: list[Row] = [
    Call("decode_request", codec.decode_request, [KEYS, VERSIONS, DATA, JUNK], ERRORS),
    Call("decode_response", codec.decode_response, [KEYS, VERSIONS, DATA, JUNK], ERRORS),
    Call("encode_request", codec.encode_request, [KEYS, VERSIONS, JUNK], ERRORS),
    Call("encode_response", codec.encode_response, [KEYS, VERSIONS, JUNK], ERRORS),
    Call("decode_request_header", codec.decode_request_header, [DATA, JUNK], ERRORS),
    Call("decode_response_frame", codec.decode_response_frame, [KEYS, VERSIONS, DATA, JUNK], ERRORS),
    *[
        Call(f"lengths-{n}", decode_message, [st.sampled_from(MESSAGES[n::8]), LENGTHS], (ProtocolError,))
        for n in range(8)
    ],
    Call("skip_tags", skip_tags, [DATA, JUNK], ERRORS),
    Call("encode_request of a body", lambda message: there_and_back(message), [bodies()], ERRORS),
    Call("Plan()", Plan, [PLAN_NAME, st.booleans(), FIELDS], PLAN_ERRORS),
    Call("encode", encode_default, [PLANS, st.booleans(), JUNK], PLAN_ERRORS),
    Call("decode", decode, [PLANS, DATA, JUNK], PLAN_ERRORS),
    Call("decode_from", decode_from, [PLANS, DATA, JUNK], PLAN_ERRORS),
    Call("RecordBatchBuilder()", RecordBatchBuilder, [JUNK], RECORD_ERRORS),
    Call("RecordBatchBuilder(...)", RecordBatchBuilder, (), RECORD_ERRORS, dict.fromkeys(BUILDER_NAMES, JUNK)),
    Object("RecordBatchBuilder", builder, [Storm(BUILDER_CALLS, RECORD_ERRORS)]),
    Call("batch_at", records.batch_at, [BATCHES, OFFSETS], RECORD_ERRORS),
    Object("RecordBatch", batches, [BATCH_STORM, BATCH_STORM]),
    Call("iter_batches", lambda *given: list(records.iter_batches(*given)), [BATCHES], RECORD_ERRORS),
    Call("iter_records", lambda *given: list(records.iter_records(*given)), [BATCHES], RECORD_ERRORS),
    Call("columns", records.columns, [BATCHES], RECORD_ERRORS, dict.fromkeys(COLUMN_WORDS, JUNK)),
    Object("BinaryColumn", columns, [COLUMN_STORM, COLUMN_STORM]),
    Call("build_batch", records.build_batch, [ROWS_OF_RECORDS], RECORD_ERRORS),
]

# A field that a version lacks must not follow a tagged field: the writer would confuse the two.
TAGGED = ("a", "int8", False, False, True, True, False, 0, 0, None)
ABSENT = ("b", "int8", False, False, True, False, False, -1, 0, None)

REFUSALS: dict[str, list[Refusal]] = {
    "Plan": [Refusal(ValueError, lambda: Plan("x", True, [TAGGED, ABSENT]), "tagged fields come last")],
    "batch_at": [
        Refusal(ValueError, lambda: records.batch_at(GOOD, -1)),
        Refusal(ValueError, lambda: records.batch_at(GOOD, len(GOOD) + 1)),
    ],
}
