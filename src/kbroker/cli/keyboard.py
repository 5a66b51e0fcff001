"""Keys of a terminal, one by one and without their echo, as long as a block runs."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ESCAPE_S = 0.05  # in which the rest of an arrow key's sequence comes
_SEQUENCES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "[5~": "page up", "[6~": "page down", "[H": "home"}


class Keyboard:
    """Keys of a terminal. Threads: one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def key(self, timeout_s: float) -> str | None:
        """The next key: a character, or one of "up", "down", "left", "right", "page up", "page down", "home"; None
        after the time, "q" where the terminal is closed."""
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
    """The keys of standard input, whose settings come back at the end; None where that is no terminal, or the system
    has none of this kind."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, termios.error):
        yield None
        return
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = b"\x00"  # Ctrl-Z would leave its user in the other screen
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
