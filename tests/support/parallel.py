"""Several workers of pytest-xdist: what stays together on one of them, and what runs while no other test does.

A worker takes a group at a time. Tests marked ``alone`` measure time or memory: they are one group, the first, and hold
a lock of the run against all others. Tests that share a JVM or a Kafka are one group; else a file is one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import fcntl
except ImportError:  # Windows: the suite runs on one worker there
    fcntl = None  # type: ignore[assignment]

TESTS = Path(__file__).resolve().parents[1]
FOREIGN = ("test_client_against_kafka.py", "test_cli_groups.py")  # each starts an Apache Kafka for itself


def group_of(item: pytest.Item) -> str:
    """The group of a test."""
    inside = item.path.relative_to(TESTS)
    if item.get_closest_marker("alone"):
        return "alone"
    if inside.parts[0] == "spark":
        return "spark"
    if inside.name in FOREIGN:
        return "kafka"
    return str(inside)


def spread(items: list[pytest.Item]) -> None:
    """Name each test's group; those that take longest begin first."""
    order = {"alone": 0, "spark": 1, "kafka": 2}
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    slow = {group for item, group in groups.items() if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (order.get(groups[item], 3 if groups[item] in slow else 4), groups[item]))


class Turns:
    """The locks of one run: ``gate`` is passed by everyone, so who waits to be alone is not overtaken for ever.

    Args:
        folder: of the run; workers that give the same share the locks.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = (folder / "turns.gate").open("w")
        self._room = (folder / "turns.room").open("w")
        self._alone = False

    def close(self) -> None:
        """Give back what is held."""
        self._gate.close()
        self._room.close()

    def enter(self, alone: bool) -> None:
        """Wait for the turn of a test."""
        if self._alone:
            if alone:
                return
            self._leave()
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._alone = alone

    def end(self, stay: bool) -> None:
        """The test is over; `stay` if the next one here is to be alone too."""
        if not (self._alone and stay):
            self._leave()

    def _leave(self) -> None:
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._alone = False


class TakeTurns:
    """A pytest plugin: each test waits for its turn, which no time limit of the test counts."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._turns.enter(item.get_closest_marker("alone") is not None)
        try:
            return (yield)
        finally:
            self._turns.end(nextitem is not None and nextitem.get_closest_marker("alone") is not None)


def apply(config: pytest.Config) -> None:
    """Register the turns if this is a worker of pytest-xdist."""
    if hasattr(config, "workerinput") and fcntl is not None:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        turns = Turns(factory.getbasetemp().parent)  # the folder that the workers of a run have in common
        config.add_cleanup(turns.close)
        config.pluginmanager.register(TakeTurns(turns), "kbroker-turns")
