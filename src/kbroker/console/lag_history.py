"""Lag of the groups that pages have shown lately, every few seconds for ten minutes.

A thread measures while a group's page was open within the last minutes, with the rights of the user who opened it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.client.connection import BrokerConnectionError
from kbroker.common.errors import KafkaError
from kbroker.console.connections import Identity
from kbroker.console.history import Sampler
from kbroker.console.line_chart import KEPT_MS
from kbroker.console.requests import PageError

EVERY_S = 5.0
IN_USE_MS = 300_000  # measuring continues for this long after the last request for the group's page
MAX_GROUPS = 20  # further groups displace those that were shown longest ago


class Point(NamedTuple):
    """Lag at a time since 1970; None if it was unknown."""

    time_ms: int
    lag: int | None


class Shown(NamedTuple):
    """A group that is shown with the rights of a user."""

    identity: Identity
    group_id: str
    group_type: str


#: Returns the total lag of a group; raises KafkaError, BrokerConnectionError or PageError.
Measure = Callable[[Shown], int | None]


class LagHistory(Sampler):
    """Lags of a few groups.

    Args: ``measure`` reads a lag; ``clock``.
    Threads: any; ``look_once`` from one at a time.
    """

    def __init__(self, measure: Measure, clock: BaseClock) -> None:
        super().__init__(clock, "console-lags", EVERY_S, EVERY_S, "the console cannot measure the lag of a group")
        self._measure = measure
        self._used_ms: dict[Shown, int] = {}  # the most recent last
        self._points: dict[Shown, deque[Point]] = {}

    def use(self, shown: Shown, lag: int | None) -> list[Point]:
        """Record the lag that a page shows, continue to measure it, and return the last ten minutes."""
        with self._lock:
            self._used_ms.pop(shown, None)
            self._used_ms[shown] = self._clock.now_ms()
            while len(self._used_ms) > MAX_GROUPS:
                oldest = next(iter(self._used_ms))
                del self._used_ms[oldest]
                self._points.pop(oldest, None)
            self._begin()
            if shown not in self._points:
                self._add(shown, lag)
            return list(self._points[shown])

    def _is_in_use(self) -> bool:
        return bool(self._used_ms)

    def look_once(self) -> None:
        """Measure each group that was shown lately, and drop the others."""
        now_ms = self._clock.now_ms()
        with self._lock:
            for shown, used_ms in list(self._used_ms.items()):
                if now_ms - used_ms > IN_USE_MS:
                    del self._used_ms[shown]
                    self._points.pop(shown, None)
            wanted = list(self._used_ms)
        for shown in wanted:
            if self._stopping.is_set():
                return
            try:
                lag = self._measure(shown)
            except (KafkaError, BrokerConnectionError, PageError):  # deleted, no longer permitted, throttled
                lag = None
            with self._lock:
                if shown in self._used_ms:
                    self._add(shown, lag)

    def _add(self, shown: Shown, lag: int | None) -> None:
        points = self._points.setdefault(shown, deque())
        points.append(Point(self._clock.epoch_ms(), lag))
        while points[0].time_ms < points[-1].time_ms - KEPT_MS:
            points.popleft()
