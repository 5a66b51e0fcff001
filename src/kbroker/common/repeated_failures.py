"""Log lines about failures that repeat: one a minute for each cause, with how often it has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from kbroker._core.clock import BaseClock

REPEAT_MS = 60_000

#: Writes the line; is given how often it has failed since the last line.
WriteLine = Callable[[int], object]


class _Cause:
    """``write`` the latest failure; ``count`` those without a line; ``logged_ms`` when the last line was written."""

    __slots__ = ("count", "logged_ms", "write")

    def __init__(self, write: WriteLine, now_ms: int) -> None:
        self.write = write
        self.count = 0
        self.logged_ms = now_ms


class RepeatedFailures:
    """Lets the first failure of a cause write its line at once, and counts the next ones for a minute of ``clock``.

    Threads: any. No lock is held while a line is written.
    """

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[Hashable, _Cause] = {}

    def note(self, cause: Hashable, write: WriteLine, count: int = 1) -> None:
        """Count ``count`` failures; write a line if the last one about this cause is a minute old."""
        now_ms = self._clock.now_ms()
        with self._lock:
            found = self._causes.get(cause)
            if found is None:
                self._causes[cause] = _Cause(write, now_ms)
                times = count
            else:
                found.write = write
                found.count += count
                times = _due(found, now_ms)
        if times:
            write(times)

    def write_late(self) -> None:
        """Write the lines of the failures counted a minute after the last line, and forget what no longer fails."""
        now_ms = self._clock.now_ms()
        late: list[tuple[WriteLine, int]] = []
        with self._lock:
            for cause, found in list(self._causes.items()):
                if now_ms - found.logged_ms < REPEAT_MS:
                    continue
                if found.count:
                    late.append((found.write, _due(found, now_ms)))
                else:
                    del self._causes[cause]
        for write, times in late:
            write(times)


def _due(cause: _Cause, now_ms: int) -> int:
    """Return the number of failures that a line reports now; 0 while the last line is too recent."""
    if now_ms - cause.logged_ms < REPEAT_MS:
        return 0
    times, cause.count, cause.logged_ms = cause.count, 0, now_ms
    return times


def how_often(times: int) -> str:
    """The end of a line that reports more than one failure."""
    return f" ({times} times since the last such line)" if times > 1 else ""
