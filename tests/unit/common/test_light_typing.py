"""Named tuples and generic classes made without `typing`."""

from __future__ import annotations

import pickle
import typing

import pytest

from kbroker.common.light_typing import Generic, NamedTuple, Protocol, TypeVar, cast

T = TypeVar("T")


class Interval(NamedTuple):
    """From ``start`` to before ``end``."""

    start: int
    end: int = 10
    name: str = ""

    @property
    def length(self) -> int:
        """How many numbers it has."""
        return self.end - self.start

    @classmethod
    def empty(cls) -> Interval:
        """Of no number."""
        return cls(0, 0)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


def test_fields_defaults_and_methods() -> None:
    """As `typing.NamedTuple` makes them, and equal to a plain tuple."""
    one = Interval(3)
    assert one == (3, 10, "")
    assert (one.start, one.end, one.length, str(one)) == (3, 10, 7, "[3, 10)")
    assert Interval.empty() == (0, 0, "")
    assert one._replace(end=4).length == 1
    assert repr(one) == "Interval(start=3, end=10, name='')"
    assert Interval._field_defaults == {"end": 10, "name": ""}
    assert Interval._fields == ("start", "end", "name")
    with pytest.raises(TypeError):
        Interval()  # type: ignore[call-arg]


def test_the_class_is_known_by_name_and_module() -> None:
    """Documentation, pickle and annotations read it there."""
    assert (Interval.__module__, Interval.__qualname__, Interval.__doc__) == (
        __name__, "Interval", "From ``start`` to before ``end``.",
    )  # fmt: skip
    assert typing.get_type_hints(Interval) == {"start": int, "end": int, "name": str}
    assert not hasattr(Interval(1), "__dict__")
    assert type(pickle.loads(pickle.dumps(Interval(1)))) is Interval


def test_a_field_without_default_comes_first() -> None:
    """A later one would take the default of another field."""
    with pytest.raises(TypeError, match=r"Wrong\.first has a default; expected none before fields without one"):
        type(NamedTuple)("Wrong", (NamedTuple,), {"__annotations__": {"first": "int", "second": "int"}, "first": 1})  # type: ignore[misc]


def test_what_a_named_tuple_cannot_have_is_refused() -> None:
    """A second base, as `typing` does, which would be left out; and annotations that Python 3.14 keeps elsewhere."""

    class Mixin:
        pass

    make: typing.Any = type(NamedTuple)
    with pytest.raises(TypeError, match=r"Wrong has the bases NamedTuple, Mixin; expected NamedTuple alone"):
        make("Wrong", (NamedTuple, Mixin), {"__annotations__": {"first": "int"}})
    with pytest.raises(
        TypeError, match=r"Wrong has no annotations; expected fields, in a module with `from __future__"
    ):
        make("Wrong", (NamedTuple,), {"__module__": "m"})


def test_generic_classes_and_protocols_are_plain_classes() -> None:
    """Parameters say something to a type checker alone."""

    class Box(Generic[T]):
        def __init__(self, content: T) -> None:
            self.content = content

    class Opens(Protocol):
        def open(self) -> None: ...

    assert Box[int](3).content == 3
    assert cast(str, 3) == 3  # type: ignore[comparison-overlap]
    assert Opens.__mro__[-1] is object
