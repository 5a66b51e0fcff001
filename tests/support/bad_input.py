"""Calls with bad arguments, and methods called in any order: the rows of a table, and how a row is run.

A `Call` is a function with strategies of its arguments; an `Object` is an object whose methods are called in any order.
Each row names the errors that are documented besides TypeError and ValueError, and the memory that one call may use.
"""

import array
import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# A slow machine is not a failure of the code under test.
at_any_pace = settings(
    deadline=None,
    max_examples=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a storm takes minutes and explains little
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

MIB = 1 << 20
STATM = Path("/proc/self/statm")
#: Only Linux reports and limits the memory that a process maps; a sanitizer maps terabytes.
CAN_BOUND = resource is not None and STATM.exists() and not os.environ.get("KBROKER_SANITIZED")

Errors = tuple[type[BaseException], ...]
Arguments = Sequence[st.SearchStrategy[Any]]


EDGES = [0, 1, 2, 127, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]


class Odd:
    """Object whose special methods all raise TypeError."""

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
    st.none(), st.booleans(), st.floats(), st.text(max_size=8), st.just("\ud800\0"), BUFFERS,
    st.sampled_from([(), [], {}, object, int, len, 1j, ...]), st.builds(object), st.builds(Odd),
    st.lists(st.none(), max_size=3),
)  # fmt: skip
# For waits on a clock that never advances: a wait with a limit of 1, or of True, which equals 1, would never end.
NO_TIME = st.one_of(OBJECTS.filter(lambda x: x is not True), st.integers(-(2**70), 0))
JUNK: st.SearchStrategy[Any] = st.one_of(NUMBERS, OBJECTS)


@dataclass(frozen=True, repr=False)
class Call:
    """Function and strategies of its arguments.

    Args: ``named``: keyword arguments, of which some are passed; ``holds``: predicate of the returned value.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments = ()
    errors: Errors = ()
    named: Mapping[str, st.SearchStrategy[Any]] = field(default_factory=dict)
    holds: Callable[[Any], bool] = lambda found: True
    max_bytes: int = 64 * MIB

    def __repr__(self) -> str:
        return self.name

    def run(self, data: st.DataObject) -> None:
        """Call the function once; a call that is not refused must satisfy ``holds``."""
        chosen: dict[str, Any] = {}
        if self.named:
            names = data.draw(st.lists(st.sampled_from(sorted(self.named)), max_size=3, unique=True), "names")
            chosen = {name: data.draw(self.named[name], name) for name in names}
        found = attempt(data, self.function, self.arguments, self.errors, chosen, self.max_bytes)
        assert found is None or self.holds(found)


@dataclass(frozen=True)
class Storm:
    """Methods of an object, called in any order; a name that is not a method is read, or set if it ends with "="."""

    calls: Mapping[str, Arguments]
    errors: Errors = ()
    longest: int = 10
    max_bytes: int = 64 * MIB

    def run(self, data: st.DataObject, target: Any) -> None:
        """Call methods of `target`, unless it is None, with good and bad arguments."""
        if target is None:
            return

        def access(name: str, *given: Any) -> Any:
            if name.endswith("="):
                return setattr(target, name[:-1], *given)
            found = getattr(target, name)
            return found(*given) if callable(found) else found

        for name in data.draw(st.lists(st.sampled_from(sorted(self.calls)), max_size=self.longest), "calls"):
            attempt(data, access, self.calls[name], self.errors, {}, self.max_bytes, (name,))


Life = Generator[Any, None, None]


@dataclass(frozen=True, repr=False)
class Object:
    """Object with the storms that it must survive.

    Args: ``life``: yields the object once for each of ``storms``, or None if there is no object, and asserts between
    and after them.
    """

    name: str
    life: Callable[[st.DataObject], Life]
    storms: Sequence[Storm]

    def __repr__(self) -> str:
        return self.name

    def run(self, data: st.DataObject) -> None:
        """Run each storm on the object that ``life`` yields for it."""
        with contextlib.closing(self.life(data)) as life:
            for storm in self.storms:  # no local name, which would keep the object alive
                storm.run(data, next(life))
            assert next(life, None) is None, "more things than storms"


Row = Call | Object


@dataclass(frozen=True)
class Refusal:
    """Call that must raise exactly this class of error: an example that is always tried."""

    error: type[BaseException]
    call: Callable[[], Any]
    match: str = ""


@contextlib.contextmanager
def bounded_memory(max_bytes: int) -> Iterator[None]:
    """Limit the memory that the process maps to this many bytes more; beyond, a call raises MemoryError."""
    if not CAN_BOUND:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(STATM.read_text().split()[0]) * resource.getpagesize()
    bound = mapped + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound if soft < 0 else min(soft, bound), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt(
    data: st.DataObject,
    function: Callable[..., Any],
    arguments: Arguments,
    errors: Errors = (),
    named: Mapping[str, Any] | None = None,
    max_bytes: int = 64 * MIB,
    first: tuple[Any, ...] = (),
) -> Any:
    """Return the result of one call, or None if the call was refused as documented.

    A wrong number of arguments counts as a wrong argument.
    """
    count = len(arguments)
    if arguments and data.draw(st.integers(0, 9), "arity") == 0:
        count = data.draw(st.integers(0, count + 1), "count")
    given = [data.draw(arguments[i] if i < len(arguments) else JUNK, "argument") for i in range(count)]
    try:
        with bounded_memory(max_bytes):
            return function(*first, *given, **(named or {}))
    except (TypeError, ValueError, *errors):  # type: ignore[misc] # mypy rejects an unpacked tuple here
        return None


def refused(function: Any, *arguments: Any, **named: Any) -> type[BaseException]:
    """Return the class of the error that a call raises, which must be a TypeError or a ValueError."""
    try:
        function(*arguments, **named)
    except (TypeError, ValueError) as why:
        return type(why)
    raise AssertionError(f"{function} accepted {arguments} {named}")
