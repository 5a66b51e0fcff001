"""Limit of the wrong tokens that one address may send to the HTTP port."""

from __future__ import annotations

import threading

from kbroker._core.clock import BaseClock

GUESSES = 5  # maximum number of wrong tokens of one address within GUESS_MS
ALL_GUESSES = 100  # limit for all addresses together: after it an address without a right token so far must wait
GUESS_MS = 60_000
MAX_RIGHT = 1000


class WrongTokens:
    """Counts of wrong tokens, which determine the time for which an address must wait.

    Guesses from many addresses delay unknown addresses, but not those that sent the right token before.

    Args: ``clock``. Threads: any; one lock.
    """

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: dict[str, list[int]] = {}  # times by address
        self._right: dict[str, None] = {}  # addresses, the oldest first

    def wait_ms(self, address: str, is_right: bool | None) -> int:
        """Record a token of an address; return the time for which its tokens are refused, 0 if this one is considered.

        Args: ``is_right``: None records nothing.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            self._forget(now_ms)
            own = self._wrong.get(address, [])
            if len(own) >= GUESSES:
                return own[0] + GUESS_MS - now_ms
            if address not in self._right:
                every = sorted(when for times in self._wrong.values() for when in times)
                if len(every) >= ALL_GUESSES:
                    return every[-ALL_GUESSES] + GUESS_MS - now_ms
            if is_right:
                self._keep(address)
            elif is_right is False:
                self._wrong.setdefault(address, []).append(now_ms)
            return 0

    def _keep(self, address: str) -> None:
        self._right.pop(address, None)
        self._right[address] = None
        if len(self._right) > MAX_RIGHT:
            del self._right[next(iter(self._right))]

    def _forget(self, now_ms: int) -> None:
        for address, times in list(self._wrong.items()):
            times[:] = [when for when in times if when > now_ms - GUESS_MS]
            if not times:
                del self._wrong[address]
