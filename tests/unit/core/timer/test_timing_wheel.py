"""Timer: Kafka's vectors (TM-1 to TM-9), no early expiry, exact count, order, waits and closing."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kbroker._core.clock import SystemClock, VirtualClock
from kbroker._core.timer.timing_wheel import Timer, TimerTask
from tests.support.errors import raising

START_MS = 0


def nothing() -> None:
    pass


def timer_at(start_ms: int, wheel_size: int = 20, tick_ms: int = 1) -> tuple[VirtualClock, Timer]:
    clock = VirtualClock(start_ms=start_ms)
    return clock, Timer(clock, tick_ms, wheel_size)


def test_already_expired_tasks_run_in_one_advance() -> None:
    """TM-1: tasks with negative delays are due at once, and one advance runs them all."""
    _, timer = timer_at(START_MS, wheel_size=3)
    ran: list[int] = []
    for delay_ms in range(-5, 0):
        timer.add(delay_ms, lambda delay_ms=delay_ms: ran.append(delay_ms))  # type: ignore[misc]
    assert ran == []
    assert timer.advance(0)
    assert sorted(ran) == [-5, -4, -3, -2, -1]
    assert not timer.advance(0)


DELAYS_MS = [*range(5), *(ms for ms in range(10, 100) for _ in range(2)), *range(100, 500)]


def test_every_task_runs_exactly_once() -> None:
    """TM-2: 585 tasks over several levels of a three-slot wheel run once each, at their millisecond."""
    clock, timer = timer_at(START_MS, wheel_size=3)
    ran: list[tuple[int, int]] = []
    for task_id, delay_ms in enumerate(DELAYS_MS):
        timer.add(delay_ms, lambda task_id=task_id: ran.append((task_id, clock.now_ms())))  # type: ignore[misc]
    assert timer.size == len(DELAYS_MS) == 585
    for _ in range(500):
        while timer.advance(0):
            pass
        clock.advance_ms(1)
    assert ran == [(i, ms) for ms, i in sorted((ms, i) for i, ms in enumerate(DELAYS_MS))]
    assert timer.size == 0


def test_every_task_runs_on_the_real_clock() -> None:
    """TM-2 in real time: the wait ends at every bucket, and no task runs before its delay."""
    clock = SystemClock()
    timer = Timer(clock, wheel_size=3)
    late_ns: list[int] = []
    for delay_ms in [*range(5), *range(10, 60)]:
        due_ns = clock.now_ns() + delay_ms * 1_000_000
        timer.add(delay_ms, lambda due_ns=due_ns: late_ns.append(clock.now_ns() - due_ns))  # type: ignore[misc]
    while timer.size:
        timer.advance(2000)
    assert len(late_ns) == 55
    assert min(late_ns) >= 0


def test_delay_of_a_bucket_shrinks_with_time() -> None:
    """TM-3: a bucket 10 s ahead is 5 s ahead when 5 s have passed."""
    clock, timer = timer_at(START_MS, wheel_size=20_000)
    timer.add(10_000, nothing)
    assert timer._next_delay_ms == 10_000
    clock.advance_ms(5_000)
    assert timer._next_delay_ms == 5_000
    clock.advance_ms(6_000)
    assert timer._next_delay_ms == 0


@pytest.mark.parametrize(
    ("due_ms", "level", "slot", "bucket_ms"),
    [
        pytest.param(19, 1, 19, 19, id="TM-4"),
        pytest.param(20, 2, 1, 20, id="TM-5 first"),
        pytest.param(399, 2, 19, 380, id="TM-5 last"),
        pytest.param(400, 3, 1, 400, id="TM-6 level 3"),
        pytest.param(8000, 4, 1, 8000, id="TM-6 level 4"),
        pytest.param(1, 1, 1, 1, id="first slot in use"),
    ],
)
def test_task_lands_in_its_level_and_slot(due_ms: int, level: int, slot: int, bucket_ms: int) -> None:
    """TM-4 to TM-6: with tick 1 and 20 slots from time 0 a task is in Kafka's bucket, and runs at its time."""
    clock, timer = timer_at(0)
    ran: list[int] = []
    timer.add(due_ms, lambda: ran.append(clock.now_ms()))
    assert timer._levels() == [(level, slot, bucket_ms, due_ms)]
    clock.advance_ms(due_ms - 1)
    timer.advance(0)
    assert ran == []
    clock.advance_ms(1)
    timer.advance(0)
    assert ran == [due_ms]


