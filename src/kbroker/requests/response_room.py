"""Limit of a response's size: an entry that the request names in a few bytes may take megabytes.

Kafka has no such bound: each repetition of a name is one more copy of the whole description there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kbroker.common.errors import Errors
from kbroker.requests.context import Body

MAX_BYTES = 64 << 20  # of descriptions, about as they lie in memory: some 200,000 members or partitions
DICT_BYTES, FIELD_BYTES, ITEM_BYTES = 128, 16, 8

#: The error of what a coordinator's response has no room for: clients ask again for what has it, and for that alone.
NO_ROOM = Errors.COORDINATOR_LOAD_IN_PROGRESS
NO_ROOM_TEXT = "This response has no room for it: ask again in another request."

_SIZED = (str, bytes, list, dict)


class ResponseRoom:
    """The room of one response. What passes the limit is still whole: each thing can be described alone at least.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._left_bytes = MAX_BYTES
        self._described: dict[Hashable, tuple[Body, int]] = {}

    @property
    def is_full(self) -> bool:
        """Return whether nothing more may be added."""
        return self._left_bytes <= 0

    def take(self, value: Any) -> None:
        """Count a part of the response, as often as the response has it."""
        self._left_bytes -= _size_bytes(value)

    def described(self, key: Hashable, describe: Callable[[], Body]) -> Body | None:
        """The description of what has this key: made once, the same again for a repetition; None if the room is full.

        Raises: what ``describe`` raises.
        """
        if self.is_full:
            return None
        known = self._described.get(key)
        if known is None:
            body = describe()
            known = self._described[key] = body, _size_bytes(body)
        self._left_bytes -= known[1]
        return known[0]

    def text(self, text: str) -> str | None:
        """An error's text that the response repeats; None if the room is full."""
        if self.is_full:
            return None
        self.take(text)
        return text


def _size_bytes(value: Any) -> int:
    """About what a part of a response takes in memory, and more than it takes on the wire."""
    size = 0
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            size += DICT_BYTES + FIELD_BYTES * len(item)
            left.extend(part for part in item.values() if isinstance(part, _SIZED))
        elif isinstance(item, list):
            size += ITEM_BYTES * len(item)
            left.extend(part for part in item if isinstance(part, _SIZED))
        elif isinstance(item, (str, bytes)):
            size += len(item) if isinstance(item, bytes) or item.isascii() else 4 * len(item)
    return size
