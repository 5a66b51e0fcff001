"""The timer: delays, callbacks and clocks of any kind, open and closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.timing_wheel import Timer, TimerTask
from tests.support.bad_input import JUNK, NO_TIME, at_any_pace, attempt, refused, storm

# What a callback raises is told to sys.unraisablehook, and is no matter of the arguments: these can be called.
CALLBACKS = st.one_of(st.just(int), JUNK.filter(lambda value: value is not len))
CALLS = {
    "add": [JUNK, CALLBACKS],
    "advance": [NO_TIME],
    "size": [],
    "closed": [],
    "__len__": [],
    "_levels": [],
    "_next_delay_ms": [],
}


@at_any_pace
@given(st.data())
def test_timer(data: st.DataObject) -> None:
    """A refused task leaves nothing behind; a closed timer refuses with a RuntimeError."""
    attempt(lambda: Timer, data, [JUNK, JUNK, JUNK], ())
    clock = VirtualClock()
    timer = Timer(clock, data.draw(st.integers(1, 1000)), data.draw(st.integers(2, 30)))
    storm(data, timer, CALLS)
    clock.advance_ms(data.draw(st.integers(0, 2**43)))
    timer.advance(0)
    timer.close()
    assert timer.size == 0
    storm(data, timer, {**CALLS, "advance": [JUNK], "close": []}, (RuntimeError,))


@at_any_pace
@given(st.data())
def test_task(data: st.DataObject) -> None:
    """A task of no timer does nothing; one can be cancelled once, whatever else is called."""
    with pytest.raises(TypeError):
        TimerTask()
    orphan = TimerTask.__new__(TimerTask)
    timer = Timer(VirtualClock())
    task = timer.add(5, int)
    for thing in (orphan, task):
        storm(data, thing, {"cancel": [], "is_pending": [], "due_ms": [], "__init__": []})
    timer.close()
    assert not task.cancel()
    assert not orphan.cancel()


def test_limits() -> None:
    """The limits themselves are told by a ValueError, another type by a TypeError."""
    for tick, slots in ((0, 20), (86_400_001, 20), (1, 1), (1, 65537), (2**80, 20)):
        assert refused(Timer, None, tick, slots) is ValueError
    assert refused(Timer, "clock") is TypeError
    assert refused(Timer, None, 1.0) is TypeError
