"""Reduction of a failing sequence of steps."""

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")
MOST_TRIALS = 120


def shortest_part(steps: Sequence[One], fails: Callable[[list[One]], bool], trials: int = MOST_TRIALS) -> list[One]:
    """Return a part of failing steps that fails without any of the steps that could be left out.

    Args:
        trials: maximum number of calls of ``fails``, each of which may take seconds.
    """
    left, size = list(steps), max(len(steps) // 2, 1)
    while True:
        at, before = 0, len(left)
        while at < len(left) and trials > 0:
            part = left[:at] + left[at + size :]
            trials -= 1
            if part and fails(part):
                left = part
            else:
                at += size
        if trials == 0 or (size == 1 and len(left) == before):
            return left
        size = max(size // 2, 1)
