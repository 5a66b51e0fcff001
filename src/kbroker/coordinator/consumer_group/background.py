"""Slow work of consumer groups, which delays neither heartbeats nor time-outs.

Tasks take turns, a slice each: the costly regular expressions of one group delay those of another by one slice per
turn, not by their total cost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread

logger = get_logger(__name__)

Task = Iterator[None]


class BackgroundTasks:
    """Tasks that run in turns on a thread, which ends when none is left; without a thread ``run`` executes each task.

    A task is an iterator; each step of it is a slice of work, after which the next task has its turn.

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
            for _ in task:
                pass
            return
        with self._lock:
            self._tasks.append(task)
            if self._is_running:
                return
            thread = new_thread("GroupRegexResolver", self._run, "group-regex")
            try:
                thread.start()
            except RuntimeError:
                self._tasks.pop()
                raise
            self._is_running = True
            self._thread = thread

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the current tasks, up to a time-out."""
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
                next(task)
            except StopIteration:
                continue
            except Exception:
                logger.exception("a background task of a consumer group failed")
                continue
            with self._lock:
                self._tasks.append(task)
