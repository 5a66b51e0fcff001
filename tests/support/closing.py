"""Scopes at whose end the coordinators and logs opened in them are closed.

A coordinator that is not closed is never freed: its timers and delayed operations, which the garbage collector does not
traverse, refer to it, and it refers to its logs.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

_scopes = [ExitStack()]  # the first scope is that of programs that open no scope


class Closable(Protocol):
    """Object with a method ``close``."""

    @property
    def close(self) -> Callable[..., object]: ...


Thing = TypeVar("Thing", bound=Closable)


def close_at_end(thing: Thing, **options: object) -> Thing:
    """Call ``thing.close(**options)`` at the end of the innermost scope, in reverse order; return the object."""
    _scopes[-1].callback(thing.close, **options)
    return thing


def folder_until_end() -> Path:
    """Return a new folder that is removed at the end of the innermost scope."""
    return Path(_scopes[-1].enter_context(TemporaryDirectory()))


@contextmanager
def scope() -> Iterator[None]:
    """Open the scope of a module, of a test, or of one example of a test."""
    with ExitStack() as stack:
        _scopes.append(stack)
        try:
            yield
        finally:
            _scopes.remove(stack)
