"""Progress reports of the pipeline's jobs, and readable figures."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common.units import counted as counted
from kbroker.common.units import rounded_bytes, rounded_duration

Progress = Callable[[str], object]


def silent(line: str) -> None:
    """Discard progress messages."""


def count(number: float | None) -> str:
    """Format 1234567 as 1,234,567; None as a hyphen."""
    return "-" if number is None else f"{number:,.0f}"


def size(number: float | None) -> str:
    """Format bytes in the largest unit that leaves at least one: 1.5 MiB; None as a hyphen."""
    return "-" if number is None else rounded_bytes(number)


def duration(ms: float | None) -> str:
    """Format milliseconds: 12 ms, 3.4 s, 5 min 6 s, 2 h 5 min; None as a hyphen."""
    return "-" if ms is None else rounded_duration(ms)


def share(part: float) -> str:
    """Format a fraction, 0 to 1, in percent."""
    return f"{100 * part:.1f} %"


def rate(rows: float, ms: float) -> str:
    """Format rows per second."""
    return f"{rows * 1000 / max(ms, 1):,.0f} rows/s"
