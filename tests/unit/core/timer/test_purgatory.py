"""Purgatory: Kafka's vectors (PG-1 to PG-10), single completion, counts, purge, races and closing."""

import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker._core.timer.timing_wheel import Timer


class Operation(DelayedOperation):
    """Operation that completes once `completable` is set, and records its events."""

    def __init__(self, timeout_ms: int = 100_000, lock: Any = None) -> None:
        super().__init__(timeout_ms, lock)
        self.completable = False
        self.tries = 0
        self.events: list[str] = []

    def try_complete(self) -> bool:
        self.tries += 1
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.events.append("complete")

    def on_expiration(self) -> None:
        self.events.append("expire")


def purgatory_of(**settings: Any) -> tuple[VirtualClock, Purgatory]:
    clock = VirtualClock()
    return clock, Purgatory("mock", clock, **settings)


@pytest.fixture
def purgatory() -> Purgatory:
    """Return a purgatory whose clock does not advance."""
    return purgatory_of()[1]


def test_request_satisfaction(purgatory: Purgatory) -> None:
    """PG-1 to PG-4: a check completes an operation that has become completable once, and only under its own key."""
    assert purgatory.check_and_complete("test1") == 0
    first, second = Operation(), Operation()
    assert not purgatory.try_complete_else_watch(first, ["test1"])
    assert purgatory.check_and_complete("test1") == 0
    assert not purgatory.try_complete_else_watch(second, ["test2"])
    assert purgatory.check_and_complete("test2") == 0
    first.completable = True
    assert purgatory.check_and_complete("test1") == 1
    assert purgatory.check_and_complete("test1") == 0
    second.completable = True
    assert purgatory.check_and_complete("test2") == 1
    assert purgatory.check_and_complete("test2") == 0
    assert first.events == second.events == ["complete"]
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_request_expiry() -> None:
    """PG-5: an operation completes and expires at its time-out, not earlier, and others do not."""
    clock, purgatory = purgatory_of()
    first, second = Operation(20), Operation(200_000)
    assert not purgatory.try_complete_else_watch(first, ["test1"])
    assert not purgatory.try_complete_else_watch(second, ["test2"])
    clock.advance_ms(19)
    purgatory.advance(0)
    assert not first.is_completed
    clock.advance_ms(1)
    assert purgatory.advance(0)
    assert first.events == ["complete", "expire"]
    assert (second.is_completed, second.events, purgatory.delayed) == (False, [], 1)


def test_request_purge(purgatory: Purgatory) -> None:
    """PG-6 to PG-8: watched counts list entries until they are checked, delayed counts pending operations exactly."""
    first, second, third = Operation(), Operation(), Operation()
    for op, keys in ((first, [1]), (second, [1, 2]), (third, [1, 2, 3])):
        assert not purgatory.try_complete_else_watch(op, keys)
    assert (purgatory.delayed, purgatory.watched) == (3, 6)
    assert second.force_complete()
    assert (purgatory.delayed, purgatory.watched) == (2, 6)
    assert third.force_complete()
    assert (purgatory.delayed, purgatory.watched) == (1, 6)
    for key, watched in ((1, 4), (2, 2), (3, 1)):
        assert purgatory.check_and_complete(key) == 0
        assert purgatory.watched == watched
    assert not first.is_completed


def test_lock_is_held_in_both_tries() -> None:
    """PG-9: both calls of try_complete hold the operation's lock, and safe_try_complete is not called."""
    lock = threading.RLock()
    free: list[bool] = []

    class Locked(Operation):
        def try_complete(self) -> bool:
            thread = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
            thread.start()
            thread.join()
            return False

        def safe_try_complete(self) -> bool:
            raise AssertionError("not on this path")

    _, purgatory = purgatory_of()
    op = Locked(lock=lock)
    assert op.lock is lock
    assert not purgatory.try_complete_else_watch(op, ["key"])
    assert free == [False, False]
    assert lock.acquire(blocking=False)


def test_completable_at_once_is_not_watched(purgatory: Purgatory) -> None:
    """PG-10: an operation that completes in the first attempt gets no list entry and no time-out."""
    op = Operation()
    op.completable = True
    assert purgatory.try_complete_else_watch(op, ["key"])
    assert (purgatory.watched, purgatory.delayed, op.events, op.tries) == (0, 0, ["complete"], 1)


def test_completed_in_the_second_try_stays_listed() -> None:
    """An event between the attempts is not lost; the entry stays until a check, without a time-out."""

    class Late(Operation):
        def try_complete(self) -> bool:
            self.tries += 1
            return self.tries == 2 and self.force_complete()

    _, purgatory = purgatory_of()
    op = Late()
    assert purgatory.try_complete_else_watch(op, ["a", "b"])
    assert (purgatory.watched, purgatory.delayed, op.events) == (2, 0, ["complete"])
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.watched == 1


