"""Plots as shapes of inline SVG, without scripts, fonts or other files; the page defines colours, by its theme.

The macro `plot` of templates/parts.html writes a `Plot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from kbroker.common.printable import beginning, columns_of

NO_QUOTA = "no quota"
WIDE, NARROW = 920, 400  # widths of a drawing on a desktop, and on a phone
LEFT, RIGHT, BOTTOM, TOP = 78, 12, 26, 10
LINE_HEIGHT = 230
Text = Callable[[float], str]
Scale = Callable[[float], list[float]]


class Line(NamedTuple):
    """One line of a plot; `colour` is the number of a colour of the page."""

    name: str
    values: Sequence[float]
    colour: int
    dashed: bool = False


class Mark(NamedTuple):
    """One element of SVG. Attributes (None: omitted), text and title are written as text, never as markup."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    title: str = ""


class Drawing(NamedTuple):
    """Marks for one width of page; `name` is its class in the style."""

    name: str
    width: int
    height: int
    marks: Sequence[Mark]


class Plot(NamedTuple):
    """Drawings with one title, for wide and narrow screens, with the lines of a legend above and a note below.

    `shades`: opacity and text of each entry of a heat map's legend.
    """

    title: str
    drawings: Sequence[Drawing]
    lines: Sequence[Line] = ()
    note: str = ""
    shades: Sequence[tuple[str, str]] = ()


Draw = Callable[[int], tuple[list[Mark], int]]  # maps a width to marks and a height


