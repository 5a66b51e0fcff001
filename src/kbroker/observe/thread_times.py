"""Load of each thread of the process between two snapshots: its time on a core and its time waiting for one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from kbroker._core.clock import SystemClock

MOST_THREADS = 500
BASELINE_MS = 500  # minimum age of the look with which a new look is compared; else the oldest
KEPT_LOOKS = 32


class Look(NamedTuple):
    """Growing numbers by key, at a time in nanoseconds."""

    at_ns: int
    totals: Mapping[object, tuple[int, ...]]


class Looks:
    """The last looks, for shares of the time between two of them. Threads: one at a time."""

    def __init__(self) -> None:
        self._looks: list[Look] = []

    def shares(self, look: Look) -> tuple[dict[object, tuple[float, ...]], float | None]:
        """Keep a look; return the growth per nanosecond since an earlier one, for common keys, and the elapsed ms.

        Without an earlier look: an empty dict, and None.
        """
        baseline = None
        for earlier in self._looks:
            if baseline is None or look.at_ns - earlier.at_ns >= BASELINE_MS * 1_000_000:
                baseline = earlier
        self._looks = [*self._looks[1 - KEPT_LOOKS :], look]
        if baseline is None or look.at_ns <= baseline.at_ns:
            return {}, None
        window_ns = look.at_ns - baseline.at_ns
        found = {
            key: tuple((now - then) / window_ns for now, then in zip(totals, baseline.totals[key], strict=True))
            for key, totals in look.totals.items()
            if key in baseline.totals
        }
        return found, window_ns / 1e6


class ThreadTimes:
    """Times of each thread of the process, as accounted by the kernel (Linux only).

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()  # real time
        self._looks = Looks()

    def look(self) -> tuple[list[dict[str, object]], float | None]:
        """Return each thread, and the time since an earlier look in milliseconds.

        A thread has ``name``, ``native_id``, and, since the earlier look, ``cpu_share`` (on a core) and
        ``runnable_share`` (waiting for a core); without an earlier look the shares are None.
        """
        threads = threading.enumerate()[:MOST_THREADS]
        totals: dict[object, tuple[int, ...]] = {}
        for thread in threads:
            times = None if thread.native_id is None else _times(thread.native_id)
            if times is not None:
                totals[thread.native_id] = times
        shares, window_ms = self._looks.shares(Look(self._clock.now_ms() * 1_000_000, totals))
        found: list[dict[str, object]] = []
        for thread in threads:
            cpu, runnable = shares.get(thread.native_id, (None, None))
            found.append(
                {
                    "name": thread.name,
                    "native_id": thread.native_id,
                    "cpu_share": None if cpu is None else round(cpu, 4),
                    "runnable_share": None if runnable is None else round(runnable, 4),
                }
            )
        return found, window_ms


def _times(native_id: int) -> tuple[int, int] | None:
    """Return the nanoseconds for which a thread ran on a core and for which it waited for one; None if unknown."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", "rb") as file:
            ran, waited, *_ = file.read(100).split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None
