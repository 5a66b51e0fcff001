"""Clocks refuse what is no time, and never leave their scales."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import BaseClock, SystemClock, VirtualClock
from tests.support.bad_input import JUNK, at_any_pace, attempt, storm

READS = dict.fromkeys(("now_ns", "now_ms", "epoch_ms", "wall_ms", "is_virtual"), ())


@at_any_pace
@given(st.data())
def test_virtual_clock(data: st.DataObject) -> None:
    """A wrong start or step is a TypeError or a ValueError; time never runs backwards."""
    clock = attempt(lambda: VirtualClock, data, [JUNK, JUNK], ()) or VirtualClock()
    before = clock.now_ns()
    storm(data, clock, {**READS, "advance_ms": [JUNK], "advance_ns": [JUNK]})
    assert clock.now_ns() >= before
    assert -(2**63) <= clock.epoch_ms() < 2**63


@at_any_pace
@given(st.data())
def test_clocks_without_settings(data: st.DataObject) -> None:
    """The system clock takes no arguments, and the base class has no time."""
    storm(data, SystemClock(), READS)
    assert attempt(lambda: SystemClock, data, [], ()) is not None
    for name in READS:
        with pytest.raises(TypeError, match="has no time"):
            operator.methodcaller(name)(BaseClock()) if name != "is_virtual" else BaseClock().is_virtual
