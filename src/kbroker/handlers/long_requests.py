"""Requests that take seconds, such as the creation of thousands of partitions: one thread serves them, in turn.

Python handlers stay free for all other requests, as the request handlers of Apache Kafka do, whose controller thread
changes topics. Source: ``QuorumController``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread

logger = get_logger(__name__)


class LongRequests:
    """Thread of long requests, which starts with the first of them. Threads: any; ``stop`` once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = queue.SimpleQueue()

    def put(self, serve: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Serve a request after those before it.

        Args: both must not raise; ``refuse`` is called instead after ``stop``, and if no thread can be started.
        """
        with self._lock:
            if self._stopping.is_set():
                refuse()
                return
            if self._thread is None:
                thread = new_thread("kafka-request-handler-long", self._run, "python-handler")
                try:
                    thread.start()
                except (RuntimeError, MemoryError):  # no more threads: the next long request tries again
                    logger.exception("a request cannot be served")
                    refuse()
                    return
                self._thread = thread
            self._waiting.put((serve, refuse))

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current request, and refuse those that wait; return whether it ended in time."""
        with self._lock:
            self._stopping.set()
            self._waiting.put(None)
        return self._thread is None or have_ended([self._thread], timeout_s)

    def _run(self) -> None:
        while (found := self._waiting.get()) is not None:
            serve, refuse = found
            if self._stopping.is_set():
                refuse()
            else:
                serve()
