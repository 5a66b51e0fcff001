"""A part of a broker that its first user starts, so that its modules are not imported before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class LateService(Generic[T]):
    """A service that ``start`` makes once. ``started``: None before.

    Threads: any; the lock is taken before those of the service and of the topics.
    """

    def __init__(self, start: Callable[[], T]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self.started: T | None = None

    def get(self) -> T:
        """Return the service; start it if it does not run."""
        with self._lock:
            if self.started is None:
                self.started = self._start()
            return self.started

    def close(self, close: Callable[[T], object]) -> None:
        """Pass the service to a function that closes it, if it has started."""
        with self._lock:
            if self.started is not None:
                close(self.started)
