"""Named tuples of the house: the same as those of ``typing`` to their users."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import typing
from typing import Any, Generic, TypeVar

import pytest

from kbroker.common.named_tuple import NamedTuple

T = TypeVar("T")


class Ours(NamedTuple):
    """A range."""

    first: int
    last: int = 9
    note: str | None = None

    @property
    def size(self) -> int:
        return self.last - self.first


class Theirs(typing.NamedTuple):
    """A range."""

    first: int
    last: int = 9
    note: str | None = None

    @property
    def size(self) -> int:
        return self.last - self.first


class Empty(NamedTuple):
    """No field."""


class Box(NamedTuple, Generic[T]):
    """One value of any type."""

    value: T


USES: dict[str, typing.Callable[[Any], object]] = {
    "positions": lambda kind: kind(1, 2, "x"),
    "names": lambda kind: kind(note="x", first=1),
    "defaults": lambda kind: (kind(1), kind._field_defaults, kind(3).size),
    "fields": lambda kind: (
        kind._fields,
        kind.__match_args__,
        typing.get_type_hints(kind),
        kind.__doc__,
        kind.__module__,
    ),
    "items": lambda kind: (
        kind(1).first,
        kind(1).last,
        kind(1)[0],
        tuple(kind(1)),
        hash(kind(1)) == hash((1, 9, None)),
    ),
    "a dictionary": lambda kind: kind(1)._asdict(),
    "a changed copy": lambda kind: kind(1)._replace(last=4),
    "values": lambda kind: kind._make([1, 2, 3]),
    "parameters": lambda kind: list(inspect.signature(kind).parameters),
    "text": lambda kind: repr(kind(1, note="x")).replace(kind.__name__, ""),
    "a deep copy": lambda kind: (copy.deepcopy(kind(1)), pickle.loads(pickle.dumps(kind(1)))),
    "a missing field": lambda kind: kind(),
    "an unknown field": lambda kind: kind(1, end=2),
    "too many values": lambda kind: kind(1, 2, 3, 4),
    "an assignment": lambda kind: setattr(kind(1), "first", 2),
    "a new attribute": lambda kind: setattr(kind(1), "end", 2),
    "an unknown field of a copy": lambda kind: kind(1)._replace(end=2),
    "a short row": lambda kind: kind._make([1]),
}


def result(use: typing.Callable[[Any], object], kind: type) -> object:
    """Return what a use returns, or the type of its error."""
    try:
        return use(kind)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use_has_the_result_of_typing(use: typing.Callable[[Any], object]) -> None:
    """Values, copies, texts and errors are those of the standard library."""
    assert result(use, Ours) == result(use, Theirs)


def test_special_forms() -> None:
    """A tuple without fields, a generic one, a subclass and a pattern."""
    assert (Empty(), Box[int](3).value, Box(3)) == ((), 3, (3,))
    match Ours(1, 2):
        case Ours(first, last=2):
            assert first == 1
        case _:
            pytest.fail("the pattern does not match")
    if sys.version_info >= (3, 13):
        assert copy.replace(Ours(1), last=2).last == 2
