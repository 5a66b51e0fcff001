"""The lives of a broker's counters, distinguished by the numbers of their values.

A counter that was idle for an hour is forgotten, one of a made-up client id makes room for another, and a restart
forgets all of them. The next one of the same name numbers its values from 1 again: a repeated number is of
another life. Numbers that are missing are records that were dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: How long after a life has ended a value may still come: the network thread's time, charged when a response is away.
LATE_MS = 600_000


def assign_epochs(
    counter: np.ndarray[Any, Any], sequence: np.ndarray[Any, Any], time_ms: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """By value the life of its counter, from 0 in the order of time. Args: equally long; any order."""
    import numpy as np

    life = np.zeros(len(counter), np.int32)
    order = np.lexsort((sequence, counter))
    again = (np.diff(counter[order]) == 0) & (np.diff(sequence[order]) == 0)
    several = np.isin(counter, np.unique(counter[order][1:][again]))
    at = np.flatnonzero(several)
    if len(at) == 0:
        return life
    at = at[np.lexsort((sequence[at], time_ms[at], counter[at]))]
    who, number = counter[at], sequence[at]
    is_first = np.concatenate([[True], np.diff(who) != 0])
    begins = is_first | (number == 1)
    run = np.cumsum(begins)
    life[at] = run - np.repeat(run[is_first], np.diff(np.append(np.flatnonzero(is_first), len(at))))
    follows = np.concatenate([[False], np.diff(number) == 1])
    for tangled in np.unique(who[~(begins | follows)]).tolist():  # lives that overlap, or lack numbers
        places = at[who == tangled]
        life[places] = _untangled(sequence[places].tolist(), time_ms[places].tolist())
    return life


class _Epoch:
    """The numbers that a life has had so far."""

    __slots__ = ("highest", "last_ms", "missing", "taken")

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.highest = 0
        self.missing = 1  # the lowest
        self.last_ms = 0

    def take(self, number: int, time_ms: int) -> None:
        self.taken.add(number)
        self.highest = max(self.highest, number)
        self.last_ms = max(self.last_ms, time_ms)
        while self.missing in self.taken:
            self.missing += 1


def _untangled(numbers: list[int], times_ms: list[int]) -> list[int]:
    """The life of each value of one counter, in the order of their times (and numbers, where those are equal).

    A value goes to the latest life if it comes next there or fills a gap; to an earlier one that it carries on; to the
    latest one if that lacks it for another reason; and begins a life else.
    """
    lives: list[_Epoch] = []
    found = []
    for number, time_ms in zip(numbers, times_ms, strict=True):
        place = _place(lives, number, time_ms)
        if place == len(lives):
            lives.append(_Epoch())
        lives[place].take(number, time_ms)
        found.append(place)
    return found


def _place(lives: list[_Epoch], number: int, time_ms: int) -> int:
    if not lives:
        return 0
    latest = len(lives) - 1
    if number in (lives[latest].highest + 1, lives[latest].missing):
        return latest
    for place in range(latest - 1, -1, -1):
        if number == lives[place].highest + 1 and time_ms - lives[place].last_ms <= LATE_MS:
            return place
    return latest if number not in lives[latest].taken else len(lives)
