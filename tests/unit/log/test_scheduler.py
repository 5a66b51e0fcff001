"""Background tasks run by name at times of the clock, and a failed task does not stop the others."""

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log import scheduler as scheduler_module
from kbroker.log.scheduler import Scheduler
from tests.support.errors import raising
from tests.support.fixtures import fixture_of

clock = fixture_of(VirtualClock)


@pytest.fixture
def scheduler(clock: VirtualClock) -> Iterator[Scheduler]:
    scheduler = Scheduler(clock)
    yield scheduler
    assert scheduler.close()


def test_a_task_runs_when_due_and_not_before(clock: VirtualClock, scheduler: Scheduler) -> None:
    """A one-shot task runs once, at most a tick late."""
    runs = []
    scheduler.schedule("once", lambda: runs.append(clock.now_ms()), delay_ms=1000)
    clock.advance_ms(999)
    scheduler.run_due()
    assert runs == []
    clock.advance_ms(11)
    scheduler.run_due()
    assert len(runs) == 1
    clock.advance_ms(100_000)
    scheduler.run_due()
    assert len(runs) == 1
    assert scheduler.task_names == []


def test_a_periodic_task_runs_again_after_each_period(clock: VirtualClock, scheduler: Scheduler) -> None:
    """A periodic task runs once a period, and once after a clock jump of many periods."""
    runs = []
    scheduler.schedule("often", lambda: runs.append(1), delay_ms=100, period_ms=1000)
    for _ in range(5):
        clock.advance_ms(1010)
        scheduler.run_due()
    assert len(runs) == 5
    clock.advance_ms(3_600_000)
    scheduler.run_due()
    assert len(runs) == 6
    assert scheduler.task_names == ["often"]


def test_a_thread_that_cannot_start_is_started_later(
    clock: VirtualClock, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that fails, because the system has no thread to give, can be repeated."""
    has_run = threading.Event()
    scheduler.schedule("once", has_run.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            scheduler.start()
    scheduler.start()
    assert has_run.wait(10)


def test_a_failing_task_is_logged_and_runs_again(
    clock: VirtualClock, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is logged with the name of its task, and all tasks run again."""
    runs = []

    def fail() -> None:
        runs.append("bad")
        raise OSError("disk on fire")

    scheduler.schedule("bad-task", fail, delay_ms=10, period_ms=50)
    scheduler.schedule("good-task", lambda: runs.append("good"), delay_ms=10, period_ms=50)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            clock.advance_ms(100)
            scheduler.run_due()
    assert sorted(runs) == ["bad", "bad", "good", "good"]
    assert "bad-task" in caplog.text
    assert "disk on fire" in caplog.text


def test_a_failing_task_without_memory_for_its_line(
    clock: VirtualClock, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task runs again."""
    runs: list[int] = []

    def fail() -> None:
        runs.append(clock.now_ms())
        raise MemoryError

    scheduler.schedule("task", fail, period_ms=50)
    monkeypatch.setattr(scheduler_module.logger, "exception", raising(MemoryError))
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for _ in range(2):
        clock.advance_ms(100)
        scheduler.run_due()
    assert len(runs) == 2


def test_a_cancelled_task_does_not_run(clock: VirtualClock, scheduler: Scheduler) -> None:
    """A cancelled task does not run again, a task that cancels itself included."""
    runs = []
    task = scheduler.schedule("never", lambda: runs.append("never"), delay_ms=100, period_ms=100)
    task.cancel()
    own: Any = scheduler.schedule("self", lambda: (runs.append("self"), own.cancel()), delay_ms=100, period_ms=100)  # type: ignore[func-returns-value]
    for _ in range(3):
        clock.advance_ms(200)
        scheduler.run_due()
    assert (runs, scheduler.task_names) == (["self"], [])


def test_the_thread_follows_a_virtual_clock(clock: VirtualClock, scheduler: Scheduler) -> None:
    """The scheduler thread runs a task when the clock is advanced."""
    ran = threading.Event()
    names = []
    scheduler.schedule("wake", lambda: (names.append(threading.current_thread().name), ran.set()), delay_ms=5000)  # type: ignore[func-returns-value]
    scheduler.start()
    assert not ran.is_set()
    clock.advance_ms(5020)
    assert ran.wait(10)
    assert names == ["kafka-scheduler"]


def test_wrong_times_and_a_closed_scheduler_are_refused(clock: VirtualClock) -> None:
    """A negative time raises ValueError, and a closed scheduler refuses tasks."""
    scheduler = Scheduler(clock, "mine")
    for wrong in ({"delay_ms": -1}, {"period_ms": -1}):
        with pytest.raises(ValueError, match="of bad must be >= 0"):
            scheduler.schedule("bad", list, **wrong)
    runs = []
    scheduler.schedule("late", lambda: runs.append(1), delay_ms=10)
    assert scheduler.close()
    assert scheduler.close()
    clock.advance_ms(1000)
    with pytest.raises(RuntimeError, match="mine is closed"):
        scheduler.schedule("more", list)
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.start()
    assert runs == []


def test_a_delay_for_ever_is_no_overflow(clock: VirtualClock, scheduler: Scheduler) -> None:
    """The largest configurable delay is accepted."""
    scheduler.schedule("never", lambda: pytest.fail("ran"), delay_ms=2**63 - 1, period_ms=2**63 - 1)
    clock.advance_ms(10**12)
    scheduler.run_due()
    assert scheduler.task_names == ["never"]
