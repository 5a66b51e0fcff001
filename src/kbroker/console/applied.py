"""Forms whose changes were made: each makes its change once, and a resent form gets the same result again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock

if TYPE_CHECKING:
    from kbroker.console.site import View

MAX_FORMS = 10_000  # a further form displaces the oldest
RESULT_MS = 30_000
MAX_RESULTS = 100


class Applied:
    """The latest forms whose changes were made. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._titles: dict[str, str] = {}  # titles of changes by form, the oldest first
        self._busy: set[tuple[str, ...]] = set()
        self._results: dict[tuple[str, object], tuple[int, View]] = {}  # expiry and page, by form and owner

    def claim(self, form: str, title: str) -> bool:
        """Reserve the change of a form; return False if it was reserved before."""
        with self._changed:
            if form in self._titles:
                return False
            self._titles[form] = title
            if len(self._titles) > MAX_FORMS:
                del self._titles[next(iter(self._titles))]
            return True

    def last(self, title: str) -> str:
        """Return the last form that made a change with this title; empty if there was none."""
        with self._changed:
            return next((form for form, made in reversed(self._titles.items()) if made == title), "")

    @contextmanager
    def alone(self, *name: str) -> Iterator[None]:
        """Enter once no other request applies the form or change of this name: ("form", id) or ("title", title).

        A double click sends a form twice at once. A request enters for its form before it enters for the title of its
        change. Browsers choose the ids of forms, which must not be taken for titles.
        """
        with self._changed:
            self._changed.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(name)
                self._changed.notify_all()

    def keep(self, form: str, owner: object, result: View) -> None:
        """Keep a page that cannot be made again, such as one with a new password, for RESULT_MS."""
        now_ms = self._clock.now_ms()
        with self._changed:
            self._drop_expired(now_ms)
            if len(self._results) >= MAX_RESULTS:
                del self._results[next(iter(self._results))]
            self._results[form, owner] = now_ms + RESULT_MS, result

    def result(self, form: str, owner: object) -> View | None:
        """Return the page that was the result of this owner's form; None if it is not kept."""
        with self._changed:
            self._drop_expired(self._clock.now_ms())
            kept = self._results.get((form, owner))
            return None if kept is None else kept[1]

    def _drop_expired(self, now_ms: int) -> None:
        self._results = {key: kept for key, kept in self._results.items() if kept[0] > now_ms}
