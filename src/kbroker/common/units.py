"""Numbers with a unit as people write and read them: 1MB, 10 MiB/s, 5/s, 50 %, 30s."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

UNITS: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
#: People write 1MB and 1mb for megabytes; 1Mb and 1M are ambiguous.
_BY_SPELLING = {"": 1, **{spelling: n for unit, n in UNITS.items() for spelling in (unit, unit.upper(), unit.lower())}}
_BINARY = ("KiB", "MiB", "GiB", "TiB")
_WITH_UNIT = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)\s*\Z")
#: In milliseconds.
DURATIONS: Mapping[str, int] = {
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_PER_SECOND = re.compile(r"\s*/\s*s(?:ec|econd)?\s*\Z")
_LONGEST = 60  # maximum length of a number that is parsed

EXAMPLES = "1048576, 1MB (1,000,000) or 1MiB (1,048,576)"


def parse_bytes(text: str) -> float:
    """Return the bytes of a number with or without a unit: "1048576", "1MB", "1.5 GiB".

    Raises: ValueError with a text for people.
    """
    found = _WITH_UNIT.match(text) if len(text) <= _LONGEST else None
    factor = _BY_SPELLING.get(found[2]) if found else None
    if found is None or factor is None:
        raise ValueError(f"expected bytes such as {EXAMPLES}, got {text[:_LONGEST]!r}")
    try:
        from decimal import Decimal  # the import takes 5 ms; a start does not need it

        number = float(Decimal(found[1]) * factor)
        if math.isinf(number):
            raise OverflowError
        return number
    except ArithmeticError:  # raised by decimal and by float
        raise ValueError(f"expected bytes such as {EXAMPLES}, got {text[:_LONGEST]!r}") from None


def parse_byte_rate(text: str) -> float:
    """Return bytes per second, as `parse_bytes`, with an optional "/s". Raises: ValueError."""
    return parse_bytes(_PER_SECOND.sub("", text[: _LONGEST + 1]))


def parse_rate(text: str) -> float:
    """Return a number per second, with an optional "/s". Raises: ValueError."""
    return float(_PER_SECOND.sub("", text[: _LONGEST + 1]))


def parse_percentage(text: str) -> float:
    """Return a percentage, with an optional "%". Raises: ValueError."""
    return float(text.rstrip().removesuffix("%"))


def parse_duration(text: str) -> int:
    """Return the milliseconds of a time with its unit: "500ms", "30s", "1.5 min", "2h", "7d". Raises: ValueError."""
    found = _WITH_UNIT.match(text) if len(text) <= _LONGEST else None
    factor = DURATIONS.get(found[2]) if found else None
    try:
        if found is None or factor is None:
            raise ValueError
        from decimal import Decimal

        ms = Decimal(found[1]) * factor
        if not 0 <= ms <= 10**15:
            raise ValueError
        return int(ms)
    except (ValueError, ArithmeticError):
        raise ValueError(f"expected a time such as 500ms, 30s, 5min, 2h or 1d, got {text[:_LONGEST]!r}") from None


def exact_bytes(number: float) -> str:
    """Return bytes exactly, in the largest binary unit that needs at most two decimals: 1.5 MiB, 1500000 B."""
    for unit in reversed(_BINARY):
        shown = number / UNITS[unit]
        if abs(shown) >= 1 and shown == round(shown, 2) and abs(shown) < 1e15:
            return f"{shown:.15g} {unit}"
    return f"{number:.0f} B" if float(number).is_integer() else f"{number!r} B"


def rounded_bytes(number: float) -> str:
    """Return bytes rounded, in the largest binary unit that leaves at least one, with one decimal: 1.5 MiB."""
    if abs(number) < 1023.5:
        return f"{number:.0f} B"
    for unit in _BINARY:
        shown = number / UNITS[unit]
        if abs(shown) < 1023.95:
            break
    return f"{shown:.1f} {unit}"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun: 1 file, 2,048 files."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def rounded_duration(ms: float) -> str:
    """Return a time, rounded: 0.25 ms, 850 ms, 3.1 s, 2 min 5 s, 3 h 7 min, 3 d 4 h."""
    if ms < 999.5:
        return f"{ms:.2g} ms" if 0 < ms < 9.95 else f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_s} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24:,} d {hours % 24} h"
