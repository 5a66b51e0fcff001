"""Unicode's classes, and letters with several cases, as in RE2/J; imported when a pattern needs one.

The data is packed: numbers of seven bits a byte, the last byte of each below 128; then zlib, then base 85.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from functools import cache

from kbroker.common.java.unicode_data import CASES, CLASSES


def ranges_of(name: str) -> list[tuple[str, str]] | None:
    """Return the first and last characters of a general category or a script, in order; None for an unknown name."""
    return _ranges_of(name) if name in _classes() else None  # the cache keeps no unknown names of clients


@cache
def _ranges_of(name: str) -> list[tuple[str, str]]:
    numbers = unpacked(_classes()[name])
    found = []
    end = 0
    for gap in numbers:
        start = end + gap
        end = start + next(numbers)
        found.append((chr(start), chr(end - 1)))
    return found


@cache
def other_cases() -> dict[str, list[str]]:
    """Return for each letter, in order, the letters that are equal to it when case is ignored."""
    found: dict[str, list[str]] = {}
    numbers = unpacked(_inflated(CASES))
    first = 0
    for gap in numbers:
        first += gap
        letters = [chr(first), *(chr(next(numbers)) for _ in range(next(numbers)))]
        found.update({letter: [one for one in letters if one != letter] for letter in letters})
    return dict(sorted(found.items()))


@cache
def _classes() -> dict[str, bytes]:
    head, _, data = _inflated(CLASSES).partition(b"\n")
    found = {}
    for entry in head.decode().split(","):
        name, _, length = entry.partition(":")
        found[name], data = data[: int(length)], data[int(length) :]
    return found


def _inflated(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def unpacked(data: bytes) -> Iterator[int]:
    """Yield the numbers of packed bytes."""
    number = 0
    for byte in data:
        number = number << 7 | byte & 127
        if byte < 128:
            yield number
            number = 0