def test_key_given_twice_is_watched_twice(purgatory: Purgatory) -> None:
    """An operation with a duplicate key has two entries in the key's list and completes once."""
    op = Operation()
    purgatory.try_complete_else_watch(op, ["k", "k"])
    assert purgatory.watched == 2
    op.completable = True
    assert purgatory.check_and_complete("k") == 1
    assert (purgatory.watched, op.events) == (0, ["complete"])


def test_purge_starts_beyond_the_interval() -> None:
    """The reaper purges completed operations that are still listed only if they exceed the interval."""
    _, purgatory = purgatory_of(purge_interval=3)
    ops = [Operation() for _ in range(4)]
    for i, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, [i, "all"])
    for op in ops[:3]:
        op.force_complete()
    purgatory.advance(0)
    assert purgatory.watched == 8
    ops[3].force_complete()
    assert purgatory.watched == 8
    purgatory.advance(0)
    assert purgatory.watched == 0
    again = Operation()
    purgatory.try_complete_else_watch(again, ["x"])
    purgatory.advance(0)
    assert purgatory.watched == 1


def test_cancel_for_key_returns_and_forgets() -> None:
    """Cancelled operations are returned and freed, and neither complete nor expire."""
    clock, purgatory = purgatory_of()
    first, second, other = Operation(10), Operation(10), Operation(10)
    for op, keys in ((first, ["k"]), (second, ["k", "l"]), (other, ["l"])):
        purgatory.try_complete_else_watch(op, keys)
    assert purgatory.cancel_for_key("k") == [first, second]
    assert purgatory.cancel_for_key("k") == []
    assert (purgatory.watched, purgatory.delayed) == (2, 1)
    clock.advance_ms(1000)
    purgatory.advance(0)
    assert (first.events, second.events, other.events) == ([], [], ["complete", "expire"])
    seen = weakref.ref(first)
    del first, op
    gc.collect()
    assert seen() is None


def test_an_operation_that_is_cancelled_while_it_is_checked_is_freed(purgatory: Purgatory) -> None:
    class Cancelling(Operation):
        def try_complete(self) -> bool:
            return self.completable and not purgatory.cancel_for_key("k")

    op = Cancelling()
    purgatory.try_complete_else_watch(op, ["k"])
    op.completable = True
    assert purgatory.check_and_complete("k") == 0
    assert (purgatory.watched, purgatory.delayed) == (0, 0)
    seen = weakref.ref(op)
    del op
    gc.collect()
    assert seen() is None


def test_keys_of_one_hash_are_not_confused_by_cancel(purgatory: Purgatory) -> None:
    """hash(-1) == hash(-2): an operation under the other key stays watched and timed."""
    minus_one, minus_two = Operation(), Operation()
    purgatory.try_complete_else_watch(minus_one, [-1])
    purgatory.try_complete_else_watch(minus_two, [-2])
    assert purgatory.cancel_for_key(-1) == [minus_one]
    assert (purgatory.watched, purgatory.delayed) == (1, 1)
    minus_two.completable = True
    assert purgatory.check_and_complete(-2) == 1


def test_completion_frees_the_operation_at_once(purgatory: Purgatory) -> None:
    """A completed operation is freed before its list entry is purged, and a watched operation is kept alive."""
    op = Operation()
    seen = weakref.ref(op)
    purgatory.try_complete_else_watch(op, ["k"])
    del op
    gc.collect()
    alive = seen()
    assert alive is not None
    alive.force_complete()
    del alive
    assert seen() is None
    assert purgatory.watched == 1
    assert purgatory.check_and_complete("k") == 0


def test_many_keys_in_one_shard() -> None:
    """The table of a shard grows and finds every key, and empty lists are removed."""
    _, purgatory = purgatory_of(shards=1)
    ops = [Operation() for _ in range(500)]
    for i, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, [("topic", i), "all"])
    assert purgatory.watched == 1000
    for op in ops:
        op.completable = True
    assert purgatory.check_and_complete(("topic", 7)) == 1
    assert purgatory.check_and_complete("all") == 499
    assert purgatory.watched == 499
    assert sum(purgatory.check_and_complete(("topic", i)) for i in range(500)) == 0
    assert purgatory.watched == 0