def test_overflow_bucket_is_inserted_again_into_a_finer_wheel() -> None:
    """TM-7: from 390, a task at 415 is in level 2 until 400 and then in level 1, slot 15."""
    clock, timer = timer_at(390)
    timer.add(5, nothing)
    assert timer._levels() == [(1, 15, 395, 395)]
    timer.add(25, nothing)
    assert timer._clocks == [390, 380]
    assert timer._levels() == [(1, 15, 395, 395), (2, 0, 400, 415)]
    clock.advance_ms(5)
    assert timer.advance(0)
    clock.advance_ms(5)
    assert timer.advance(0)
    assert timer._clocks == [400, 400]
    assert timer._levels() == [(1, 15, 415, 415)]
    clock.advance_ms(14)
    assert not timer.advance(0)
    clock.advance_ms(1)
    assert timer.advance(0)
    assert timer.size == 0


def test_second_task_of_a_slot_makes_no_second_offer() -> None:
    """TM-8: the delay queue holds buckets, not tasks."""
    _, timer = timer_at(0)
    timer.add(7, nothing)
    assert (timer._offers, timer._queued_buckets) == (1, 1)
    timer.add(7, nothing)
    assert (timer._offers, timer._queued_buckets) == (1, 1)
    timer.add(8, nothing)
    assert (timer._offers, timer._queued_buckets) == (2, 2)


def test_due_task_is_refused_by_the_wheel_and_runs_at_once() -> None:
    """TM-9: a task due before the next tick is in no bucket, and runs in the next advance instead of when added."""
    clock, timer = timer_at(0)
    ran: list[int] = []
    task = timer.add(0, lambda: ran.append(1))
    assert timer._levels() == [(0, 0, -1, 0)]
    assert (timer._offers, timer.size, ran, task.is_pending) == (0, 1, [], True)
    assert timer.advance(0)
    assert (timer.size, ran, task.is_pending) == (0, [1], False)
    assert clock.now_ms() == 0


def test_bucket_is_offered_again_in_its_next_round() -> None:
    """An emptied slot is queued again for a later time."""
    clock, timer = timer_at(0)
    timer.add(7, nothing)
    clock.advance_ms(7)
    assert timer.advance(0)
    timer.add(19, nothing)
    timer.add(20, nothing)
    assert [row[:3] for row in timer._levels()] == [(1, 6, 26), (2, 1, 20)]
    assert timer._offers == 3


def test_due_time_between_ticks_counts_as_the_later_tick() -> None:
    """With a tick of 10 ms no task runs early: tasks for 11 ms and 15 ms run at 20 ms."""
    clock, timer = timer_at(0, tick_ms=10)
    ran: list[tuple[int, int]] = []
    for delay_ms in (9, 10, 11, 15, 20, 21):
        timer.add(delay_ms, lambda delay_ms=delay_ms: ran.append((delay_ms, clock.now_ms())))  # type: ignore[misc]
    for _ in range(40):
        clock.advance_ms(1)
        timer.advance(0)
    assert ran == [(9, 10), (10, 10), (11, 20), (15, 20), (20, 20), (21, 30)]


def test_started_millisecond_does_not_count() -> None:
    """A delay of 1 ms that starts at 0.1 ms is not over at 1.0 ms."""
    clock, timer = timer_at(0)
    clock.advance_ns(100_000)
    task = timer.add(1, nothing)
    assert task.due_ms == 2
    clock.advance_ns(900_000)
    timer.advance(0)
    assert task.is_pending
    clock.advance_ms(1)
    timer.advance(0)
    assert not task.is_pending


def test_cancel_unlinks_at_once() -> None:
    """A cancelled task is removed from count and bucket at once, drops its callback, and never runs."""

    class Callback:
        def __call__(self) -> None:
            raise AssertionError("ran")

    clock, timer = timer_at(0)
    callback = Callback()
    seen = weakref.ref(callback)
    tasks = [timer.add(delay_ms, callback) for delay_ms in (0, 5, 5, 5, 100)]
    del callback
    for left, task in zip((4, 3, 2, 1, 0), (tasks[2], tasks[0], tasks[1], tasks[4], tasks[3]), strict=True):
        assert task.cancel() is True
        assert task.cancel() is False
        assert timer.size == left == len(timer._levels())
    assert seen() is None
    clock.advance_ms(1000)
    assert timer.advance(0)  # the emptied buckets still expire, which costs one wake-up
    assert not timer.advance(0)


