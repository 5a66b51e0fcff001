"""Checks of delayed operations that are slow: other checks, and the other nodes of the process, do not wait."""

import threading
from collections.abc import Callable, Iterator

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.testing.waiting import wait_until
from tests.native import slow_operations
from tests.native.slow_operations import Node

EVENT, OTHER_EVENT = 1, 2


@pytest.fixture
def gate() -> Iterator[list[threading.Thread]]:
    """Hold up the first check of an operation; the threads of the list end after the test."""
    threads: list[threading.Thread] = []
    slow_operations.hold()
    yield threads
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def begin(threads: list[threading.Thread], body: Callable[[], None]) -> threading.Thread:
    threads.append(threading.Thread(target=body))
    threads[-1].start()
    return threads[-1]


def begin_slow_check(threads: list[threading.Thread], node: Node) -> None:
    begin(threads, lambda: node.check(EVENT))
    wait_until(lambda: slow_operations.counts()[0] == 3)


def ends(thread: threading.Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


def test_a_check_does_not_wait_for_another_one(gate: list[threading.Thread]) -> None:
    """The event that the second check reports is not missed: the slow thread tests once more."""
    node = Node(VirtualClock())
    node.watch(EVENT)
    try:
        begin_slow_check(gate, node)
        slow_operations.satisfy()
        assert ends(begin(gate, lambda: node.check(EVENT)))
        assert slow_operations.counts() == (3, 0)
    finally:
        slow_operations.release()
    assert ends(gate[0])
    assert slow_operations.counts() == (4, 1)


def test_no_node_waits_for_the_fetches_of_another(gate: list[threading.Thread]) -> None:
    """Other events of the process are checked meanwhile, and a node leaves when the last check of its fetches ends."""
    clock = VirtualClock()
    first = Node(clock)
    slow, other = Node(clock, first), Node(clock, first)
    slow.watch(EVENT)
    try:
        begin_slow_check(gate, first)
        assert ends(begin(gate, lambda: other.check(OTHER_EVENT)))
        leaving = begin(gate, slow.leave)
        assert ends(begin(gate, lambda: other.check(OTHER_EVENT)))
        assert leaving.is_alive()
    finally:
        slow_operations.release()
    assert ends(leaving)
    slow_operations.satisfy()
    first.check(EVENT)
    assert slow_operations.counts() == (3, 0)
