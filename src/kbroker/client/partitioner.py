"""Choice of the partition of a record, as in the Java producer."""

import itertools
from collections.abc import Iterator

from kbroker.protocol._murmur2 import murmur2, partition_of_key

__all__ = ["StickyPartitions", "murmur2", "partition_of_key"]


class StickyPartitions:
    """Records without a key stay on one partition until `rotate`, so that batches fill. Threads: one at a time."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._current: dict[str, int] = {}

    def partition(self, topic: str, partition_count: int) -> int:
        """Return the current partition of a topic."""
        if topic not in self._current:
            self._current[topic] = next(self._turns.setdefault(topic, itertools.count()))
        return self._current[topic] % partition_count

    def rotate(self) -> None:
        """Move every topic on to its next partition; called when a batch has been sent."""
        self._current.clear()