def ticks(highest: float) -> list[float]:
    """Return round numbers from 0 to at least `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / 4  # about four intervals
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw - 1e-12)
    return [round(i * step, 10) for i in range(math.ceil(highest / step - 1e-9) + 1)]


def byte_ticks(highest: float) -> list[float]:
    """Return numbers of bytes that are round in the unit in which they are shown."""
    unit = 1024.0 ** max(0, min(4, int(math.log(max(highest, 1), 1024))))
    return [tick * unit for tick in ticks(highest / unit)]


_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def time_ticks(start: float, end: float, about: int = 7) -> list[int]:
    """Return round times within a span, in seconds since 1970."""
    raw = (end - start) / about
    step = next((s for s in _STEPS_S if s >= raw), 86_400 * max(1, math.ceil(raw / 86_400)))
    first = math.ceil(start / step) * step
    return list(range(first, int(end) + 1, step))


def clock_text(second: float, span_s: float) -> str:
    """Return the label of a time, as precise as the span needs; at midnight the day."""
    moment = datetime.fromtimestamp(second, timezone.utc)
    if span_s > 1_800 and second % 86_400 == 0:
        return f"{moment:%d %b}"
    if span_s > 2 * 86_400:
        return f"{moment:%d %b %H:%M}"
    return f"{moment:%H:%M}" if span_s > 1_800 else f"{moment:%H:%M:%S}"


def text_mark(text: str, x: float, y: float, anchor: str) -> Mark:
    """Return a text that starts, ends or is centred at x."""
    return Mark("text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}, text)


def _time_axis(start: float, end: float, height: int, width: int) -> list[Mark]:
    """Return times below a plot, at the same places in each plot of a page."""
    inner = width - LEFT - RIGHT
    marks = []
    about = 7 if width == WIDE else 4 if end - start <= 2 * 86_400 else 3
    for tick in time_ticks(start, end, about):
        x = LEFT + inner * (tick - start) / (end - start)
        anchor = "end" if x > width - RIGHT - 40 else "start" if x < LEFT + 8 else "middle"
        marks.append(text_mark(clock_text(tick, end - start), x, height - 8, anchor))
    return marks


def value_axis(scale: Sequence[tuple[float, str]], width: int) -> list[Mark]:
    """Return grid lines with their texts. Args: `scale`: place and text of each."""
    marks = []
    for y, text in scale:
        marks.append(
            Mark("line", {"class": "grid", "x1": LEFT, "x2": width - RIGHT, "y1": f"{y:.1f}", "y2": f"{y:.1f}"})
        )
        marks.append(text_mark(text, LEFT - 6, y + 4, "end"))
    return marks


def line_plot(lines: Sequence[Line], start: float, end: float, text: Text, title: str, scale_of: Scale = ticks) -> Plot:
    """Plot values over time. Args: `lines` of equal length; `start`, `end`: seconds since 1970; `text` of a value."""
    scale = scale_of(max((max(line.values, default=0) for line in lines), default=0))
    height, top, bottom = LINE_HEIGHT, TOP, LINE_HEIGHT - BOTTOM

    def place(value: float) -> float:
        return bottom - (bottom - top) * value / scale[-1]

    def draw(width: int) -> tuple[list[Mark], int]:
        inner = width - LEFT - RIGHT
        marks = value_axis([(place(tick), text(tick)) for tick in scale], width)
        for line in lines:
            points = " ".join(f"{x:.1f},{place(v):.1f}" for x, v in _centres(line.values, LEFT, inner))
            dash = "5 4" if line.dashed else None
            attributes = {"class": f"line c{line.colour}", "points": points, "stroke-dasharray": dash}
            marks.append(Mark("polyline", attributes, title=line.name))
        return marks + _time_axis(start, end, height, width), height

    return Plot(title, for_both_widths(draw), lines)


def _centres(values: Sequence[float], left: float, inner: float) -> list[tuple[float, float]]:
    """Return the centre of each bin, and its value; a single bin becomes a line over its whole time."""
    if len(values) == 1:
        return [(left, values[0]), (left + inner, values[0])]
    return [(left + inner * (i + 0.5) / len(values), value) for i, value in enumerate(values)]


def heat_map(
    names: Sequence[str], rows: Sequence[Sequence[float]], start: float, end: float, text: Text, title: str,
    highest: float | None = None,
) -> Plot:  # fmt: skip
    """Plot a row of cells per name, darker for higher values (by the square root, so that small ones are visible).

    Args: `highest`: the darkest value, by default the highest; give it if two maps are compared.
    """
    high = highest if highest is not None else max((max(row, default=0) for row in rows), default=0)
    cell, above = 18, 18  # a name is above its cells, so that these begin where the lines of other plots do

    def shade(value: float) -> str:
        return f"{0.15 + 0.85 * math.sqrt(min(value / high, 1)) if high > 0 else 0:.2f}"

    def draw(width: int) -> tuple[list[Mark], int]:
        height = TOP + (cell + above) * len(names) + BOTTOM
        inner = width - LEFT - RIGHT
        marks = []
        for number, (name, row) in enumerate(zip(names, rows, strict=True)):
            y = TOP + (cell + above) * number
            marks.append(_name(name, 100 if width == WIDE else 40, LEFT, y + 13, "start"))
            band = {"y": y + above + 1, "height": cell - 2}
            marks.append(Mark("rect", {"class": "empty", "x": LEFT, "width": inner, **band}))
            step = inner / max(len(row), 1)
            for i, value in enumerate(row):
                if value > 0:
                    moment = datetime.fromtimestamp(start + (end - start) * i / len(row), timezone.utc)
                    when = f"{moment:%d %b %H:%M:%S}" if end - start > 86_400 else f"{moment:%H:%M:%S}"
                    place = {"x": f"{LEFT + i * step:.1f}", "width": f"{step + 0.3:.1f}", **band}
                    attributes = {"class": "heat", **place, "opacity": shade(value)}
                    marks.append(Mark("rect", attributes, title=f"{name}, {when}: {text(value)}"))
        return marks + _time_axis(start, end, height, width), height

    shades = [(shade(high * part), text(high * part)) for part in (0.01, 0.1, 0.5, 1)] if high > 0 else []
    return Plot(title, for_both_widths(draw), shades=shades)


def paired_bars(
    names: Sequence[str], before: Sequence[float | None], after: Sequence[float | None], text: Text, title: str,
    legend: tuple[str, str] = ("before", "after"), missing: str = NO_QUOTA,
) -> Plot:  # fmt: skip
    """Plot two bars per name, on a logarithmic scale if the values differ much; None gets a label without a bar.

    Args: `legend`: names of the first and the second bar; `missing`: label of a first bar that is None.
    """
    known = [v for v in [*before, *after] if v]
    high, low = max(known, default=1.0), min(known, default=1.0)
    is_log = low > 0 and high / low > 100
    row = 40

    def share(value: float) -> float:
        if value <= 0:
            return 0.0
        return 0.08 + 0.92 * math.log(value / low) / math.log(high / low) if is_log else value / high

    def draw(width: int) -> tuple[list[Mark], int]:
        left, above = (250, 0) if width == WIDE else (RIGHT, 18)
        inner = width - left - 110
        marks = []
        for number, name in enumerate(names):
            y = TOP + (row + above) * number
            marks.append(_name(name, 38, left - 8, y + 21) if not above else _name(name, 48, left, y + 13, "start"))
            for colour, value in enumerate((before[number], after[number])):
                at = y + above + 3 + 16 * colour
                size = inner * share(value) if value else 0
                bar = {"class": f"f{colour}", "x": left, "y": at, "width": f"{size:.1f}", "height": 13, "rx": 2}
                label = (missing, NO_QUOTA)[colour] if value is None else text(value)
                marks += [Mark("rect", bar), text_mark(label, left + size + 6, at + 11, "start")]
        return marks, TOP + (row + above) * len(names) + 6

    # with logarithmic lengths, a bar half as long is not half the value
    lines = [Line(what, [], colour) for colour, what in enumerate(legend)]
    return Plot(title, for_both_widths(draw), lines, "Lengths are logarithmic." if is_log else "")


def _name(name: str, maximum: int, x: float, y: float, anchor: str = "end") -> Mark:
    """Return a name, cut to the width of `maximum` characters."""
    shown = name if columns_of(name) <= maximum else f"{beginning(name, maximum - 1)}…"
    return text_mark(shown, x, y, anchor)


def for_both_widths(draw: Draw) -> list[Drawing]:
    """Return a wide and a narrow drawing; the page's style shows one of them."""
    widths = (("wide", WIDE), ("narrow", NARROW))
    return [Drawing(name, width, height, marks) for name, width in widths for marks, height in [draw(width)]]