def test_cancel_after_running_says_so() -> None:
    """A task that has run, or whose callback is running, cannot be cancelled."""
    _, timer = timer_at(0)
    responses: list[bool] = []
    task = timer.add(0, lambda: responses.append(task.cancel()))
    timer.advance(0)
    assert (responses, task.cancel(), task.is_pending) == ([False], False, False)


def test_due_task_can_be_cancelled_by_an_earlier_one() -> None:
    """A task that is due but not started counts as pending and can be cancelled."""
    clock, timer = timer_at(0)
    ran: list[Any] = []
    timer.add(3, lambda: ran.append((timer.size, second.cancel(), timer.size)))
    second = timer.add(3, lambda: ran.append("second"))
    third = timer.add(3, lambda: ran.append("third"))
    clock.advance_ms(3)
    timer.advance(0)
    assert ran == [(2, True, 1), "third"]
    assert not third.is_pending


def test_tasks_of_a_tick_run_in_the_order_they_were_added() -> None:
    """A bucket is first in, first out, and a callback that adds a due task does not prolong the advance."""
    clock, timer = timer_at(0)
    ran: list[int] = []

    def again() -> None:
        ran.append(-1)
        timer.add(0, again)

    for i in range(5):
        timer.add(2, lambda i=i: ran.append(i))  # type: ignore[misc]
    timer.add(2, again)
    clock.advance_ms(2)
    assert timer.advance(0)
    assert ran == [0, 1, 2, 3, 4, -1]
    assert timer.advance(0)
    assert ran == [0, 1, 2, 3, 4, -1, -1]


def test_far_delays_need_few_levels_and_do_not_overflow() -> None:
    """Any delay is accepted; beyond the clock's range it is the largest time, which is never reached."""
    clock, timer = timer_at(0, wheel_size=2)
    tasks = [timer.add(1 << shift, nothing) for shift in range(80)]
    assert timer.size == 80
    assert tasks[-1].due_ms == ((1 << 63) - 1) // 1_000_000
    clock.advance_ms(1 << 40)
    timer.advance(0)
    assert timer.size == 39
    for task in tasks:
        task.cancel()
    assert timer.size == 0


def test_long_idle_time_costs_only_hops() -> None:
    """The wheel's clock lags while no task is queued, and a task added then is neither early nor lost."""
    clock, timer = timer_at(0)
    clock.advance_ms(123_456)
    ran: list[int] = []
    timer.add(3, lambda: ran.append(clock.now_ms()))
    timer.add(0, lambda: ran.append(clock.now_ms()))
    assert timer._clocks[0] == 0
    timer.advance(0)
    assert ran == [123_456]
    clock.advance_ms(2)
    timer.advance(0)
    assert ran == [123_456]
    clock.advance_ms(1)
    timer.advance(0)
    assert ran == [123_456, 123_459]


def test_failing_callback_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception is reported through sys.unraisablehook, and the next task runs."""
    failures: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda info: failures.append(info.exc_type))
    _, timer = timer_at(0)
    ran: list[int] = []
    timer.add(0, lambda: 1 // 0)
    timer.add(0, lambda: ran.append(1))
    assert timer.advance(0)
    assert (failures, ran) == ([ZeroDivisionError], [1])


def test_interrupt_leaves_the_rest_for_the_next_advance() -> None:
    """KeyboardInterrupt in a callback ends the advance, and the remaining due tasks stay pending."""
    _, timer = timer_at(0)
    ran: list[int] = []
    timer.add(0, raising(KeyboardInterrupt))
    timer.add(0, lambda: ran.append(1))
    with pytest.raises(KeyboardInterrupt):
        timer.advance(0)
    assert (timer.size, ran) == (1, [])
    assert timer.advance(0)
    assert ran == [1]


def waiting(timer: Timer, timeout_ms: int) -> tuple[threading.Thread, list[bool]]:
    """Start a thread inside timer.advance, and return it with the list of its result."""
    responses: list[bool] = []
    thread = threading.Thread(target=lambda: responses.append(timer.advance(timeout_ms)), daemon=True)
    thread.start()
    return thread, responses


@pytest.mark.parametrize(
    ("wake", "expected", "ran_expected"),
    [
        (lambda clock, timer: clock.advance_ms(1000), True, ["far"]),
        (lambda clock, timer: timer.add(0, nothing), True, []),
        (lambda clock, timer: timer.close(), False, []),
    ],
    ids=["virtual time", "a due task", "close"],
)
def test_the_waiter_is_woken(
    wake: Callable[[VirtualClock, Timer], object], expected: bool, ran_expected: list[str]
) -> None:
    """An advance of the clock beyond a bucket, a task that is due when added, and close end the wait at once."""
    clock, timer = timer_at(0)
    ran: list[str] = []
    timer.add(1000, lambda: ran.append("far"))
    thread, responses = waiting(timer, 60_000)
    wake(clock, timer)
    thread.join(20)
    assert responses == [expected]
    assert ran == ran_expected


def test_time_out_on_virtual_time() -> None:
    """The waiter's time-out follows the virtual clock."""
    clock, timer = timer_at(0)
    timer.add(3_600_000, nothing)  # the thread may begin its wait late, but before the bucket of an hour is due
    thread, responses = waiting(timer, 500)
    while thread.is_alive():
        clock.advance_ms(100 if clock.now_ms() < 3_000_000 else 0)
        thread.join(0.001)
    assert responses == [False]
    assert timer.size == 1


