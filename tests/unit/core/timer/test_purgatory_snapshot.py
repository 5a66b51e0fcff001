"""Snapshots of a purgatory: delayed operations with exact times, and no reference beyond the snapshot."""

import gc
import threading
import weakref

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from tests.support.fixtures import fixture_of


class Waiting(DelayedOperation):
    """Operation that completes once it is due."""

    is_due = False

    def try_complete(self) -> bool:
        return self.is_due and self.force_complete()


clock = fixture_of(VirtualClock, 1_700_000_000_000)


@pytest.fixture
def purgatory(clock: VirtualClock) -> Purgatory:
    return Purgatory("test", clock)


def test_operations_with_keys_age_and_time_left(clock: VirtualClock, purgatory: Purgatory) -> None:
    first, second = Waiting(1000), Waiting(5000)
    purgatory.try_complete_else_watch(first, [("t", 0), ("t", 1)])
    clock.advance_ms(300)
    purgatory.try_complete_else_watch(second, ["other"])
    clock.advance_ms(200)
    taken = purgatory.snapshot()
    assert (taken["watched"], taken["delayed"], taken["is_truncated"]) == (3, 2, False)
    by_operation = {one.pop("operation"): one for one in taken["operations"]}
    assert by_operation == {
        first: {"keys": (("t", 0), ("t", 1)), "timeout_ms": 1000, "age_ms": 500, "time_left_ms": 500},
        second: {"keys": ("other",), "timeout_ms": 5000, "age_ms": 200, "time_left_ms": 4800},
    }
    clock.advance_ms(500)
    purgatory.advance(0)
    assert [one["operation"] for one in purgatory.snapshot()["operations"]] == [second]
    second.is_due = True
    purgatory.check_and_complete("other")
    assert purgatory.snapshot()["operations"] == []


def test_a_limit_is_kept_and_said(purgatory: Purgatory) -> None:
    operations = [Waiting(1000 + n) for n in range(10_000)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
    taken = purgatory.snapshot(100)
    assert (len(taken["operations"]), taken["is_truncated"], taken["delayed"]) == (100, True, 10_000)
    taken = purgatory.snapshot(10_000)
    assert (len(taken["operations"]), taken["is_truncated"]) == (10_000, False)


def test_a_list_that_is_long_is_cut(purgatory: Purgatory) -> None:
    """A snapshot holds the lock of a long list only for a limited number of entries."""
    for _ in range(1000):
        purgatory.try_complete_else_watch(Waiting(1000), ["one"])
    taken = purgatory.snapshot(1000)
    assert taken["is_truncated"]
    assert 200 < len(taken["operations"]) < 1000
    assert taken["watched"] == 1000


@pytest.mark.parametrize("wrong", [0, -1, 100_001])
def test_a_limit_has_bounds(purgatory: Purgatory, wrong: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        purgatory.snapshot(wrong)
    with pytest.raises(TypeError):
        purgatory.snapshot("1")  # type: ignore[arg-type]


def test_nothing_lives_longer_for_a_look(purgatory: Purgatory) -> None:
    operation = Waiting(1000)
    gone = weakref.ref(operation)
    purgatory.try_complete_else_watch(operation, ["a"])
    taken = purgatory.snapshot()
    purgatory.cancel_for_key("a")
    del taken, operation
    gc.collect()
    assert gone() is None


def test_looks_beside_completions_and_cancels(purgatory: Purgatory) -> None:
    """Beside any number of snapshots every operation is completed or cancelled once, and freed."""
    over = threading.Event()
    looks = []

    def look() -> None:
        while not over.is_set():
            looks.append(len(purgatory.snapshot(50)["operations"]))

    alive: weakref.WeakSet[Waiting] = weakref.WeakSet()
    looker = threading.Thread(target=look)
    looker.start()
    completed = cancelled = 0
    try:
        for round_number in range(60):
            made = [Waiting(100_000) for _ in range(40)]
            alive.update(made)
            for number, operation in enumerate(made):
                purgatory.try_complete_else_watch(operation, [number % 7, number % 5 + 100])
                operation.is_due = round_number % 2 == 0
            del operation
            for key in (*range(7), *range(100, 105)):
                if round_number % 2 == 0:
                    completed += purgatory.check_and_complete(key)
                else:
                    cancelled += len(set(map(id, purgatory.cancel_for_key(key))))
            del made
    finally:
        over.set()
        looker.join(20)
    gc.collect()
    assert completed == 30 * 40
    assert len(alive) == 0
    assert purgatory.delayed == 0
    assert looks
