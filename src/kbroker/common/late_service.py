"""A part of a broker that its first user starts, so that its modules are not imported earlier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class LateService(Generic[T_co]):
    """A service that ``start`` makes once. ``started``: the service, None before.

    Threads: any; the lock is taken before those of the service and of the topics, and not at all once it has started.
    """

    def __init__(self, start: Callable[[], T_co]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self.started: T_co | None = None

    def get(self) -> T_co:
        """Return the service; start it if it does not run. Raises: the errors of its start."""
        if self.started is not None:
            return self.started
        with self._lock:
            if self.started is None:
                self.started = self._start()
            return self.started

    def close(self, close: Callable[[T_co], object]) -> None:
        """Pass the service to a function that closes it, if it has started."""
        with self._lock:
            if self.started is not None:
                close(self.started)
