"""Idle checks of timers, schedulers and queues, and waiting for conditions."""

import threading

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.timing_wheel import Timer
from kbroker.handlers._native_apis import NativeApis
from kbroker.log.scheduler import Scheduler
from kbroker.testing import waiting
from kbroker.testing.waiting import wait_until


def test_a_timer_is_quiet_when_its_thread_waits() -> None:
    """A timer is idle only while a thread waits in the timer, no callback runs, and nothing is due."""
    clock, inside, leave = VirtualClock(), threading.Event(), threading.Event()
    timer = Timer(clock, 1, 20)
    assert not timer.is_idle

    def callback() -> None:
        inside.set()
        leave.wait(10)

    timer.add(5, callback)

    def advance() -> None:
        while not timer.closed:
            timer.advance(60_000)

    thread = threading.Thread(target=advance)
    thread.start()
    wait_until(lambda: timer.is_idle)
    clock.advance_ms(5)
    assert inside.wait(10)
    assert not timer.is_idle
    leave.set()
    wait_until(lambda: timer.is_idle)
    timer.close()
    thread.join()
    assert timer.is_idle


def test_a_scheduler_is_quiet_after_its_tasks() -> None:
    """A scheduler is idle only after the tasks that are due."""
    clock, ran = VirtualClock(), []
    scheduler = Scheduler(clock, "tasks")
    scheduler.schedule("once", lambda: ran.append(1), delay_ms=100)
    scheduler.start()
    wait_until(lambda: scheduler.is_idle)
    assert ran == []
    clock.advance_ms(100)
    wait_until(lambda: scheduler.is_idle)
    assert ran == [1]
    scheduler.close()


def test_a_queue_counts_who_waits() -> None:
    """The queue has a sleeper while a thread waits, and none after it is closed."""
    queue = Queue(10)
    assert queue.sleepers == 0
    requests, python = Queue(10), queue
    native_apis = NativeApis(None, requests, python, 1)
    thread = threading.Thread(target=native_apis.run_handler)
    thread.start()
    wait_until(lambda: requests.sleepers == 1)
    requests.close()
    thread.join()
    assert requests.sleepers == 0
    native_apis.close()


@pytest.mark.parametrize("key", [-1, 128, 10**6])
def test_only_api_keys_can_be_intercepted(key: int) -> None:
    """A key outside 0 to 127 is refused, even after valid keys."""
    native_apis = NativeApis(None, Queue(10), Queue(10), 1)
    native_apis.intercept([0, 127])
    with pytest.raises(ValueError, match="0 to 127"):
        native_apis.intercept([1, key])
    with pytest.raises(TypeError):
        native_apis.intercept(["Produce"])  # type: ignore[list-item]
    native_apis.intercept([])
    native_apis.close()


def test_waiting_ends_with_the_condition() -> None:
    """Waiting ends when the condition is true; a time-out error names the condition."""
    asked = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    wait_until(third_time)
    assert len(asked) == 3
    with pytest.raises(TimeoutError, match="the moon did not come true within 0 s"):
        wait_until(lambda: False, 0, "the moon")
    assert waiting.LONGEST_PAUSE_S <= 0.01
