"""Progress of a command: lines on stderr, and below them one bar for the current step.

On a terminal the bar is one line that is redrawn; elsewhere it is a plain line every ten seconds. With --quiet, nothing
is printed.
"""

from __future__ import annotations

import collections
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from kbroker.common.threads import new_thread

if TYPE_CHECKING:
    from kbroker._core.clock import BaseClock

DRAW_MS = 200  # time between two drawings of the bar
LINE_MS = 10_000  # time between two lines without a terminal
FIRST_MS = 1_000  # duration below which a step gets no bar
BAR_CHARACTERS = 24
_ERASE = "\r\x1b[2K"


class ProgressDisplay:
    """Display of lines and a bar; a call with a line prints that line.

    Args: `stream`: by default the process's stderr; `is_terminal`: by default determined from the stream.

    Threads: any, and handlers of signals; `_lock` guards all but `_lines`.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        is_terminal: bool | None = None,
        clock: BaseClock | None = None,
    ) -> None:
        self._stream = stream or sys.stderr
        self.is_quiet = quiet
        self.doing = "working"  # current activity, for the names of Spark's stages
        if clock is None:
            from kbroker._core.clock import SystemClock

            clock = SystemClock()
        self._clock = clock
        self.is_terminal = _is_terminal(self._stream) if is_terminal is None else is_terminal
        self._lock = threading.Lock()
        self._lines: collections.deque[str] = collections.deque()  # printed by the holder of the lock
        self._is_drawn = False
        self._step: Step | None = None

    def __call__(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.is_quiet:
            return
        self._lines.append(line)
        self._print()

    def _print(self) -> None:
        """Print the pending lines, or leave them to the thread that is printing.

        A signal handler may have interrupted that thread, so waiting for the lock could deadlock.
        """
        while self._lines and self._lock.acquire(blocking=False):
            try:
                self._erase()
                while self._lines:
                    self._stream.write(f"{self._lines.popleft()}\n")
                self._stream.flush()
            finally:
                self._lock.release()

    @contextmanager
    def step(self, name: str, total: float | None = None, unit: str = "") -> Iterator[Step]:
        """Show a step of the work for the duration of the block. Args: as `Step`."""
        outer, step = self._step, Step(self, self._clock, name, total, unit)
        self._step = step
        try:
            yield step
        finally:
            self._step = outer
            with self._lock:
                self._erase()
            self._print()

    def draw(self, step: Step) -> None:
        """Show the progress of a step, if the last drawing is old enough."""
        if self.is_quiet or step is not self._step:
            return
        now_ms = self._clock.now_ms()
        if now_ms - step.begun_ms < FIRST_MS or now_ms - step.shown_ms < (DRAW_MS if self.is_terminal else LINE_MS):
            return
        step.shown_ms = now_ms
        with self._lock:
            if not self.is_terminal:
                self._stream.write(f"{step.text(now_ms)}\n")
            else:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write(_ERASE + step.text(now_ms, with_bar=True)[:width])
                self._is_drawn = True
            self._stream.flush()
        self._print()

    def _erase(self) -> None:
        if self._is_drawn:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._is_drawn = False


class Step:
    """One step: its name, the total amount (None if unknown), the unit, and the amount done.

    Threads: one at a time.
    """

    def __init__(self, display: ProgressDisplay, clock: BaseClock, name: str, total: float | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done: float = 0
        self.begun_ms = self.shown_ms = clock.now_ms()
        self._display = display

    def at(self, done: float, total: float | None = None) -> None:
        """Set the amount done, and the total if it has changed."""
        self.done = done
        self.total = self.total if total is None else total
        self._display.draw(self)

    def advance(self, more: float = 1) -> None:
        """Increase the amount done."""
        self.at(self.done + more)

    def text(self, now_ms: int, *, with_bar: bool = False) -> str:
        """Return the progress as a line: compacting  [######......]  45 %  43 of 96 files  12/s  4.4 s left."""
        from kbroker.common.units import rounded_duration

        elapsed_ms = max(now_ms - self.begun_ms, 1)
        rate = self.done * 1000 / elapsed_ms
        parts = [self.name]
        if self.total:
            share = min(self.done / self.total, 1.0)
            if with_bar:
                full = int(share * BAR_CHARACTERS)
                parts.append(f"[{'#' * full}{'.' * (BAR_CHARACTERS - full)}]")
            parts += [f"{share:4.0%}", f"{self.done:,.0f} of {self.total:,.0f} {self.unit}".rstrip()]
        else:
            parts.append(f"{self.done:,.0f} {self.unit}".rstrip())
        if self.done:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
            if self.total:
                left_ms = max(self.total - self.done, 0) / rate * 1000
                parts.append(f"{rounded_duration(round(left_ms, -3 if left_ms > 10_000 else -2))} left")
        else:
            parts.append(rounded_duration(elapsed_ms))
        return "  ".join(parts)


class Watch:
    """Thread that polls the progress of a source, and shows it as steps of a display until it is closed.

    Args: `ask`: returns name, done and total of the current step, None between steps; errors end the watch only.

    Threads: `close` on the creating thread.
    """

    def __init__(self, display: ProgressDisplay, ask: Callable[[], tuple[str, float, float] | None], unit: str) -> None:
        self._display, self._ask, self._unit = display, ask, unit
        self._ended = threading.Event()
        self._thread = new_thread("progress", self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop showing progress."""
        self._ended.set()
        self._thread.join(5)

    def _run(self) -> None:
        found = None
        while not self._ended.is_set():
            found = found or self._next()
            if found is None:
                return
            name = found[0]
            with self._display.step(name, found[2], self._unit) as step:
                while found is not None and found[0] == name:
                    step.at(found[1], found[2])
                    found = self._next()

    def _next(self) -> tuple[str, float, float] | None:
        """Return the next step; None when the watch ends."""
        while not self._ended.wait(DRAW_MS / 1000):
            try:
                found = self._ask()
            except Exception:
                return None  # the session has ended, or its server does not respond
            if found is not None:
                return found
        return None


def _is_terminal(stream: TextIO) -> bool:
    """Return whether lines can be redrawn: the stream is a terminal that can erase a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
