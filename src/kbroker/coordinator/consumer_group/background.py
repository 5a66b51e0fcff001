"""Work of consumer groups that takes a while and is done apart from heartbeats and time-outs.

What one client's regular expressions cost then delays only other regular expressions.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kbroker.common.loggers import get_logger

logger = get_logger(__name__)

Task = Callable[[], None]


class BackgroundTasks:
    """Runs tasks one after another: on a thread that ends when there are none, or at once on the caller's.

    Threads: any; ``_lock`` guards everything.
    """

    def __init__(self) -> None:
        self.has_thread = False  # set before the first task
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._is_running = False
        self._thread: threading.Thread | None = None

    def run(self, task: Task) -> None:
        """Run a task, which takes the locks it needs. The caller may hold a lock only if ``has_thread``.

        Raises: RuntimeError: no thread can be started now; the task will not run.
        """
        if not self.has_thread:
            task()
            return
        with self._lock:
            self._tasks.append(task)
            if self._is_running:
                return
            thread = threading.Thread(target=self._run, name="GroupRegexResolver", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._tasks.pop()
                raise
            self._is_running = True
            self._thread = thread

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the tasks so far, for so long at most."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._is_running = False
                    return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:
                logger.exception("a task of a consumer group failed")
