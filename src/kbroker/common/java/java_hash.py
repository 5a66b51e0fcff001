"""Hashes of Java's values, and the order of Java's hash maps: Kafka's decisions and responses depend on both.

Source: ``org.apache.kafka.common.Uuid``, ``java.util.HashMap``, Kafka's ``BaseHashTable``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from uuid import UUID

from kbroker.common.java._string_hash import string_hash

Item = TypeVar("Item")

SMALLEST_TABLE = 16
LOAD_FACTOR = 0.75
GOLDEN_RATIO = 0x9E3779B97F4A7C15  # multiplier of Kafka's own hash tables


def map_hash(entries: Mapping[str, str | None]) -> int:
    """Return the hash of a map of texts, as an int of any size; a null value hashes to 0."""
    return sum(string_hash(key) ^ (0 if value is None else string_hash(value)) for key, value in entries.items())


def uuid_hash(value: UUID) -> int:
    """Return the hash of Kafka's ``Uuid``, as an unsigned int of 32 bits."""
    mixed = (value.int >> 64) ^ (value.int & 0xFFFFFFFFFFFFFFFF)
    return (mixed >> 32) ^ (mixed & 0xFFFFFFFF)


def int_hash(value: int) -> int:
    """Return the hash of a non-negative number."""
    return value


def hash_order(
    items: Collection[Item],
    hash_of: Callable[[Item], int],
    *,
    is_presized: bool = False,
    smallest_table: int = SMALLEST_TABLE,
    held: int | None = None,
) -> list[Item]:
    """Return items, each once, in the order of a Java hash map into which they were put one after the other.

    Args:
        is_presized: the table was made large enough for all items, as for a copy of another map.
        smallest_table: minimum number of slots, those of an empty map.
        held: number of items in the map, if ``items`` are only some of them.
    """
    count = len(items) if held is None else held
    slots = smallest_table
    if is_presized:
        while slots < int(count / LOAD_FACTOR) + 1:
            slots *= 2
    while count > slots * LOAD_FACTOR:
        slots *= 2

    def slot(item: Item) -> int:
        value = hash_of(item) & 0xFFFFFFFF
        return (value ^ value >> 16) & (slots - 1)

    return sorted(items, key=slot)  # a stable sort: items of one slot keep their order


def hash_map_order(texts: Collection[str]) -> list[str]:
    """Return texts without duplicates in the order of a Java hash map into which they were put one by one."""
    return hash_order(texts, string_hash)


def timeline_map_order(texts: Collection[str]) -> list[str]:
    """Return texts without duplicates in the order of a Kafka ``TimelineHashMap`` that has never had more entries.

    The map's iterator returns the entries of one slot in reverse, the latest first.
    """
    slot_bits = 1
    while len(texts) * LOAD_FACTOR > 1 << slot_bits:
        slot_bits += 1

    def slot(text: str) -> int:
        return (string_hash(text) * GOLDEN_RATIO & 0xFFFFFFFFFFFFFFFF) >> (64 - slot_bits)

    latest_first = list(texts)[::-1]
    return sorted(latest_first, key=slot)
