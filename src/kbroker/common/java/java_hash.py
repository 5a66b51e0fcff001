"""Java's hash of a text, and the order in which Java's hash maps hold texts: Kafka decides by both.

Source: ``java.lang.String.hashCode``, ``java.util.HashMap``.
"""

from __future__ import annotations

from collections.abc import Collection

SMALLEST_TABLE = 16
LOAD_FACTOR = 0.75


def string_hash(text: str) -> int:
    """Return the hash of a text, a signed int of 32 bits, over its UTF-16 units."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def hash_map_order(texts: Collection[str]) -> list[str]:
    """Return texts, each once, in the order of a Java hash map they were put into one after the other."""
    slots = SMALLEST_TABLE
    while len(texts) > slots * LOAD_FACTOR:
        slots *= 2

    def slot(text: str) -> int:
        value = string_hash(text) & 0xFFFFFFFF
        return (value ^ value >> 16) & (slots - 1)

    return sorted(texts, key=slot)  # a stable sort: texts of one slot stay as they came
