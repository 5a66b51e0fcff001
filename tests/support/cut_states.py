"""Checks of the states that power cuts may leave: each different state once, on several processes."""

import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kbroker.testing.embedded import MEMORY_FOLDER
from tests.support.disk_states import Call, DiskModel, cuts, digest, write_state

PROCESSES = 2  # per processor: a broker that starts waits for its threads
TOGETHER = 32  # consecutive calls of a part, as many states repeat a state of the previous call

Facts = TypeVar("Facts")


class Position(NamedTuple):
    """Disk after a call. ``facts``: those that a check expects, equal while they do not change."""

    number: int
    call: Call
    disk: DiskModel
    facts: Any


class Checked(NamedTuple):
    """Checked states. ``different``: number of distinct states; ``wrong``: lines of the differences."""

    states: int
    different: int
    wrong: list[str]


class Part(NamedTuple):
    """One of ``turns`` parts of the calls of a record, which are assigned to the parts in turn."""

    turn: int
    turns: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number // TOGETHER % self.turns == self.turn


def positions(calls: Iterable[Call], root: str, first: Facts, after: Callable[[int], Facts]) -> Iterator[Position]:
    """Yield the position after each call on a folder, and after each mark, which changes the facts alone.

    Args: ``first``, ``after``: the facts before the first mark and after each one.
    """
    disk, facts = DiskModel(root), first
    for number, call in enumerate(calls):
        if call.name == "mark":
            facts = after(int(call.other))
        else:
            disk.apply(call)
        yield Position(number, call, disk, facts)


def check_states(positions: Iterable[Position], check: Callable[[Path, Facts], list[str]]) -> Checked:
    """Run a check on each state after the cuts at the positions, once for states with the same names, bytes and facts.

    The check changes the folder, which is in memory where possible: the modelled durability does not depend on it.
    """
    states, different, wrong = 0, 0, list[str]()
    facts: object = None
    seen = set[bytes]()
    for number, call, disk, expected in positions:
        if expected != facts:
            facts = expected
            seen.clear()
        for cut in cuts(number):
            states += 1
            state = disk.state(cut)
            key = digest(state)
            if key in seen:
                continue
            seen.add(key)
            different += 1
            with _memory() as place, uncaught() as lines:
                write_state(state, place / "cut")
                try:
                    found = check(place / "cut", expected)
                except Exception:  # the other states are checked too
                    found = [traceback.format_exc()]
            wrong += [f"call {number}, {call.name} {call.path}, {cut.name}: {one}" for one in [*found, *lines]]
    return Checked(states, different, wrong)


def check_in_parts(check: Callable[..., Checked], *args: object) -> Checked:
    """Run ``check(*args, part)`` for each part of the calls in a process."""
    count = PROCESSES * (os.cpu_count() or 1)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(check, *([one] * count for one in args), [Part(turn, count) for turn in range(count)]))
    return Checked(
        sum(part.states for part in parts),
        sum(part.different for part in parts),
        [line for part in parts for line in part.wrong],
    )


@contextmanager
def uncaught() -> Iterator[list[str]]:
    """Collect exceptions that end threads or cannot be raised, which pytest notices in its own process only."""
    lines = list[str]()
    before = threading.excepthook, sys.unraisablehook

    def add(args: Any) -> None:
        lines.append("".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)))

    threading.excepthook = sys.unraisablehook = add
    try:
        yield lines
    finally:
        threading.excepthook, sys.unraisablehook = before


@contextmanager
def _memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cut-", dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None) as place:
        yield Path(place)
