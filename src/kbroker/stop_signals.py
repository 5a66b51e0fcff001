"""Signals that end a broker: none is lost, whenever it arrives."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

POLL_S = 0.1  # poll interval on Windows
_ASKED = 0  # no signal has this number


class StopSignals:
    """Handler of the signals that end a broker, from ``__enter__`` to ``__exit__``.

    The interpreter writes the number of each signal into a pipe the moment it arrives, in whichever thread
    (``signal.set_wakeup_fd``), and `wait` reads that pipe. A Python handler alone would be too late: it runs before the
    main thread's next instruction, which never comes if the signal arrives just before the read begins.

    A second Ctrl-C ends the process at once.
    Threads: `ask` from any; the rest from the main thread.
    """

    def __init__(self) -> None:
        #: Number of the first signal that arrived; None before.
        self.number: int | None = None
        #: Called in the main thread when the first signal arrives; it must be safe between any two instructions.
        self.on_first: Callable[[], object] | None = None
        self._is_asked = False
        self._read_fd = self._write_fd = self._wakeup_before = -1
        self._before: dict[int, Any] = {}
        self._lock = threading.Lock()  # guards the descriptors

    def has_come(self) -> bool:
        """Return whether a signal has arrived, or `ask` was called."""
        return self._is_asked

    def ask(self) -> None:
        """End `wait` as a signal does; no effect after ``__exit__``."""
        self._is_asked = True
        with self._lock:
            if self._write_fd >= 0:
                os.write(self._write_fd, bytes([_ASKED]))

    def wait(self) -> None:
        """Return as soon as a signal has arrived, or `ask` was called."""
        if sys.platform == "win32":  # no signal interrupts a read there
            while not self._is_asked:
                time.sleep(POLL_S)
            return
        ending = {_ASKED, *self._before}
        while ending.isdisjoint(os.read(self._read_fd, 64)):
            pass  # the signal of another handler

    def __enter__(self) -> "StopSignals":
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _stop_signals():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *failure: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with self._lock:  # a broker may call `ask` even later, when the number may belong to another file
            os.close(self._read_fd)
            os.close(self._write_fd)
            self._write_fd = -1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.number is None:
            self.number = number
        self._is_asked = True
        if self.on_first is not None:
            on_first, self.on_first = self.on_first, None
            on_first()


def _stop_signals() -> list[signal.Signals]:
    """Return SIGTERM, SIGINT, SIGHUP unless it is ignored (nohup), and Ctrl-Break on Windows."""
    found = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    if sys.platform == "win32":
        found.append(signal.SIGBREAK)
    return found
