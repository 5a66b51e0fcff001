"""Waiting for conditions instead of time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker._core.clock import SystemClock

LONGEST_PAUSE_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Return as soon as ``condition()`` is true; call it again after pauses of 0.1 to 10 ms real time.

    Args: ``timeout_s``: real seconds; ``what``: name of the condition in the message.
    Raises: TimeoutError if it is still false after ``timeout_s``.
    """
    real = SystemClock()  # a test that hangs does so in real time, whatever the time of its broker's clock
    pause_s, end_ms = 0.0001, real.now_ms() + timeout_s * 1000
    never = threading.Event()
    while not condition():
        if real.now_ms() >= end_ms:
            raise TimeoutError(f"{what} did not come true within {timeout_s:g} s")
        never.wait(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
