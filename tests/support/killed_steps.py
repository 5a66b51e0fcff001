"""Ends of a process before or after each of the steps in which an action changes files."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest


class KilledError(BaseException):
    """End of the process."""


def killed_at_each_step(
    action: Callable[[], object], steps: Sequence[tuple[Any, str]], *, is_late: bool
) -> Iterator[bool]:
    """Perform the action repeatedly, killed before the first step, then before the second step, and so on.

    Args: ``steps``: owner and name of each function that is a step; ``is_late``: kill after the step instead. Yields:
    whether the action was killed; after the last performance, False.
    """
    kill_at, is_killed = 0, True
    while is_killed:
        kill_at += 1
        is_killed = _is_killed(action, steps, kill_at, is_late)
        yield is_killed


def _is_killed(action: Callable[[], object], steps: Sequence[tuple[Any, str]], kill_at: int, is_late: bool) -> bool:
    calls = 0

    def killing(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            is_due = calls == kill_at
            if is_due and not is_late:
                raise KilledError
            result = function(*args, **kwargs)
            if is_due:
                raise KilledError
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, killing(getattr(owner, name)))
        try:
            action()
        except KilledError:
            return True
    return False
