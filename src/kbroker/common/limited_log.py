"""Limited log lines about repeated failures and about requests of any client; lines beyond the limit are counted."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock

if TYPE_CHECKING:
    import logging

REPEAT_MS = 60_000
LINES_PER_SECOND = 10
MAX_CAUSES = 1000

#: Writes the line; its argument is the number of failures since the last line, this one included.
WriteLine = Callable[[int], object]


class _Cause:
    """``write`` of the latest failure, ``count`` of failures without a line, and ``lines`` since ``since_ms``."""

    __slots__ = ("count", "lines", "since_ms", "write")

    def __init__(self, write: WriteLine, now_ms: int) -> None:
        self.write = write
        self.count = self.lines = 0
        self.since_ms = now_ms


class RepeatedFailures:
    """Limit of the lines about each cause: by default one a minute, which reports the number of failures.

    Causes beyond MAX_CAUSES in a period have one limit together.

    Threads: any. No lock is held while a line is written.
    """

    def __init__(self, clock: BaseClock, lines: int = 1, period_ms: int = REPEAT_MS) -> None:
        self._clock = clock
        self._lines = lines
        self._period_ms = period_ms
        self._lock = threading.Lock()
        self._causes: dict[Hashable, _Cause] = {}

    def note(self, cause: Hashable, write: WriteLine, count: int = 1) -> None:
        """Count ``count`` failures; write a line about them if the period of this cause has lines left."""
        now_ms = self._clock.now_ms()
        late: list[tuple[WriteLine, int]] = []
        with self._lock:
            if cause not in self._causes and len(self._causes) >= MAX_CAUSES:
                late = self._take_late(now_ms)
                cause = cause if len(self._causes) < MAX_CAUSES else None
            found = self._causes.get(cause)
            if found is None:
                found = self._causes[cause] = _Cause(write, now_ms)
            found.write = write
            found.count += count
            times = self._due(found, now_ms)
        for write_one, count_of_one in late:
            write_one(count_of_one)
        if times:
            write(times)

    def log(self, cause: Hashable, log: Callable[..., object], message: str, *args: object) -> None:
        """Count a failure; the line that ``log`` writes about several failures ends with their number."""
        self.note(cause, lambda times: log(message + "%s", *args, how_often(times)))

    def write_late(self) -> None:
        """Write the lines about failures that were counted in a past period, and remove causes without failures."""
        now_ms = self._clock.now_ms()
        with self._lock:
            late = self._take_late(now_ms)
        for write, times in late:
            write(times)

    def _take_late(self, now_ms: int) -> list[tuple[WriteLine, int]]:
        """Return the lines of ``write_late``, and remove causes without failures; the caller holds the lock."""
        late: list[tuple[WriteLine, int]] = []
        for cause, found in list(self._causes.items()):
            if now_ms - found.since_ms < self._period_ms:
                continue
            if found.count:
                late.append((found.write, self._due(found, now_ms)))
            else:
                del self._causes[cause]
        return late

    def _due(self, cause: _Cause, now_ms: int) -> int:
        """Return the number of failures that a line reports now; 0 without a line."""
        if now_ms - cause.since_ms >= self._period_ms:
            cause.since_ms, cause.lines = now_ms, 0
        if cause.lines >= self._lines:
            return 0
        times, cause.count, cause.lines = cause.count, 0, cause.lines + 1
        return times


class RateLimitedLogger:
    """Logger of at most ``LINES_PER_SECOND`` lines a second for each message, so that none crowds out another.

    A message is the format string without its arguments. A line before its next occurrence reports the number of lines
    left out.

    Threads: any.
    """

    def __init__(self, logger: logging.Logger, clock: BaseClock) -> None:
        self._logger = logger
        self._lines = RepeatedFailures(clock, LINES_PER_SECOND, 1000)

    def debug(self, message: str, *args: object) -> None:
        """Write a line at DEBUG, or count it."""
        self._limit(self._logger.debug, message, args)

    def info(self, message: str, *args: object) -> None:
        """Write a line at INFO, or count it."""
        self._limit(self._logger.info, message, args)

    def warning(self, message: str, *args: object) -> None:
        """Write a warning, or count it."""
        self._limit(self._logger.warning, message, args)

    def _limit(self, log: Callable[..., None], message: str, args: tuple[object, ...]) -> None:
        def write(times: int) -> None:
            if times > 1:
                log("%d lines like the next were left out", times - 1)
            log(message, *args)

        self._lines.note(message, write)


def cause_of(message: str) -> str:
    """Return the cause of a failure by its message: the message without numbers, which may differ each time."""
    return re.sub("[0-9]+", "0", message)


def how_often(times: int) -> str:
    """Return the end of a line that reports more than one failure."""
    return f" ({times} times since the last such line)" if times > 1 else ""
