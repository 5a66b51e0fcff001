"""The last ten minutes of each topic: records appended per second, and its size."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.console.history import PAUSE_MS
from kbroker.metadata.topics import TopicView

EVERY_MS = 10_000
SAMPLES = 60
MAX_TOPICS = 20_000  # topics with values; each takes a kilobyte
SHARE = 100  # samples take at most 1/100 of the time


class Point(NamedTuple):
    """A sample of a topic: records per second since the previous one, and bytes on disk."""

    time_ms: int
    records: float
    size_bytes: int


class _Series:
    """Values of one topic, in a ring."""

    __slots__ = ("end", "rates", "sizes", "topic_id")

    def __init__(self, topic_id: object) -> None:
        self.topic_id = topic_id
        self.end = -1
        self.rates = array("f", [-1.0]) * SAMPLES  # negative: no value
        self.sizes = array("q", [0]) * SAMPLES


class TopicHistory:
    """Samples of all topics, one every ten seconds, less often if there are very many.

    Args: ``topics`` returns them; ``clock``. Threads: any; ``look`` from one at a time.
    """

    def __init__(self, topics: Callable[[], Iterable[TopicView]], clock: BaseClock) -> None:
        self._topics = topics
        self._clock = clock
        self._lock = threading.Lock()
        self._series: dict[str, _Series] = {}
        self._times = array("q", [0]) * SAMPLES
        self._count = 0
        self._due_ms = 0

    def look(self, now_ms: int) -> None:
        """Take a sample if it is due. Args: ``now_ms`` since 1970."""
        if now_ms < self._due_ms:
            return
        began_ms = self._clock.now_ms()
        found = {view.name: (view.topic_id, *_sums(view)) for view in self._topics()}
        with self._lock:
            is_late = now_ms - self._due_ms > PAUSE_MS
            slot, seconds = self._count % SAMPLES, (now_ms - self._times[(self._count - 1) % SAMPLES]) / 1000
            for name in [name for name in self._series if name not in found]:
                del self._series[name]
            for name, (topic_id, end, size_bytes) in found.items():
                series = self._series.get(name)
                if series is None or series.topic_id != topic_id:
                    if series is None and len(self._series) >= MAX_TOPICS:
                        continue
                    series = self._series[name] = _Series(topic_id)
                has_rate = series.end >= 0 and seconds > 0 and not is_late
                series.rates[slot] = max(0, end - series.end) / seconds if has_rate else -1.0
                series.sizes[slot] = size_bytes
                series.end = end
            self._times[slot] = now_ms
            self._count += 1
        self._due_ms = now_ms + max(EVERY_MS, SHARE * (self._clock.now_ms() - began_ms))

    def points(self, name: str) -> list[Point]:
        """Return the samples of a topic, the oldest first."""
        with self._lock:
            series = self._series.get(name)
            if series is None:
                return []
            slots = [number % SAMPLES for number in range(max(0, self._count - SAMPLES), self._count)]
            return [
                Point(self._times[slot], series.rates[slot], series.sizes[slot])
                for slot in slots
                if series.rates[slot] >= 0
            ]

    def rate(self, name: str) -> float | None:
        """Return the records per second of the last sample; None without one, and after a pause."""
        if self._clock.epoch_ms() - self._due_ms > PAUSE_MS:
            return None
        with self._lock:
            series = self._series.get(name)
            rate = -1.0 if series is None else series.rates[(self._count - 1) % SAMPLES]
        return rate if rate >= 0 else None


def _sums(view: TopicView) -> tuple[int, int]:
    logs = [log for log in view.partitions if log is not None]
    return sum(log.high_watermark for log in logs), sum(log.size_bytes for log in logs)
