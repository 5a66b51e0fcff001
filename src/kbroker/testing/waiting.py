"""Waiting for a condition instead of for time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_PAUSE_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "the condition") -> None:
    """Return as soon as ``condition()`` is true; ask again after pauses of real time, 0.1 to 10 ms.

    Args: ``timeout_s`` real seconds; ``what`` is waited for, for the message.
    Raises: TimeoutError when it is still false then.
    """
    pause_s, end = 0.0001, time.monotonic() + timeout_s
    never = threading.Event()
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"{what} did not come true within {timeout_s:g} s")
        never.wait(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
