"""Hashes of the topics of a group."""

import struct

import pytest

from kbroker.coordinator.modern_group import topics_image
from kbroker.coordinator.modern_group.topics_image import TopicHashes
from kbroker.coordinator.modern_group.xxh3 import xxh3_64
from tests.support.fake_image import FakeImage


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (8, 0x60539DB630471163),
        (9, 0xFEFF668361D723A8),
        (16, 0xB8C859B0F030B585),
        (17, 0x714A04408E79B80F),
        (128, 0x67425A03650261BF),
        (129, 0xC664BF3311C6ABC4),
        (240, 0x64556DC6B462A6CF),
        (241, 0x8BEADD3A8874FE17),
        (1024, 0x9B81661C641C72B1),
        (1025, 0x806C2072ED713576),
        (2500, 0x3911477E37AC3C0F),
    ],
)
def test_hashes_are_those_of_xxhash(size: int, value: int) -> None:
    """Each length at which the calculation changes has the value of the reference implementation, xxHash 0.8."""
    assert xxh3_64(bytes((index * 7 + 3) & 0xFF for index in range(size))) == value


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def test_the_rack_is_hashed_with_each_partition() -> None:
    """A topic is hashed from Kafka's bytes; the hash of a group with this topic is the hash of that hash."""
    image = FakeImage(t=2)
    image.rack = "a\u00e9"
    text = struct.pack("<HHi", ord("a"), 0xE9, 2)
    topic = struct.pack("<bQQ", 0, 0, 1) + struct.pack("<Hi", ord("t"), 1) + struct.pack("<i", 2)
    topic += b"".join(struct.pack("<ii", index, 2) + text for index in range(2))
    wanted = signed(xxh3_64(struct.pack("<Q", xxh3_64(topic))))
    assert TopicHashes(image).group_hash(["t", "absent"]) == wanted
    image.rack = None
    assert TopicHashes(image).group_hash(["t"]) not in (wanted, 0)
    assert TopicHashes(image).group_hash(["absent"]) == 0


def test_a_full_cache_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    image = FakeImage(a=1, b=1, c=1)
    plain = TopicHashes(image)
    monkeypatch.setattr(topics_image, "MOST_SETS", 1)
    monkeypatch.setattr(topics_image, "MOST_HASHES", 1)
    small = TopicHashes(image)
    for names in ("ab", "bc", "ab", "a", "c", "abc"):
        assert small.group_hash(names) == plain.group_hash(names)
    assert (len(small._known), len(small._groups[1])) == (1, 1)