def test_earlier_bucket_wakes_the_waiter_on_real_time() -> None:
    """A new earlier bucket shortens a wait in progress."""
    timer = Timer()
    timer.add(3_600_000, nothing)
    ran = threading.Event()
    thread, responses = waiting(timer, 3_600_000)
    timer.add(1, ran.set)
    thread.join(20)
    assert responses == [True]
    while not ran.is_set():  # on a slow machine the first advance only moved the task down from an upper wheel
        assert timer.advance(20_000)
    timer.close()


def test_closed_timer_refuses_and_drops() -> None:
    """After close, add raises, advance returns False, and pending tasks and their callbacks are freed."""

    class Callback:
        def __call__(self) -> None:
            raise AssertionError("ran")

    _, timer = timer_at(0)
    callback = Callback()
    seen = weakref.ref(callback)
    tasks = [timer.add(delay_ms, callback) for delay_ms in (0, 5, 500)]
    del callback
    timer.close()
    timer.close()
    assert seen() is None
    assert (timer.closed, timer.size, timer.advance(0)) == (True, 0, False)
    assert [task.cancel() for task in tasks] == [False] * 3
    with pytest.raises(RuntimeError, match="closed"):
        timer.add(1, nothing)


def test_dropped_timer_drops_its_tasks() -> None:
    """A timer without references frees its pending tasks; a task that outlives it can still be cancelled."""

    class Callback:
        def __call__(self) -> None:
            pass

    _, timer = timer_at(0)
    callback = Callback()
    seen = weakref.ref(callback)
    task = timer.add(5, callback)
    timer.add(50, callback)
    del timer, callback
    gc.collect()
    assert seen() is None
    assert (task.is_pending, task.cancel()) == (False, False)


def test_wrong_arguments_are_refused() -> None:
    """Wrong types and ranges raise and change nothing."""
    timer = Timer(VirtualClock())
    for delay_ms in (1.5, "1", None):
        with pytest.raises(TypeError, match="delay_ms must be an integer"):
            timer.add(delay_ms, nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callback must be callable"):
        timer.add(1, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout_ms"):
        timer.advance(0.1)  # type: ignore[arg-type]
    assert timer.size == 0
    for tick_ms, wheel_size in ((0, 20), (-1, 20), (1 << 70, 20), (1, 1), (1, 0), (1, 1 << 40)):
        with pytest.raises(ValueError, match="must be between"):
            Timer(None, tick_ms, wheel_size)
    with pytest.raises(TypeError, match="clock must be"):
        Timer(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is made by"):
        TimerTask()
    bare = TimerTask.__new__(TimerTask)
    assert (bare.cancel(), bare.is_pending) == (False, False)


def test_threads_add_cancel_and_advance_at_once() -> None:
    """Under races each task either runs once or is cancelled with True, and the count ends at zero."""
    clock = VirtualClock()
    timer = Timer(clock)
    stop = threading.Event()
    per_thread, workers = 10_000, 3
    ran = [0] * workers
    cancelled = [0] * workers
    run_lock = threading.Lock()

    def work(worker: int) -> None:
        def count() -> None:
            with run_lock:
                ran[worker] += 1

        kept: list[TimerTask] = []
        for i in range(per_thread):
            kept.append(timer.add((i * 7 + worker) % 50, count))
            if i % 3:
                cancelled[worker] += kept.pop(i % len(kept)).cancel()

    def drive() -> None:
        while not stop.is_set() or timer.size:
            clock.advance_ms(1)
            timer.advance(0)

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    drivers = [threading.Thread(target=drive) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in (*drivers, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    for thread in drivers:
        thread.join()
    sys.setswitchinterval(switch_interval)
    assert timer.size == 0
    assert [r + c for r, c in zip(ran, cancelled, strict=True)] == [per_thread] * workers
