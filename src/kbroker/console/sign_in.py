"""Access to the console: sessions of signed-in users, and the secret of forms.

A session is a random number in a cookie; the console keeps its hash. The token itself is never in a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker._core.clock import BaseClock

COOKIE = "kbroker_console"
SESSION_MS = 12 * 3_600_000
MAX_SESSIONS = 20  # maximum number of one principal: a new session ends the oldest


class _Session(NamedTuple):
    until_ms: int
    principal: str
    is_valid: Callable[[], bool]


class Sessions:
    """Sessions of signed-in users.

    Args: ``clock``. Threads: any.
    """

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[bytes, _Session] = {}  # keys: hash of the cookie's value; oldest first

    def begin(self, principal: str = "", is_valid: Callable[[], bool] = lambda: True) -> str:
        """Begin a session; return the value of its cookie.

        Args: ``principal`` of the user; empty for the holder of the token. ``is_valid``: false ends the session.
        """
        value = secrets.token_urlsafe(32)
        with self._lock:
            now_ms = self._clock.now_ms()
            self._sessions = {key: one for key, one in self._sessions.items() if one.until_ms > now_ms}
            own = [key for key, one in self._sessions.items() if one.principal == principal]
            if len(own) >= MAX_SESSIONS:
                del self._sessions[own[0]]
            self._sessions[_hash(value)] = _Session(now_ms + SESSION_MS, principal, is_valid)
        return value

    def principal(self, value: str) -> str | None:
        """Return the principal of a cookie's session; None if there is no such session."""
        with self._lock:
            session = self._sessions.get(_hash(value))
        if session is None:
            return None
        if session.until_ms <= self._clock.now_ms() or not session.is_valid():
            self.end(value)
            return None
        return session.principal

    def end(self, value: str) -> None:
        """Sign out."""
        with self._lock:
            self._sessions.pop(_hash(value), None)


class FormSecret:
    """Secret that proves that this console rendered a form for this session. Threads: any."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, session: str) -> str:
        """Return the hidden field of a form; ``session``: the cookie's value, empty without one."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def is_right(self, session: str, value: str) -> bool:
        """Return whether a field was returned by ``of``; the comparison takes constant time."""
        return hmac.compare_digest(self.of(session).encode(), value.encode("utf-8", "replace"))


def cookie_name(headers: Mapping[str, str]) -> str:
    """Return the cookie's name with the port of the request: cookies of a host belong to all of its ports."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdigit() and len(port) <= 5 else COOKIE


def cookie_of(headers: Mapping[str, str]) -> str:
    """Return the value of the console's cookie; empty without one."""
    wanted = cookie_name(headers)
    for part in headers.get("cookie", "")[:8192].split(";"):
        name, equals, value = part.strip().partition("=")
        if equals and name == wanted:
            return value
    return ""


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "replace")).digest()
