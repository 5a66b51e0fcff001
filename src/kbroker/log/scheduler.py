"""Named background tasks of the log over one timing wheel: retention, flush, checkpoints, expiry, deletion."""

import threading
from collections.abc import Callable

from kbroker._core.clock import BaseClock
from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread

logger = get_logger(__name__)

TICK_MS = 10
WHEEL_SIZE = 60
ADVANCE_MS = 60_000  # maximum wait of the thread; a due task or close() ends it sooner
MAX_DELAY_MS = 2**53


class ScheduledTask:
    """A task of a Scheduler that runs once, or again ``period_ms`` after the end of each run.

    Threads: ``cancel`` from any thread, the task itself included; it does not wait for a run in progress.
    """

    def __init__(self, scheduler: "Scheduler", name: str, run: Callable[[], object], period_ms: int) -> None:
        self.name = name
        self.period_ms = period_ms
        self._scheduler = scheduler
        self._run = run
        self._cancelled = False

    def cancel(self) -> None:
        """Prevent all further runs."""
        self._cancelled = True
        self._scheduler._forget(self)

    def _fire(self) -> None:
        if self._cancelled:
            return
        try:
            self._run()
        except Exception:  # a failure ends neither the thread nor the task
            logger.exception("background task %s failed", self.name)
        finally:  # even without memory for the log line
            if self.period_ms > 0 and not self._cancelled:
                self._scheduler._add(self, self.period_ms)
            else:
                self._scheduler._forget(self)


class Scheduler:
    """Scheduler of tasks on one thread, by the injected clock and never early.

    With a virtual clock a test either starts the thread, which then follows the clock, or calls ``run_due`` after
    moving the clock, which runs the due tasks on the calling thread, in order.

    Threads: any; tasks run one after the other, so a long one delays the others.
    Source: ``KafkaScheduler``.
    """

    def __init__(self, clock: BaseClock | None = None, name: str = "kafka-scheduler") -> None:
        self._timer = Timer(clock, TICK_MS, WHEEL_SIZE)
        self._name = name
        self._lock = threading.Lock()
        self._tasks: set[ScheduledTask] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, name: str, run: Callable[[], object], *, delay_ms: int = 0, period_ms: int = 0) -> ScheduledTask:
        """Run ``run`` after ``delay_ms``, then ``period_ms`` after the end of each run if that is positive.

        Raises: ValueError for a negative delay or period; RuntimeError once closed.
        """
        if delay_ms < 0 or period_ms < 0:
            raise ValueError(f"delay_ms and period_ms of {name} must be >= 0, got {delay_ms} and {period_ms}")
        task = ScheduledTask(self, name, run, min(period_ms, MAX_DELAY_MS))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"scheduler {self._name} is closed")
            self._tasks.add(task)
            self._timer.add(min(delay_ms, MAX_DELAY_MS), task._fire)
        return task

    def start(self) -> None:
        """Start the thread, once. Raises: RuntimeError once closed, or if no thread can be started now."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"scheduler {self._name} is closed")
            if self._thread is None:
                short_name = self._name.removeprefix("kafka-").replace("-thread", "")
                thread = new_thread(self._name, self._loop, short_name)
                thread.start()
                self._thread = thread

    def run_due(self) -> None:
        """Run the due tasks on this thread; for tests with a virtual clock that have not called ``start``."""
        while self._timer.advance(0):
            pass

    @property
    def is_idle(self) -> bool:
        """True while no task is due or running."""
        return self._timer.is_idle

    @property
    def task_names(self) -> list[str]:
        """Names of the pending tasks, sorted."""
        with self._lock:
            return sorted(task.name for task in self._tasks)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Cancel all tasks and wait for a run in progress. Returns: False if it did not end in time."""
        with self._lock:
            self._closed = True
            self._tasks.clear()
            thread = self._thread
        self._timer.close()
        return thread is None or have_ended([thread], timeout_s)

    def _loop(self) -> None:
        while not self._closed:
            self._timer.advance(ADVANCE_MS)

    def _add(self, task: ScheduledTask, delay_ms: int) -> None:
        with self._lock:
            if not self._closed:
                self._timer.add(delay_ms, task._fire)

    def _forget(self, task: ScheduledTask) -> None:
        with self._lock:
            self._tasks.discard(task)
