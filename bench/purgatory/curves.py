"""Plot of figures over a swept setting: each run is a dot, with a line through the medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.spark.report.plots import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Mark,
    Plot,
    Text,
    for_both_widths,
    text_mark,
    ticks,
    value_axis,
)  # fmt: skip


class Run(NamedTuple):
    """Dot of a plot, crossed if `lost`: the run could not follow its rate."""

    x: float
    y: float
    lost: bool = False
    note: str = ""


class Curve(NamedTuple):
    """All runs of one name; `colour` is the number of a colour of the page."""

    name: str
    runs: Sequence[Run]
    colour: int


def curve_plot(curves: Sequence[Curve], text_x: Text, text_y: Text, title: str, height: int = 230) -> Plot:
    """Return a plot of dots and lines.

    Axes are logarithmic if their values differ widely, and the x axis is labelled with the existing values.

    Args: `curves`: x above 0. `text_x`, `text_y`: texts of a value.
    """
    at = sorted({run.x for curve in curves for run in curve.runs})
    values = [run.y for curve in curves for run in curve.runs]
    across, up = _Scale(at, is_log=bool(at) and at[-1] / at[0] >= 8), _up(values)
    bottom = height - BOTTOM

    def draw(width: int) -> tuple[list[Mark], int]:
        inner = width - LEFT - RIGHT - 16

        def x_of(value: float) -> float:
            return LEFT + 8 + inner * across.share(value)

        def y_of(value: float) -> float:
            return bottom - (bottom - TOP) * up.share(value)

        marks = value_axis([(y_of(tick), text_y(tick)) for tick in up.ticks], width)
        last = -math.inf
        for value in at:
            text = text_x(value)
            if x_of(value) - last >= 8 * len(text) + 6:  # a label that would touch its neighbour is omitted
                anchor = "end" if value == at[-1] and len(at) > 1 else "middle"
                marks.append(text_mark(text, x_of(value), height - 8, anchor))
                last = x_of(value)
        for curve in curves:
            middle = [
                (x, statistics.median(run.y for run in curve.runs if run.x == x))
                for x in sorted({run.x for run in curve.runs})
            ]
            points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in middle)
            marks.append(Mark("polyline", {"class": f"line c{curve.colour}", "points": points}))
            marks += [_mark(run, curve, x_of(run.x), y_of(run.y), text_y) for run in curve.runs]
        return marks, height

    return Plot(title, for_both_widths(draw))


class _Scale:
    """Scale from values to places between 0 and 1."""

    def __init__(self, marks: Sequence[float], *, is_log: bool) -> None:
        self.ticks = list(marks)
        self._is_log = is_log
        low, high = (marks[0], marks[-1]) if marks else (0.0, 1.0)
        self._low, self._high = (math.log(low), math.log(high)) if is_log else (low, high)

    def share(self, value: float) -> float:
        place = math.log(value) if self._is_log and value > 0 else self._low if self._is_log else value
        return 0.5 if self._high <= self._low else max(0.0, (place - self._low) / (self._high - self._low))


def _up(values: Sequence[float]) -> _Scale:
    """Return a scale from 0, or a logarithmic one by powers of ten."""
    known = [value for value in values if value > 0]
    if not known or max(known) / min(known) <= 50:
        return _Scale(ticks(max(known, default=0.0)), is_log=False)
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return _Scale([10.0**power for power in range(first, last + 1)], is_log=True)


def _mark(run: Run, curve: Curve, x: float, y: float, text: Text) -> Mark:
    title = f"{curve.name}, {run.note}: {text(run.y)}"
    if run.lost:
        cross = f"M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"
        return Mark("path", {"class": f"cross c{curve.colour}", "d": cross, "fill": "none"}, title=title)
    dot = {"class": f"dot f{curve.colour}", "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": 3.5}
    return Mark("circle", dot, title=title)
