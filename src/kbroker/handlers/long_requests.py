"""Requests that take seconds, such as the creation of thousands of partitions: one thread serves them, in turn.

Python handlers stay free for all other requests, as the request handlers of Apache Kafka do, whose controller thread
changes topics. Source: ``QuorumController``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from kbroker._core import process_memory


class LongRequests:
    """A thread that starts with the first of these requests. Threads: any; ``stop`` once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = queue.SimpleQueue()

    def put(self, serve: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Serve a request after those before it. Args: neither raises; ``refuse`` is called instead after ``stop``."""
        with self._lock:
            if self._stopping.is_set():
                refuse()
                return
            self._waiting.put((serve, refuse))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-request-handler-long", daemon=True)
                self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current request, and refuse those that wait; return whether it ended in time."""
        with self._lock:
            self._stopping.set()
            self._waiting.put(None)
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        process_memory.note_thread("python-handler")
        while (found := self._waiting.get()) is not None:
            serve, refuse = found
            if self._stopping.is_set():
                refuse()
            else:
                serve()
