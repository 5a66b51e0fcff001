"""The codec of the conformance tests and the broker's codec, which share one set of tables, write the same bytes."""

import random

import pytest

from kbroker.protocol import codec as ours
from kbroker.protocol.schema import ApiSchema, apis
from tests.conformance import codec
from tests.support.wire_bodies import message_of, random_body

BODIES = 5


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
def test_both_codecs_agree(api: ApiSchema) -> None:
    """Requests have the same bytes in every version, and the conformance codec reads the broker's responses."""
    rng = random.Random(api.key)
    first, last = api.request_versions
    for version in range(first, last + 1):
        for _ in range(BODIES):
            body = random_body(rng, message_of(api, "request"), version)
            assert codec.encoded(api.name, version, body) == bytes(ours.encode_request(api.key, version, body))
            response = random_body(rng, message_of(api, "response"), version)
            written = bytes(ours.encode_response(api.key, version, response))
            tags = b"\0" if api.is_flexible(version) and api.name != "ApiVersions" else b""
            assert codec.response(api.name, version, b"\0\0\0\7" + tags + written) == (7, response)


def test_what_is_cut_or_too_long_is_unreadable() -> None:
    """A response of any length except the correct length is unreadable."""
    body = {"ErrorCode": 0, "ApiKeys": [{"ApiKey": 1, "MinVersion": 2, "MaxVersion": 3}], "ThrottleTimeMs": 5}
    whole = b"\0\0\0\7" + bytes(ours.encode_response(18, 1, body))
    assert codec.response("ApiVersions", 1, whole) == (7, body)
    for size in range(len(whole)):
        with pytest.raises(codec.Unreadable):
            codec.response("ApiVersions", 1, whole[:size])
    with pytest.raises(codec.Unreadable):
        codec.response("ApiVersions", 1, whole + b"\0")


def test_an_unknown_field_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="Topcis"):
        codec.encoded("Metadata", 4, {"Topcis": []})
