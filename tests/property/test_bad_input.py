"""Any input results in a documented error, never in a crash, and never uses memory beyond a limit.

The table is in `bad_input_rows`, a module for each part of the source tree; a new parser or class requires a row there.
"""

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.bad_input_rows import core, metrics, network, protocol
from tests.support.bad_input import CAN_BOUND, MIB, Call, Refusal, Row, at_any_pace

ROOMS = (core, metrics, network, protocol)
ROWS: list[Row] = [row for room in ROOMS for row in room.ROWS]
REFUSALS: list[tuple[str, Refusal]] = [
    (f"{name}-{n}", refusal)
    for room in ROOMS
    for name, group in room.REFUSALS.items()
    for n, refusal in enumerate(group)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@at_any_pace
@given(st.data())
def test_row(row: Row, data: st.DataObject) -> None:
    """Any arguments in any order of calls raise only the errors of the row and respect its memory limit."""
    row.run(data)


@pytest.mark.parametrize("refusal", [one for _, one in REFUSALS], ids=[name for name, _ in REFUSALS])
def test_refusal(refusal: Refusal) -> None:
    """The call raises the named class of error itself, not a subclass."""
    with pytest.raises(refusal.error, match=refusal.match or None) as raised:
        refusal.call()
    assert raised.type is refusal.error


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@at_any_pace
@given(st.data())
def test_a_row_can_fail(data: st.DataObject) -> None:
    """A row fails for an unlisted error, a result that does not satisfy ``holds``, and memory beyond its limit."""
    never = st.just(0)
    with pytest.raises(ZeroDivisionError):
        Call("divides", lambda *_: 1 // 0, [never]).run(data)
    Call("divides", lambda *_: 1 // 0, [never], (ZeroDivisionError,)).run(data)
    with pytest.raises(AssertionError):
        Call("wrong", lambda *_: 5, [never], holds=lambda found: found == 6).run(data)
    if CAN_BOUND:
        with pytest.raises(MemoryError):
            Call("takes", lambda *_: bytearray(100 * MIB), [never]).run(data)
        Call("takes", lambda *_: mmap.mmap(-1, 100 * MIB), [never], max_bytes=200 * MIB).run(data)
