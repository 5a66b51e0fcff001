"""The codec: bodies, bytes, keys and plans of the wrong kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol import codec
from kbroker.protocol._decoder import decode, decode_from, skip_tags
from kbroker.protocol._encoder import KINDS, Plan, encode
from tests.support.bad_input import BUFFERS, JUNK, at_any_pace, attempt

ERRORS = (ProtocolError, OverflowError, BufferError, RuntimeError)
KEYS = st.one_of(st.sampled_from(sorted(codec.apis())), JUNK)
VERSIONS = st.one_of(st.integers(-1, 20), JUNK)
DATA = st.one_of(BUFFERS, JUNK)
FIELD = st.tuples(
    st.one_of(st.text(max_size=2), JUNK), st.one_of(st.sampled_from(sorted(KINDS)), JUNK), st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), st.booleans(), st.one_of(st.integers(-1, 3), JUNK), JUNK,
    st.one_of(st.none(), st.just(Plan("child", False, [])), JUNK),
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> tuple[int, int, dict[str, object]]:
    """A body of the right names and, here and there, the wrong values."""
    schema = codec.api(draw(st.sampled_from(sorted(codec.apis()))))
    version = draw(st.integers(*schema.request_versions))
    from kbroker.protocol.schema import request_plan

    body = request_plan(schema.key, version).default()
    for name in draw(st.lists(st.sampled_from(sorted(body) or ["none"]), max_size=3)):
        body[name] = draw(st.one_of(JUNK, st.lists(st.one_of(JUNK, st.dictionaries(st.text(), JUNK, max_size=2)))))
    return schema.key, version, body


@at_any_pace
@given(st.data())
def test_codec(data: st.DataObject) -> None:
    """Every function takes any objects, and refuses in the documented way."""
    for name in ("request", "response"):
        attempt(lambda name=name: getattr(codec, f"decode_{name}"), data, [KEYS, VERSIONS, DATA, JUNK], ERRORS)
        attempt(lambda name=name: getattr(codec, f"encode_{name}"), data, [KEYS, VERSIONS, JUNK], ERRORS)
    attempt(lambda: codec.decode_request_header, data, [DATA, JUNK], ERRORS)
    attempt(lambda: codec.decode_response_frame, data, [KEYS, VERSIONS, DATA, JUNK], ERRORS)
    attempt(lambda: skip_tags, data, [DATA, JUNK], ERRORS)
    key, version, body = data.draw(bodies())
    encoded = attempt(lambda: codec.encode_request, data, [st.just(key), st.just(version), st.just(body)], ERRORS)
    if encoded is not None:
        codec.decode_request(key, version, encoded)


@at_any_pace
@given(st.data())
def test_plans(data: st.DataObject) -> None:
    """A table that makes no sense is refused, or works with any body."""
    fields = st.one_of(st.lists(st.one_of(FIELD, FIELD, JUNK), max_size=4), JUNK)
    errors = (*ERRORS, KeyError)
    plan = attempt(lambda: Plan, data, [st.one_of(st.text(max_size=3), JUNK), st.booleans(), fields], errors)
    plan = plan or Plan("empty", True, [])
    body = plan.default()
    assert isinstance(body, dict)
    attempt(lambda: encode, data, [st.one_of(st.just(plan), JUNK), st.one_of(st.just(body), st.just({})), JUNK], errors)
    for read in (decode, decode_from):
        attempt(lambda read=read: read, data, [st.one_of(st.just(plan), JUNK), DATA, JUNK], errors)


def test_tagged_fields_come_last() -> None:
    """A field that a version lacks must not stand behind a tagged one: the writer would take one for the other."""
    tagged = ("a", "int8", False, False, True, True, False, 0, 0, None)
    absent = ("b", "int8", False, False, True, False, False, -1, 0, None)
    with pytest.raises(ValueError, match="tagged fields come last"):
        Plan("x", True, [tagged, absent])
    assert encode(Plan("x", True, [absent, tagged]), {}) == b"\0"
