"""Forms whose changes were made: each makes its change once."""

from __future__ import annotations

import threading

MAX_FORMS = 10_000  # a new one displaces the oldest one


class Applied:
    """The latest forms whose changes were made. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._titles: dict[str, str] = {}  # of the change, by form, the oldest first

    def claim(self, form: str, title: str) -> bool:
        """Return whether a form may make its change: the first time."""
        with self._lock:
            if form in self._titles:
                return False
            self._titles[form] = title
            if len(self._titles) > MAX_FORMS:
                del self._titles[next(iter(self._titles))]
            return True

    def last(self, title: str) -> str:
        """Return the last form that made a change with this title; empty if there was none."""
        with self._lock:
            return next((form for form, made in reversed(self._titles.items()) if made == title), "")
