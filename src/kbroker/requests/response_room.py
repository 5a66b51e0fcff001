"""Limit of a response's size: an entry that takes a few bytes in the request may take megabytes in the response.

Kafka has no such limit: there, each repetition of a name adds one more copy of the whole description.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kbroker.common.errors import Errors
from kbroker.requests.context import Body

MAX_BYTES = 64 << 20  # of descriptions, approximately in memory: some 200,000 members or partitions
DICT_BYTES, FIELD_BYTES, ITEM_BYTES = 128, 16, 8

#: Error of entries beyond the limit of a coordinator's response: clients retry those entries alone.
NO_ROOM = Errors.COORDINATOR_LOAD_IN_PROGRESS
NO_ROOM_TEXT = "This response is full: request this entry in another one."

_SIZED = (str, bytes, list, dict)


class ResponseRoom:
    """Capacity of one response. The entry that exceeds the limit is included, so that any entry can be sent alone.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._left_bytes = MAX_BYTES
        self._described: dict[Hashable, tuple[Body, int]] = {}

    @property
    def is_full(self) -> bool:
        """Return whether no further entry may be added."""
        return self._left_bytes <= 0

    def take(self, value: Any) -> None:
        """Count a part of the response, once for each occurrence."""
        self._left_bytes -= _size_bytes(value)

    def described(self, key: Hashable, describe: Callable[[], Body]) -> Body | None:
        """Return the description of a key, created once and reused for repetitions; None if the response is full.

        Raises: the exceptions of ``describe``.
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
        """Return an error's text, counted; None if the response is full."""
        if self.is_full:
            return None
        self.take(text)
        return text


def _size_bytes(value: Any) -> int:
    """Return the approximate size in memory of a part of a response; it is above its size on the wire."""
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
