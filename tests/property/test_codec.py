"""The codec compared with two independent codecs and with itself, and on arbitrary bytes."""

import contextlib
import gc
import io
import random
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol import codec, schema
from tests.support.wire_bodies import message_of, random_body

MESSAGES = [
    (api, side, version)
    for api in codec.apis().values()
    for side, (first, last) in (("request", api.request_versions), ("response", api.response_versions))
    for version in range(first, last + 1)
]
ENCODE = {"request": codec.encode_request, "response": codec.encode_response}
DECODE = {"request": codec.decode_request, "response": codec.decode_response}
PLAN = {"request": schema.request_plan, "response": schema.response_plan}
BODIES_PER_VERSION = 4


def bodies(key: int, side: str, version: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{key} {side} {version}")
    message = message_of(codec.api(key), side)
    return [random_body(rng, message, version) for _ in range(BODIES_PER_VERSION)]


def with_defaults(part: Any, full: Any) -> bool:
    """Return whether `full` is `part` plus fields that `part` left out."""
    if isinstance(part, dict) and isinstance(full, dict):
        return part.keys() <= full.keys() and all(with_defaults(part[k], full[k]) for k in part)
    if isinstance(part, list) and isinstance(full, list):
        return len(part) == len(full) and all(map(with_defaults, part, full))
    return bool(part == full)


@pytest.mark.parametrize("key", codec.apis())
def test_every_version_comes_back_as_it_went(key: int) -> None:
    """A decoded message has the encoded fields and encodes to the same bytes; every proper prefix is refused."""
    for api, side, version in MESSAGES:
        if api.key != key:
            continue
        for body in bodies(key, side, version):
            data = ENCODE[side](key, version, body)
            decoded = DECODE[side](key, version, data)
            assert with_defaults(body, decoded), (side, version)
            assert ENCODE[side](key, version, decoded) == data, (side, version)
            plan = PLAN[side](key, version)
            assert len(data) >= plan.min_bytes
            for end in range(len(data)) if len(data) < 200 else random.Random(len(data)).sample(range(len(data)), 50):
                with pytest.raises(ProtocolError):  # a proper prefix is incomplete
                    DECODE[side](key, version, data[:end])


@pytest.mark.parametrize("key", codec.apis())
def test_bytes_equal_those_of_kio(key: int) -> None:
    """kio decodes the codec's bytes and encodes the result to the same bytes."""
    index = pytest.importorskip("kio.index")
    from kio.serial import entity_reader, entity_writer

    compared = 0
    for api, side, version in MESSAGES:
        if api.key != key:
            continue
        try:
            load = index.load_request_schema if side == "request" else index.load_response_schema
            entity = load(key, version)
        except (index.KioIndexError, ModuleNotFoundError):
            continue
        for body in bodies(key, side, version):
            data = ENCODE[side](key, version, body)
            value, size = entity_reader(entity)(data, 0)
            assert size == len(data), (side, version)
            out = io.BytesIO()
            entity_writer(entity)(out, value)
            assert out.getvalue() == data, (side, version)
            compared += 1
    assert compared or key in (93, 94), "kio has no version of this api"


KAFKA_PYTHON = {
    1: ("kafka.protocol.consumer.fetch", "Fetch"),
    2: ("kafka.protocol.consumer.offsets", "ListOffsets"),
    8: ("kafka.protocol.consumer.group", "OffsetCommit"),
    10: ("kafka.protocol.metadata.find_coordinator", "FindCoordinator"),
    11: ("kafka.protocol.consumer.group", "JoinGroup"),
    14: ("kafka.protocol.consumer.group", "SyncGroup"),
    0: ("kafka.protocol.producer.produce", "Produce"),
}


@pytest.mark.parametrize("key", KAFKA_PYTHON)
def test_bytes_equal_those_of_kafka_python(key: int) -> None:
    """kafka-python decodes the codec's bytes and encodes the result to the same bytes."""
    module_name, name = KAFKA_PYTHON[key]
    module = pytest.importorskip(module_name)
    compared = 0
    for api, side, version in MESSAGES:
        message = getattr(module, f"{name}{side.title()}")
        if api.key != key or version > message.max_version:
            continue
        for body in bodies(key, side, version):
            data = ENCODE[side](key, version, body)
            read = message.decode(data, version=version)
            read._header = None
            assert bytes(read.encode(version=version)) == data, (side, version)
            compared += 1
    assert compared > 20


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(MESSAGES), st.binary(max_size=400))
def test_any_bytes_decode_or_are_refused(message: tuple[codec.ApiSchema, str, int], data: bytes) -> None:
    """Arbitrary bytes raise ProtocolError, or decode to a body that encodes and decodes to itself."""
    api, side, version = message
    try:
        body = DECODE[side](api.key, version, data)
    except ProtocolError:
        return
    again = ENCODE[side](api.key, version, body)
    assert DECODE[side](api.key, version, again) == body or "nan" in repr(body)


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(MESSAGES), st.randoms(use_true_random=False))
def test_damaged_messages_decode_or_are_refused(message: tuple[codec.ApiSchema, str, int], rng: random.Random) -> None:
    """A valid message with a few wrong bytes, especially in lengths, decodes or raises ProtocolError."""
    api, side, version = message
    data = bytearray(ENCODE[side](api.key, version, bodies(api.key, side, version)[0]))
    for _ in range(rng.randint(1, 3)):
        if data:
            at = rng.randrange(len(data))
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
            if rng.random() < 0.3:
                data[at : at + 1] = rng.choice([b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\xff" * 10])
    with contextlib.suppress(ProtocolError):
        DECODE[side](api.key, version, bytes(data))


def test_no_reference_is_lost_or_kept() -> None:
    """Decoding, encoding and refusing messages changes neither the number of memory blocks nor reference counts.

    Other threads of the process may change these numbers too: the smallest change of three is compared.
    """
    key, version = 3, 12
    body = bodies(key, "response", version)[1]
    data = codec.encode_response(key, version, body)

    def work(rounds: int) -> None:
        for i in range(rounds):
            codec.encode_response(key, version, codec.decode_response(key, version, data))
            for bad in (data[: i % len(data)], b"\xff" * 20):
                with contextlib.suppress(ProtocolError):
                    codec.decode_response(key, version, bad)
            for wrong in ({"Nope": 1}, {"Brokers": [{"Port": "x"}]}, {"Topics": [{"Name": 5}]}, {"ClusterId": 1.5}):
                with contextlib.suppress(ProtocolError):
                    codec.encode_response(key, version, wrong)

    watched = [None, True, False, 0, -1, "", b"", *PLAN["response"](key, version).default(), zero_uuid()]
    work(200)
    changes = [[1 << 30]] * (len(watched) + 1)
    for _ in range(3):
        before = counts(watched)
        work(1000)
        changes = [
            [*earlier, abs(now - then)] for earlier, now, then in zip(changes, counts(watched), before, strict=True)
        ]
    assert [smallest for smallest in map(min, changes) if smallest >= 200] == []


def counts(watched: list[Any]) -> list[int]:
    """Return the number of memory blocks in use and of references to each object."""
    gc.collect()
    return [sys.getallocatedblocks(), *map(sys.getrefcount, watched)]


def zero_uuid() -> Any:
    """Return the object that represents every absent UUID."""
    data = codec.encode_response(3, 10, {"Topics": [{"Name": "t"}]})
    return codec.decode_response(3, 10, data)["Topics"][0]["TopicId"]
