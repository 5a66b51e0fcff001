"""Methods that run in a child made by fork."""

import os
import weakref
from collections.abc import Callable


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in each child made by fork from now on, as long as its object exists."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
