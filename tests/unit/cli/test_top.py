"""`kbroker top`: the thread that takes its snapshots."""

import threading
from typing import Any

from kbroker.cli.top import _Looker


class Watch:
    """Watch whose snapshot lasts until the test ends it; it records the thread that closes it."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.closed_by: list[threading.Thread] = []

    def look(self) -> None:
        self.begun.set()
        assert self.ended.wait(20)

    def close(self) -> None:
        self.closed_by.append(threading.current_thread())


def test_the_connections_are_closed_by_the_thread_that_uses_them() -> None:
    """`q` during a snapshot closes no connection that is in use: it was closed by another thread."""
    watch: Any = Watch()
    looker = _Looker(watch, 0.01)
    assert watch.begun.wait(20)
    looker.end()
    assert watch.closed_by == []
    watch.ended.set()
    looker._thread.join(20)
    assert watch.closed_by == [looker._thread]
