"""Errors of the creation of internal topics; until an error expires, members receive it, and no attempt is made.

Source: ``ExpiringErrorCache`` (``AutoTopicCreationManager``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kbroker._core.clock import BaseClock

CAPACITY = 1000


class CreationErrors:
    """Latest error of each topic; beyond the capacity, the oldest ones are dropped. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._errors: dict[str, tuple[int, str]] = {}  # time of expiry and text, by topic

    def put(self, topic: str, text: str, time_to_live_ms: int) -> None:
        """Keep the error of a topic until the time to live has passed, or CAPACITY later ones are kept."""
        with self._lock:
            self._errors.pop(topic, None)
            self._errors[topic] = self._clock.now_ms() + time_to_live_ms, text
            while len(self._errors) > CAPACITY:
                del self._errors[next(iter(self._errors))]

    def of(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the errors of these topics that have not expired."""
        now_ms = self._clock.now_ms()
        with self._lock:
            found = {topic: self._errors[topic] for topic in topics if topic in self._errors}
            return {topic: text for topic, (expires_ms, text) in found.items() if now_ms < expires_ms}
