"""Share of the last minute spent in a state, from a counter of nanoseconds that only grows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kbroker._core.clock import BaseClock

WINDOW_NS = 60_000_000_000
SHORTEST_NS = 1_000_000_000


class Share:
    """Growth of a counter divided by elapsed time and number of threads, 0 to 1, over the last minute or longer.

    Each measurement is a sample, so that no thread takes samples. The first one covers the time since creation.
    Args: ``spent_ns`` returns the counter, ``threads`` the number of threads that increase it.
    Threads: any.
    """

    def __init__(self, spent_ns: Callable[[], int], threads: Callable[[], int], clock: BaseClock) -> None:
        self._spent_ns = spent_ns
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: deque[tuple[int, int]] = deque([(clock.now_ns(), spent_ns())])

    def measure(self) -> float:
        """Return the current share; NaN if no time has passed."""
        with self._lock:
            now, spent = self._clock.now_ns(), self._spent_ns()
            while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_NS:
                self._looks.popleft()
            since, before = self._looks[0]
            if now - self._looks[-1][0] >= SHORTEST_NS:
                self._looks.append((now, spent))
            passed = (now - since) * max(1, self._threads())
            return min(1.0, max(0.0, (spent - before) / passed)) if passed > 0 else float("nan")
