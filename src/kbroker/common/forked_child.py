"""Methods that run in a child made by fork."""

import functools
import os
import weakref
from collections.abc import Callable

_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in each child made by fork from now on, as long as its object exists."""
    _register()
    _methods.add(weakref.WeakMethod(method, _methods.discard))


def _call() -> None:
    for reference in list(_methods):
        method = reference()
        if method is not None:
            method()


@functools.cache
def _register() -> None:
    """Register `_call` once, for good. It runs after the functions that modules registered, such as those of locks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_call)
