"""Keys of a terminal, read one by one without echo for the duration of a block."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ESCAPE_S = 0.05  # within which the rest of an arrow key's sequence arrives
_SEQUENCES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "[5~": "page up", "[6~": "page down", "[H": "home"}


class Keyboard:
    """Keys of a terminal. Threads: one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def key(self, timeout_s: float) -> str | None:
        """Return the next key: a character, or "up", "down", "left", "right", "page up", "page down" or "home".

        None after the time-out and for any other key, "q" if the terminal is closed.
        """
        if not self._has_input(timeout_s):
            return None
        first = os.read(self._descriptor, 1)
        if not first:
            return "q"
        if first != b"\x1b":
            return first.decode("ascii", "ignore") or None
        rest = b""
        while len(rest) < 4 and self._has_input(ESCAPE_S):
            rest += os.read(self._descriptor, 1)
            if rest[-1:].isalpha() or rest.endswith(b"~"):
                break
        return _SEQUENCES.get(rest.decode("ascii", "ignore").replace("O", "["))

    def _has_input(self, timeout_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])


@contextmanager
def keyboard() -> Iterator[Keyboard | None]:
    """Yield the keys of standard input, and restore its settings at the end.

    Yields None if standard input is not a terminal, or the system has no termios.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield None
        return
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield None
        return
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = b"\x00"  # Ctrl-Z would leave the alternate screen on the terminal
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
