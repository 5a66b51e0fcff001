"""Durations as ``java.time.Duration`` reads them: days, hours, minutes and seconds of ISO 8601, in its range.

Source: ``Duration.parse``.
"""

from __future__ import annotations

import re

_DURATION = re.compile(  # no months or years; a sign before the whole and before each part
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?:T(?=.)(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?"
    r"(?:(?P<seconds>[-+]?[0-9]+)(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,  # Java folds the case of ASCII letters only
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # seconds of a duration, and of each part
_MOST_DIGITS = 19  # of such a number, without leading zeros


def parse_duration_ns(text: str) -> int | None:
    """Return the nanoseconds of a duration; None for other text and for durations that Java's class cannot hold."""
    match = _DURATION.fullmatch(text)
    if match is None or all(match[name] is None for name in _SECONDS):
        return None
    total = 0
    for name, factor in reversed(_SECONDS.items()):  # in Java's order: each sum must fit
        number = match[name] or "0"
        if len(number.lstrip("+-0")) > _MOST_DIGITS:
            return None
        part = int(number) * factor
        total += part
        if not (_LEAST <= part <= _MOST and _LEAST <= total <= _MOST):
            return None
    fraction_ns = int((match["fraction"] or "").ljust(9, "0"))
    if (match["seconds"] or "").startswith("-"):
        fraction_ns = -fraction_ns
    total_ns = total * 10**9 + fraction_ns
    if match["sign"] == "-":
        total_ns = -total_ns
    return total_ns if _LEAST <= total_ns // 10**9 <= _MOST else None
