"""Numbers as bytes compared with a simple model: `int.from_bytes`, and digits of base 128."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbroker.common.errors import ProtocolError
from kbroker.protocol import _decoder
from tests.native import codec_bytes

ROOM = {"uvarint": 5, "varint": 5, "varlong": 10}
BITS = {"uvarint": 32, "varint": 32, "varlong": 64}
HOSTILE = st.binary(max_size=12) | st.lists(st.integers(0x80, 0xFF) | st.integers(0, 0x7F), max_size=12).map(bytes)


def wrapped(value: int, bits: int) -> int:
    """Return the signed number of the lowest bits."""
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def model(kind: str, data: bytes) -> tuple[int, int] | None:
    """Read as Kafka's ByteUtils does, but reject lengths that are negative as a Java int."""
    size = next((i + 1 for i, byte in enumerate(data) if byte < 128), 99)
    if size > ROOM[kind]:
        return None
    value = sum((byte & 127) * 128**i for i, byte in enumerate(data[:size]))
    if kind == "uvarint":
        return (value, size) if value <= 2**31 - 1 else None
    value %= 1 << BITS[kind]
    return (value // 2 if value % 2 == 0 else -(value + 1) // 2), size


@given(st.sampled_from(sorted(ROOM)), HOSTILE)
@example("uvarint", b"\xff\xff\xff\xff\x07")  # 2^31 - 1
@example("uvarint", b"\x80\x80\x80\x80\x08")  # 2^31
@example("uvarint", b"\xff\xff\xff\xff\x0f")  # 2^32 - 1
@example("uvarint", b"\x80\x80\x80\x80\x80\x00")
@example("varint", b"\xff\xff\xff\xff\x0f")
@example("varint", b"\xff\xff\xff\xff\x7f")
@example("varlong", b"\xff" * 9 + b"\x01")
@example("varlong", b"\x80" * 10 + b"\x00")
def test_readers_judge_all_bytes_as_the_model(kind: str, data: bytes) -> None:
    assert codec_bytes.read(kind, data) == model(kind, data)  # type: ignore[arg-type]


@given(HOSTILE)
@example(b"\x80\x80\x80\x80\x08")
@example(b"\xff\xff\xff\xff\x07")
def test_the_decoder_of_messages_has_the_same_limit(data: bytes) -> None:
    """A malformed count of a tagged section is refused, and a section without fields is skipped."""
    found = model("uvarint", data)
    if found == (0, 1):
        assert _decoder.skip_tags(data) == 1
    elif found is None:
        with pytest.raises(ProtocolError, match="malformed tagged section"):
            _decoder.skip_tags(data)


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**63 - 1)
@example(-(2**63))
def test_a_signed_number_comes_back(value: int) -> None:
    written, announced = codec_bytes.varlong(value)
    assert len(written) == announced
    assert codec_bytes.read("varlong", written) == model("varlong", written) == (value, announced)
    if -(2**31) <= value < 2**31:
        assert codec_bytes.read("varint", written) == (value, announced)


@given(st.integers(0, 2**64 - 1) | st.integers(0, 2**31 - 1))
def test_an_unsigned_number_comes_back(value: int) -> None:
    written, announced = codec_bytes.uvarint(value)
    assert len(written) == announced
    assert sum((byte & 127) << 7 * i for i, byte in enumerate(written)) == value
    if value < 2**31:
        assert codec_bytes.read("uvarint", written) == (value, announced)


@given(st.sampled_from([2, 4, 8]), st.integers(0, 2**64 - 1))
def test_big_endian(size: int, value: int) -> None:
    data = (value % 256**size).to_bytes(size, "big")
    assert codec_bytes.store(value, size) == data
    assert codec_bytes.load(data, False) == value % 256**size
    assert codec_bytes.load(data, True) == wrapped(value, 8 * size)
