"""Limit of the refresh rate of open pages: all together at most ten times a second."""

from __future__ import annotations

import threading

from kbroker._core.clock import BaseClock

SHORTEST_MS = 2000
LONGEST_MS = 30_000
EACH_MS = 100  # added to the interval of all pages for each viewer: at most ten requests a second
SEEN_MS = 60_000
MAX_VIEWERS = 2000
MAX_NAME = 32


class Viewers:
    """Number of pages that were refreshed within the last minute. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}  # by the page's own name, the most recent last

    def again_ms(self, viewer: str) -> int:
        """Return the refresh interval of a page. Args: ``viewer``: empty for a page that is just being loaded."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if viewer:
                self._seen.pop(viewer[:MAX_NAME], None)
                self._seen[viewer[:MAX_NAME]] = now_ms
            while self._seen:
                oldest = next(iter(self._seen))
                if self._seen[oldest] > now_ms - SEEN_MS and len(self._seen) <= MAX_VIEWERS:
                    break
                del self._seen[oldest]
            return min(max(SHORTEST_MS, EACH_MS * len(self._seen)), LONGEST_MS)
