"""Values of the last ten minutes as lines, the latest at the right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KEPT_MS = 600_000


class Chart(NamedTuple):
    """Lines in a box of 100 by 100, broken where a value is unknown; ``highest``: the value at its upper edge."""

    lines: list[str]
    highest: float
    minutes: int


def chart_of(points: Iterable[tuple[int, float | None]]) -> Chart | None:
    """Return the chart of times in ms and values; None before the second point, and without any value."""
    given = list(points)
    found = [one for one in given if one[0] >= given[-1][0] - KEPT_MS]
    known = [value for _, value in found if value is not None]
    if len(found) < 2 or not known:
        return None
    highest, end_ms = max(known), found[-1][0]
    lines: list[list[str]] = [[]]
    for time_ms, value in found:
        if value is None:
            lines.append([])
            continue
        x = 100 * (1 - (end_ms - time_ms) / KEPT_MS)
        lines[-1].append(f"{x:.1f},{98 - 96 * value / (highest or 1):.1f}")
    return Chart([" ".join(line) for line in lines if line], highest, KEPT_MS // 60_000)
