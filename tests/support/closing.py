"""Scopes that close what is opened in them: coordinators and logs that no test keeps.

A coordinator that is dropped unclosed stays: its timers and delayed operations, which no garbage collection follows,
hold it, and it holds its logs.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

_scopes = [ExitStack()]  # the first is that of programs that open no scope


class Closable(Protocol):
    """Thing with a method ``close``."""

    @property
    def close(self) -> Callable[..., object]: ...


Thing = TypeVar("Thing", bound=Closable)


def close_at_end(thing: Thing, **options: object) -> Thing:
    """Have the end of the innermost scope call ``thing.close(**options)``, the latest first; return the thing."""
    _scopes[-1].callback(thing.close, **options)
    return thing


def folder_until_end() -> Path:
    """Return a new folder, which the end of the innermost scope removes."""
    return Path(_scopes[-1].enter_context(TemporaryDirectory()))


@contextmanager
def scope() -> Iterator[None]:
    """Scope of a module, of a test, or of one of its examples."""
    with ExitStack() as stack:
        _scopes.append(stack)
        try:
            yield
        finally:
            _scopes.remove(stack)
