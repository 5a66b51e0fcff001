"""Threads: their start, with a name for the system's tools, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from kbroker._core import process_memory


def new_thread(name: str, body: Callable[[], object], short_name: str = "") -> threading.Thread:
    """Return a daemon thread, which the caller starts.

    Args: ``short_name``: name in ps, top, perf and debuggers, by default ``name``; Linux cuts it after 15 bytes.
    """

    def run() -> None:
        process_memory.note_thread(short_name or name)
        body()

    return threading.Thread(target=run, name=name, daemon=True)


def have_ended(threads: Iterable[threading.Thread], timeout_s: float) -> bool:
    """Wait for each thread to end, up to ``timeout_s`` each; return whether all have ended.

    Threads that were not started, and the current one, are not awaited and count as ended.
    """
    awaited = [one for one in threads if one.ident is not None and one is not threading.current_thread()]
    for thread in awaited:
        thread.join(timeout_s)
    return not any(thread.is_alive() for thread in awaited)
