"""Which partition a record goes to, as the Java producer decides it."""

import itertools
from collections.abc import Iterator

MASK = 0xFFFFFFFF
SEED, M = 0x9747B28C, 0x5BD1E995


def murmur2(data: bytes) -> int:
    """32-bit MurmurHash2 with Kafka's seed, unsigned. Source: ``Utils.murmur2``."""
    length = len(data)
    h = SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * M & MASK
        h = (h * M & MASK) ^ ((k ^ k >> 24) * M & MASK)
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & MASK
    h = (h ^ h >> 13) * M & MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a keyed record, as Java and kafka-python choose it; librdkafka's default (crc32) differs."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitions:
    """Records without a key stay on one partition until `rotate`, so that batches fill. Threads: one at a time."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partition_count: int) -> int:
        """The partition of the moment."""
        if topic not in self._current:
            self._current[topic] = next(self._turns.setdefault(topic, itertools.count()))
        return self._current[topic] % partition_count

    def rotate(self) -> None:
        """Move every topic on to its next partition; called when a batch has been sent."""
        self._current.clear()