def test_failures_of_an_operation_harm_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception on a checking or expiring thread is reported, and the other operations complete."""
    reported: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda info: reported.append(info.exc_type))

    class Broken(Operation):
        def try_complete(self) -> bool:
            self.tries += 1
            if self.tries > 2:
                raise ZeroDivisionError
            return False

        def on_complete(self) -> None:
            raise KeyError

    clock, purgatory = purgatory_of()
    broken, good = Broken(10), Operation(10)
    purgatory.try_complete_else_watch(broken, ["k"])
    purgatory.try_complete_else_watch(good, ["k"])
    good.completable = True
    assert purgatory.check_and_complete("k") == 1
    clock.advance_ms(10)
    assert purgatory.advance(0)
    assert reported == [ZeroDivisionError, KeyError]


def test_failing_first_try_is_the_callers(purgatory: Purgatory) -> None:
    """An exception of try_complete is raised to the caller, and the operation is not watched."""
    with pytest.raises(NotImplementedError):
        purgatory.try_complete_else_watch(DelayedOperation(10), ["k"])
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_shared_timer_stays_open() -> None:
    """Two purgatories on one timer count their own operations, and closing one does not affect the other."""
    clock = VirtualClock()
    timer = Timer(clock)
    first, second = Purgatory("a", timer=timer), Purgatory("b", timer=timer)
    one, two = Operation(5), Operation(5)
    first.try_complete_else_watch(one, ["k"])
    second.try_complete_else_watch(two, ["k"])
    assert (first.delayed, second.delayed, timer.size) == (1, 1, 2)
    first.close()
    assert (first.delayed, first.watched, timer.size, timer.closed) == (0, 0, 1, False)
    clock.advance_ms(5)
    assert timer.advance(0)
    assert (one.events, two.events) == ([], ["complete", "expire"])


def test_close_drops_and_ends_the_reaper(purgatory: Purgatory) -> None:
    """Close ends run_reaper, drops delayed operations without completing them, and rejects new ones."""
    op = Operation(10)
    seen = weakref.ref(op)
    purgatory.try_complete_else_watch(op, ["k"])
    reaper = threading.Thread(target=purgatory.run_reaper, daemon=True)
    reaper.start()
    purgatory.close()
    purgatory.close()
    reaper.join(20)
    assert not reaper.is_alive()
    assert (purgatory.closed, purgatory.watched, purgatory.delayed, op.events) == (True, 0, 0, [])
    with pytest.raises(RuntimeError, match="closed"):
        purgatory.try_complete_else_watch(Operation(), ["k"])
    assert op.force_complete()
    del op
    assert seen() is None


def test_dropped_purgatory_drops_its_operations() -> None:
    """A purgatory without references frees its operations without a close."""
    _, purgatory = purgatory_of()
    op = Operation()
    seen = weakref.ref(op)
    purgatory.try_complete_else_watch(op, ["k"])
    del op, purgatory
    gc.collect()
    assert seen() is None


def test_wrong_arguments_are_refused(purgatory: Purgatory) -> None:
    """An invalid argument raises, and no operation is watched."""
    with pytest.raises(ValueError, match="keys must not be empty"):
        purgatory.try_complete_else_watch(Operation(), [])
    with pytest.raises(TypeError):
        purgatory.try_complete_else_watch(Operation(), [[]])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        purgatory.try_complete_else_watch(None, ["k"])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        purgatory.check_and_complete([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_ms"):
        Operation(-1)
    with pytest.raises(TypeError, match="timeout_ms"):
        Operation(1.5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="__init__"):
        purgatory.try_complete_else_watch(Operation.__new__(Operation), ["k"])
    with pytest.raises(ValueError, match="not both"):
        Purgatory("x", VirtualClock(), timer=Timer())
    with pytest.raises(ValueError, match="shards"):
        Purgatory("x", shards=0)
    with pytest.raises(ValueError, match="purge_interval"):
        Purgatory("x", purge_interval=-1)
    op = Operation()
    purgatory.try_complete_else_watch(op, ["k"])
    with pytest.raises(RuntimeError, match="watched before"):
        purgatory.try_complete_else_watch(op, ["k"])
    assert purgatory.watched == 1


def test_watch_check_force_and_expire_at_once() -> None:
    """Under races every operation completes exactly once, and the counts end at zero."""
    clock, purgatory = purgatory_of(purge_interval=50, shards=4)
    per_thread, workers = 4_000, 2
    completions = [0] * workers
    open_now = threading.Event()
    stop = threading.Event()
    count_lock = threading.Lock()

    class Raced(DelayedOperation):
        def __init__(self, worker: int, number: int) -> None:
            super().__init__(number % 5)
            self.worker, self.number = worker, number

        def try_complete(self) -> bool:
            return open_now.is_set() and self.number % 3 != 0 and self.force_complete()

        def on_complete(self) -> None:
            with count_lock:
                completions[self.worker] += 1

    def watch(worker: int) -> None:
        for number in range(per_thread):
            op = Raced(worker, number)
            purgatory.try_complete_else_watch(op, [number % 7, "all"])
            if number % 4 == 0:
                op.force_complete()

    def check() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            (open_now.set if turn % 2 else open_now.clear)()
            purgatory.check_and_complete(turn % 7)

    def reap() -> None:
        while not stop.is_set() or purgatory.delayed:
            clock.advance_ms(1)
            purgatory.advance(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    watchers = [threading.Thread(target=watch, args=(i,)) for i in range(workers)]
    others = [threading.Thread(target=check), threading.Thread(target=reap)]
    for thread in (*watchers, *others):
        thread.start()
    for thread in watchers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    sys.setswitchinterval(interval)
    assert completions == [per_thread] * workers
    assert purgatory.delayed == 0
    for key in (*range(7), "all"):
        assert purgatory.check_and_complete(key) == 0
    assert purgatory.watched == 0
