"""Arguments that nobody should pass, and calls in any order: whatever happens must be an error that is documented."""

import array
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

# A loaded machine is no failure of the code under test.
at_any_pace = settings(
    deadline=None,
    max_examples=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a storm takes minutes and tells little
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

EDGES = [0, 1, 2, 127, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]


class Odd:
    """Has every special method that a careless caller might use, and none of them works."""

    def __index__(self) -> int:
        raise TypeError("no index")

    def __hash__(self) -> int:
        raise TypeError("no hash")

    def __eq__(self, other: object) -> bool:
        raise TypeError("no comparison")

    def __iter__(self) -> Any:
        raise TypeError("no iteration")


NUMBERS = st.one_of(st.sampled_from(EDGES), st.sampled_from([-n for n in EDGES]), st.integers(-(2**70), 2**70))
BUFFERS: st.SearchStrategy[Any] = st.one_of(
    st.binary(max_size=64),
    st.binary(max_size=64).map(bytearray),
    st.binary(max_size=64).map(lambda b: memoryview(b)[::2]),
    st.lists(st.integers(-9, 9), max_size=8).map(lambda xs: memoryview(array.array("i", xs))),
    st.lists(st.floats(), max_size=4).map(lambda xs: array.array("d", xs)),
)
OBJECTS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=8),
    st.just("\ud800\0"),
    BUFFERS,
    st.sampled_from([(), [], {}, object, int, len, 1j, ...]),
    st.builds(object),
    st.builds(Odd),
    st.lists(st.none(), max_size=3),
)
# For waits on a clock that stands still: 1, and so True, would wait for ever.
NO_TIME = st.one_of(OBJECTS.filter(lambda x: x is not True), st.integers(-(2**70), 0))
JUNK: st.SearchStrategy[Any] = st.one_of(NUMBERS, OBJECTS)


def storm(
    data: st.DataObject,
    target: Any,
    calls: Mapping[str, Sequence[st.SearchStrategy[Any]]],
    allowed: tuple[type[BaseException], ...] = (),
    longest: int = 10,
) -> list[str]:
    """Call methods of `target` in any order with good and bad arguments; return what was called.

    Args: ``calls`` has the strategies of each method's arguments; a name that is no method is read.
    """
    done = []
    for name in data.draw(st.lists(st.sampled_from(sorted(calls)), max_size=longest), "calls"):
        attempt(lambda name=name: getattr(target, name), data, calls[name], allowed)
        done.append(name)
    return done


def attempt(
    find: Any,
    data: st.DataObject,
    arguments: Sequence[st.SearchStrategy[Any]],
    allowed: tuple[type[BaseException], ...],
) -> Any:
    """One call; None when it was refused as documented. A wrong number of arguments is a wrong argument too."""
    count = len(arguments)
    if arguments and data.draw(st.integers(0, 9), "arity") == 0:
        count = data.draw(st.integers(0, count + 1), "count")
    given = [data.draw(arguments[i] if i < len(arguments) else JUNK, "argument") for i in range(count)]
    try:
        found = find()
        return found(*given) if callable(found) else found
    except (TypeError, ValueError, *allowed):  # type: ignore[misc] # mypy knows no unpacked tuple here
        return None


def refused(function: Any, *arguments: Any, **named: Any) -> type[BaseException]:
    """The class of what a call raises, which must be an error of the arguments."""
    try:
        function(*arguments, **named)
    except (TypeError, ValueError) as why:
        return type(why)
    raise AssertionError(f"{function} took {arguments} {named}")
