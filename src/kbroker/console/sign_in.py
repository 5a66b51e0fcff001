"""Access to the console: sessions of signed-in users, and the secret of forms.

A session is a random number in a cookie; the console keeps its hash. The token itself is never in a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping

from kbroker._core.clock import BaseClock

COOKIE = "kbroker_console"
SESSION_MS = 12 * 3_600_000
MAX_SESSIONS = 1000  # a new session ends the oldest one


class Sessions:
    """Sessions of signed-in users.

    Args: ``clock``. Threads: any.
    """

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ms: dict[bytes, int] = {}  # by the hash of the cookie's value, the oldest first

    def begin(self) -> str:
        """Begin a session; return the value of its cookie."""
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._until_ms[_hash(value)] = self._clock.now_ms() + SESSION_MS
            while len(self._until_ms) > MAX_SESSIONS:
                del self._until_ms[next(iter(self._until_ms))]
        return value

    def knows(self, value: str) -> bool:
        """Return whether a cookie's value belongs to an open session."""
        with self._lock:
            until_ms = self._until_ms.get(_hash(value))
            if until_ms is not None and until_ms <= self._clock.now_ms():
                del self._until_ms[_hash(value)]
                return False
            return until_ms is not None

    def end(self, value: str) -> None:
        """Sign out."""
        with self._lock:
            self._until_ms.pop(_hash(value), None)


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
