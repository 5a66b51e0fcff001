"""Epochs and checks that the members of all groups of the newer protocols have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

JOIN_EPOCH = 0  # in a heartbeat: the member joins, or joins again without partitions
LEAVE_EPOCH = -1  # in a heartbeat: the member leaves
STATIC_LEAVE_EPOCH = -2  # in a heartbeat: a static member leaves for a short time

K = TypeVar("K")


def is_subset(owned: Mapping[K, Iterable[int]] | None, assigned: Mapping[K, Iterable[int]]) -> bool:
    """Return whether a member reported partitions, or tasks of one role, and all of them are assigned to it."""
    if owned is None:
        return False
    for one, partitions in owned.items():
        present = assigned.get(one)
        if present is None or any(partition not in present for partition in partitions):
            return False
    return True
