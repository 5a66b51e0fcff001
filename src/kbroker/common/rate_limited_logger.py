"""Log lines that strangers can cause: so many a second, the others counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock

if TYPE_CHECKING:
    import logging

LINES_PER_SECOND = 10


class RateLimitedLogger:
    """Writes at most ``LINES_PER_SECOND`` lines a second of ``clock``; the next line reports how many were left out.

    Threads: any.
    """

    def __init__(self, logger: logging.Logger, clock: BaseClock) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._second = -1
        self._written = 0
        self._left_out = 0

    def info(self, message: str, *args: object) -> None:
        """Write a line, or count it."""
        second = self._clock.now_ms() // 1000
        with self._lock:
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= LINES_PER_SECOND:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._logger.info("%d lines like the next were left out", left_out)
        self._logger.info(message, *args)
