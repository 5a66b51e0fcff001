"""CRC-32C against the published check values, and the back ends against each other."""

import random

import pytest

from kbroker._core.codec.crc32c import _crc32c_by_table, back_end, crc32c

# RFC 3720 (iSCSI), section B.4, and the check value of the CRC catalogue
VECTORS = [
    (b"", 0), (b"a", 0xC1D04330), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E), (bytes(range(31, -1, -1)), 0x113FDB5C),
]  # fmt: skip


@pytest.mark.parametrize("function", [crc32c, _crc32c_by_table])
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_values(function: object, data: bytes, expected: int) -> None:
    """The polynomial, the reflection and both inversions are Castagnoli's."""
    assert function(data) == expected  # type: ignore[operator]


def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_every_length_around_the_steps() -> None:
    """Every length and misalignment around the eight-byte steps and the interleaved streams is correct."""
    data = random.Random(1).randbytes(3 * 4096 * 2 + 3 * 256 + 64)
    lengths = [*range(70), *range(3 * 256 - 9, 3 * 256 + 17), *range(3 * 4096 - 9, 3 * 4096 + 17), len(data) - 3]
    for length in lengths:
        for start in (0, 1, 3):
            piece = data[start : start + length]
            assert crc32c(piece) == _crc32c_by_table(piece), (start, length)
    assert crc32c(data[:1500]) == bit_by_bit(data[:1500])


def test_chaining_equals_one_pass() -> None:
    """The checksum of two pieces continued is that of the whole."""
    data = random.Random(2).randbytes(20_000)
    whole = crc32c(data)
    for cut in (0, 1, 7, 8, 61, 768, 5120, 12_288, 19_999, 20_000):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole
        assert _crc32c_by_table(data[cut:], _crc32c_by_table(data[:cut])) == whole


def test_any_contiguous_buffer_is_taken() -> None:
    """bytes, bytearray, memoryview slices and wider items are all read as bytes."""
    data = bytes(range(256)) * 40
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(memoryview(data).cast("Q")) == crc32c(data)
    assert crc32c(memoryview(data)[3:]) == crc32c(data[3:])


def test_wrong_arguments_are_refused() -> None:
    """A wrong argument raises before any byte is read."""
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        crc32c(memoryview(b"abcdef")[::2])
    with pytest.raises(ValueError, match="crc must be between"):
        crc32c(b"x", -1)
    with pytest.raises(ValueError, match="crc must be between"):
        crc32c(b"x", 1 << 32)
    with pytest.raises(TypeError, match="crc must be an integer"):
        crc32c(b"x", 1.0)  # type: ignore[arg-type]


def test_back_end_is_named() -> None:
    """The back end is named for the log line at start."""
    assert back_end() in {"sse4.2", "armv8", "table"}
    assert crc32c.__name__ == "crc32c"
