"""Any split of a byte stream results in the same frames, in every framing with boundaries."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.codec.framing import Framer
from kbroker._core.requests.memory_pool import MemoryPool
from tests.support.bad_input import CAN_BOUND, bounded_memory


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Return the stream, cut at the given positions."""
    places = sorted({min(c, len(stream)) for c in cuts})
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def pattern(size: int) -> bytes:
    """Return bytes that differ by position and are cheap to create."""
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


FRAMES = st.lists(st.one_of(st.binary(max_size=40), st.builds(pattern, st.integers(16380, 140000))), max_size=6)
CUTS = st.lists(st.integers(0, 500000), max_size=12)


@given(FRAMES, CUTS)
def test_length_prefix(frames: list[bytes], cuts: list[int]) -> None:
    """Reads may end anywhere, even inside a prefix, and empty frames are frames."""
    stream = b"".join(struct.pack(">i", len(f)) + f for f in frames)
    framer, got = Framer(), []
    for chunk in chunks(stream, cuts):
        found, taken = framer.feed(chunk)
        assert taken == len(chunk)
        got += found
    assert got == frames
    assert not framer.is_partial


@given(st.lists(st.binary(max_size=30).filter(lambda f: b"\r\n" not in f and not f.endswith(b"\r"))), CUTS)
def test_delimiter(frames: list[bytes], cuts: list[int]) -> None:
    """A delimiter that is split between two reads is recognized."""
    framer, got = Framer("delimiter", 100, b"\r\n"), []
    for chunk in chunks(b"".join(f + b"\r\n" for f in frames), cuts):
        got += framer.feed(chunk)[0]
    assert got == frames


@given(st.binary(max_size=500), CUTS)
def test_raw(stream: bytes, cuts: list[int]) -> None:
    """Raw framing keeps all bytes and never exceeds the maximum size."""
    framer, got = Framer("raw", 64), []
    for chunk in chunks(stream, cuts):
        got += framer.feed(chunk)[0]
    assert b"".join(got) == stream
    assert all(1 <= len(f) <= 64 for f in got)


@given(FRAMES, CUTS)
def test_pool_is_charged_until_frames_are_taken(frames: list[bytes], cuts: list[int]) -> None:
    """Bytes that the pool refused, fed again after frames are freed, result in the same frames and no charge."""
    stream = b"".join(struct.pack(">i", len(f)) + f for f in frames)
    pool = MemoryPool(150000, 150000)
    framer, got = Framer(pool=pool), []
    for chunk in chunks(stream, cuts):
        rest = chunk
        while rest:
            found, taken = framer.feed(rest)
            got += found
            rest = rest[taken:]
    assert got == frames
    assert pool.available_bytes == 150000


def test_receive_counts_prefix_and_body() -> None:
    """A receive counts 4, 68 and 132 bytes after the prefix and two halves of the body; only then is it complete."""
    framer = Framer(max_size_bytes=128)
    assert framer.feed(struct.pack(">i", 128)) == ([], 4)
    assert framer.bytes_read == 4
    assert framer.feed(b"a" * 64) == ([], 64)
    assert framer.bytes_read == 68
    assert framer.is_partial
    assert framer.feed(b"b" * 64) == ([b"a" * 64 + b"b" * 64], 64)
    assert framer.bytes_read == 132
    assert not framer.is_partial


@pytest.mark.parametrize("size", [-1, 129, 2**31 - 1, -(2**31)])
def test_impossible_sizes(size: int) -> None:
    """A negative size and a size above the limit are refused as soon as the prefix is complete."""
    with pytest.raises(ValueError, match="negative or larger than 128"):
        Framer(max_size_bytes=128).feed(struct.pack(">i", size))


def test_frames_before_an_invalid_size() -> None:
    """Complete frames before an invalid size are returned, and the next call raises the error."""
    framer = Framer()
    data = struct.pack(">i", 1) + b"a" + struct.pack(">i", -1) + b"rest"
    frames, taken = framer.feed(data)
    assert frames == [b"a"]
    with pytest.raises(ValueError, match="negative or larger"):
        framer.feed(data[taken:])


def test_endless_line() -> None:
    """A frame without a delimiter is refused at the limit."""
    framer = Framer("delimiter", 10, b"\n")
    framer.feed(b"x" * 10)
    for data in (b"xx", b"\n"):  # the delimiter comes too late
        with pytest.raises(ValueError, match="larger than 10"):
            framer.feed(data)


@pytest.mark.skipif(not CAN_BOUND, reason="memory is bounded on Linux only")
@pytest.mark.parametrize("framing", [("delimiter", 1 << 30, b"\n"), ("raw", 1 << 30)])
def test_exhausted_memory(framing: tuple[object, ...]) -> None:
    """After memory was exhausted within a frame, the stream has no further frames: each call raises the error."""
    framer = Framer(*framing)  # type: ignore[arg-type]
    data = bytes(128 << 20)
    with bounded_memory(32 << 20), pytest.raises(MemoryError):
        framer.feed(data)
    for _ in range(2):
        with pytest.raises(MemoryError):
            framer.feed(b"\n")


@pytest.mark.parametrize(
    "arguments", [("morse",), ("raw", 0), ("raw", 2**31), ("delimiter",), ("raw", 1, b"x"), ("delimiter", 1, b"x" * 17)]
)
def test_wrong_arguments(arguments: tuple[object, ...]) -> None:
    """Unknown framings, impossible limits and misplaced delimiters are refused."""
    with pytest.raises(ValueError):
        Framer(*arguments)  # type: ignore[arg-type]
