"""The native request handler threads (num.io.threads): started, joined, and changed in number while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker.common.threads import new_thread


class HandlerThreads:
    """Threads that each run ``body`` until it returns.

    Args: ``body``: run by each thread; ``retire(count)`` makes ``count`` of the bodies return.
    Threads: any; one resize at a time.
    Source: ``KafkaRequestHandlerPool``.
    """

    def __init__(self, body: Callable[[], None], retire: Callable[[int], None]) -> None:
        self._body = body
        self._retire = retire
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._wanted = 0
        self._number = 0

    def resize(self, count: int) -> None:
        """Change the number of threads; surplus threads end after their current request.

        Raises: RuntimeError if the system cannot start a thread; those already started stay and count.
        """
        with self._lock:
            if count < self._wanted:
                self._retire(self._wanted - count)
                self._wanted = count
            for _ in range(count - self._wanted):
                name = f"data-plane-kafka-request-handler-{self._number}"
                thread = new_thread(name, self._body, f"handler-{self._number}")
                self._number += 1
                thread.start()
                self._threads.append(thread)
                self._wanted += 1
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    @property
    def threads(self) -> list[threading.Thread]:
        """Return the running threads."""
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]
