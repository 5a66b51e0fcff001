"""Cleaner's map of keys to their latest offsets."""

from tests.native.key_offsets import KeyOffsets


def test_key_hash_is_siphash() -> None:
    """The hash is SipHash-2-4 of 128 bits, by its authors' vectors (key 0 to 15, message 0 to n - 1)."""
    keys = KeyOffsets(1024, secret=bytes(range(16)))
    assert keys.hash(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert keys.hash(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


def test_key_map_fills_to_its_load_factor() -> None:
    """A map of 1000 slots accepts 900 keys, and still updates the keys that it contains."""
    keys = KeyOffsets(24 * 1000, 0.9, keys=10**9)
    assert keys.capacity == 1000
    assert [keys.put(b"%d" % i, i) for i in range(1000)] == [True] * 900 + [False] * 100
    assert len(keys) == 900
    assert keys.put(b"7", 5000)
    assert keys.get(b"7") == 5000
    assert keys.get(b"899") == 899
    assert keys.get(b"900") == -1


def test_key_map_is_as_small_as_the_work() -> None:
    """The map of a round with few records does not take the whole buffer."""
    assert KeyOffsets(1 << 27, 0.9, keys=1000).capacity < 1300
