"""Starts of threads that fail, as when the system has no threads left."""

from __future__ import annotations

import threading

import pytest


def allow_threads(patch: pytest.MonkeyPatch, count: int) -> list[threading.Thread]:
    """Allow only the next ``count`` threads to start; return the list of those that have started."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_or_fail(thread: threading.Thread) -> None:
        if len(started) >= count:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    patch.setattr(threading.Thread, "start", start_or_fail)
    return started
