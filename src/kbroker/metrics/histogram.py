"""Histogram of values measured by Python code."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

from kbroker.metrics.families import Buckets


class Histogram:
    """Counts of values by bucket.

    Args: ``bounds``: upper bounds of all buckets but the last, ascending.
    Threads: any.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def record(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        place = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def buckets(self) -> Buckets:
        """Return the counts."""
        with self._lock:
            return Buckets(tuple(self._counts), self._sum)
