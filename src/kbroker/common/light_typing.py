"""What the modules of a broker need of `typing`, without loading it: an idle broker holds 1.2 MiB less.

`typing` compiles each field of a NamedTuple and keeps the code; to compile makes all the types of `ast`. To a type
checker the names are those of `typing`; elsewhere they do what a class statement needs, and say nothing about types.
"""

from __future__ import annotations

TYPE_CHECKING = False  # by this name type checkers take it as true

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Generic as Generic
    from typing import Literal as Literal
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
    from typing import TypeAlias as TypeAlias
    from typing import TypeGuard as TypeGuard
    from typing import TypeVar as TypeVar
    from typing import cast as cast
else:
    from collections import namedtuple

    Any = TypeAlias = object

    class _TupleMaker(type):
        """Turns the annotated names of a class statement into the fields of a named tuple, values into defaults."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            if bases != (NamedTuple,):
                found = ", ".join(base.__name__ for base in bases)
                raise TypeError(f"{name} has the bases {found}; expected NamedTuple alone")
            if "__annotations__" not in body:
                expected = "fields, in a module with `from __future__ import annotations`"
                raise TypeError(f"{name} has no annotations; expected {expected}")
            fields = list(body["__annotations__"])
            defaults = [body[field] for field in fields if field in body]
            for field in fields[: len(fields) - len(defaults)]:
                if field in body:
                    raise TypeError(f"{name}.{field} has a default; expected none before fields without one")
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in fields and key != "__classcell__":
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_TupleMaker):
        """The base in `class Point(NamedTuple)`, where annotations are text or types of fields."""

    class Generic:
        """The base in `class Box(Generic[T])`: any parameters give the class itself."""

        def __class_getitem__(cls, parameters):
            return cls

    Protocol = Literal = TypeGuard = Generic

    def TypeVar(name, *constraints, **options):
        """Return the name."""
        return name

    def cast(kind, value):
        """Return ``value``, of whatever kind."""
        return value
