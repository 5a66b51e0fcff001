"""The purgatory: keys, locks and operations that misbehave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker._core.timer.timing_wheel import Timer
from tests.support.bad_input import JUNK, NO_TIME, at_any_pace, attempt, storm


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False


class Failing(DelayedOperation):
    def try_complete(self) -> bool:
        raise ZeroDivisionError


class Unborn(DelayedOperation):
    def __init__(self) -> None:
        pass


class Liar:
    """A key that compares with nothing."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


ERRORS = (RuntimeError, ZeroDivisionError, AttributeError, NotImplementedError)
OPERATIONS = st.one_of(
    JUNK, st.builds(Waiting, st.integers(0, 2**61)), st.builds(Failing, st.just(5)), st.builds(Unborn),
    st.builds(DelayedOperation, st.just(1)),
)  # fmt: skip
KEYS = st.one_of(JUNK, st.lists(st.one_of(st.integers(0, 3), JUNK), max_size=4), st.just([Liar()]))
CALLS = {
    "try_complete_else_watch": [OPERATIONS, KEYS],
    "check_and_complete": [JUNK],
    "advance": [NO_TIME],
    "watched": [],
    "delayed": [],
    "closed": [],
}


@at_any_pace
@given(st.data())
def test_purgatory(data: st.DataObject) -> None:
    """Refused operations wait nowhere; a closed purgatory refuses with a RuntimeError and holds nothing."""
    attempt(lambda: Purgatory, data, [JUNK, JUNK, JUNK, JUNK, JUNK], ())
    clock = VirtualClock()
    purgatory = Purgatory("p", clock, shards=data.draw(st.integers(1, 3)))
    storm(data, purgatory, {**CALLS, "cancel_for_key": [JUNK]}, ERRORS)
    clock.advance_ms(data.draw(st.integers(0, 2**42)))
    purgatory.advance(0)
    purgatory.close()
    assert (purgatory.watched, purgatory.delayed) == (0, 0)
    storm(data, purgatory, {**CALLS, "advance": [JUNK], "close": [], "run_reaper": []}, ERRORS)
    assert purgatory.watched == 0


@at_any_pace
@given(st.data())
def test_operation(data: st.DataObject) -> None:
    """An operation in no purgatory, or in a closed one, completes once and never by itself."""
    attempt(lambda: DelayedOperation, data, [JUNK, JUNK], ())
    with Purgatory("p", VirtualClock()) as purgatory:
        operation = data.draw(
            st.one_of(st.builds(Waiting, st.just(5)), st.builds(Unborn), st.builds(Failing, st.just(0)))
        )
        if data.draw(st.booleans()):
            attempt(lambda: purgatory.try_complete_else_watch, data, [st.just(operation), st.just([1])], ERRORS)
        names = ("force_complete", "safe_try_complete", "try_complete", "is_completed", "timeout_ms", "lock")
        storm(data, operation, {**dict.fromkeys(names, ()), "__init__": [JUNK]}, ERRORS)
    assert operation.is_completed in (True, False)


def test_a_shared_timer_and_a_clock_exclude_each_other() -> None:
    """Both is a ValueError, something else a TypeError, and an operation is made once."""
    with pytest.raises(ValueError, match="not both"):
        Purgatory("p", VirtualClock(), timer=Timer())
    with pytest.raises(TypeError):
        Purgatory("p", timer=5)  # type: ignore[arg-type]
    operation = Waiting(5)
    with pytest.raises(RuntimeError, match="called before"):
        DelayedOperation.__init__(operation, 6)
    with pytest.raises(TypeError, match="lock"):
        Waiting(5, 3)  # type: ignore[arg-type]


def test_a_key_that_cannot_be_compared_loses_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure is reported, and every operation of the key is given back."""
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda why: reported.append(why.exc_type))
    with Purgatory("p", VirtualClock()) as purgatory:
        waiting = [Waiting(5) for _ in range(3)]
        for operation in waiting:
            assert not purgatory.try_complete_else_watch(operation, [Liar()])
        assert purgatory.cancel_for_key(Liar()) == waiting
        assert (purgatory.watched, purgatory.delayed) == (0, 0)
    assert reported == [ZeroDivisionError] * 3
