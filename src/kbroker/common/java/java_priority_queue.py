"""Java's priority queue: its choice among equal elements, on which decisions of Kafka depend.

Source: ``java.util.PriorityQueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class JavaPriorityQueue(Generic[Item]):
    """A binary heap. Args: ``items``: added one after the other; ``rank``: the smallest comes first."""

    def __init__(self, items: Iterable[Item], rank: Callable[[Item], float]) -> None:
        self._heap: list[Item] = []
        self._rank = rank
        for item in items:
            self.add(item)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: Item) -> None:
        """Add an item."""
        heap, rank = self._heap, self._rank(item)
        slot = len(heap)
        heap.append(item)
        while slot > 0:
            parent = (slot - 1) >> 1
            if rank >= self._rank(heap[parent]):
                break
            heap[slot] = heap[parent]
            slot = parent
        heap[slot] = item

    def poll(self) -> Item:
        """Remove and return the first item. Raises: IndexError."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last
        first, rank, count = heap[0], self._rank(last), len(heap)
        slot = 0
        while slot < count >> 1:
            child = 2 * slot + 1
            if child + 1 < count and self._rank(heap[child]) > self._rank(heap[child + 1]):
                child += 1
            if rank <= self._rank(heap[child]):
                break
            heap[slot] = heap[child]
            slot = child
        heap[slot] = last
        return first
