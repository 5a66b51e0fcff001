"""Ends of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable


def have_ended(threads: Iterable[threading.Thread], timeout_s: float) -> bool:
    """Wait for the ends of threads, up to a time-out each; return whether all have ended.

    Those that were not started, and the current one, are not awaited and count as ended.
    """
    awaited = [one for one in threads if one.ident is not None and one is not threading.current_thread()]
    for thread in awaited:
        thread.join(timeout_s)
    return not any(thread.is_alive() for thread in awaited)
