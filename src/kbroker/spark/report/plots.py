"""Plots as inline SVG: no script, no font, no file beside them; colours are the page's, and follow its theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from html import escape
from typing import NamedTuple

WIDE, NARROW = 920, 440  # of a page on a desk, and on a phone
LEFT, RIGHT, BOTTOM, TOP = 78, 12, 26, 10
Text = Callable[[float], str]
Scale = Callable[[float], list[float]]


class Line(NamedTuple):
    """One line of a plot; `colour` is the number of one of the page's."""

    name: str
    values: Sequence[float]
    colour: int
    dashed: bool = False


def ticks(highest: float, about: int = 4) -> list[float]:
    """Round numbers from 0 to at least `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw - 1e-12)
    return [round(i * step, 10) for i in range(math.ceil(highest / step - 1e-9) + 1)]


def byte_ticks(highest: float) -> list[float]:
    """The same for bytes: round in the unit that people read them in."""
    unit = 1024.0 ** max(0, min(4, int(math.log(max(highest, 1), 1024))))
    return [tick * unit for tick in ticks(highest / unit)]


_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def time_ticks(start: float, end: float, about: int = 7) -> list[int]:
    """Round times within a span, in seconds since 1970."""
    raw = (end - start) / about
    step = next((s for s in _STEPS_S if s >= raw), 86_400 * max(1, math.ceil(raw / 86_400)))
    first = math.ceil(start / step) * step
    return list(range(first, int(end) + 1, step))


def clock_text(second: float, span_s: float) -> str:
    """A time of the axis, with as much of it as the span needs."""
    moment = datetime.fromtimestamp(second, timezone.utc)
    if span_s > 2 * 86_400:
        return f"{moment:%d %b}"
    return f"{moment:%H:%M}" if span_s > 1_800 else f"{moment:%H:%M:%S}"


def _time_axis(start: float, end: float, height: int, left: int, width: int) -> list[str]:
    inner = width - left - RIGHT
    parts = []
    for tick in time_ticks(start, end, 7 if width == WIDE else 4):
        x = left + inner * (tick - start) / (end - start)
        anchor = "end" if x > width - RIGHT - 24 else "start" if x < left + 8 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{clock_text(tick, end - start)}</text>'
        )
    return parts


def value_axis(scale: Sequence[tuple[float, str]], width: int) -> list[str]:
    """Grid lines with their texts. Args: `scale`: place and text of each."""
    return [
        part
        for y, text in scale
        for part in (
            f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>',
        )
    ]


def line_plot(
    lines: Sequence[Line], start: float, end: float, text: Text, title: str, scale_of: Scale = ticks, height: int = 230
) -> str:
    """Values over time, all lines of one length. Args: `start`, `end`: seconds since 1970; `text`: of a value."""
    scale = scale_of(max((max(line.values, default=0) for line in lines), default=0))
    top, bottom = TOP, height - BOTTOM

    def place(value: float) -> float:
        return bottom - (bottom - top) * value / scale[-1]

    def draw(width: int) -> tuple[list[str], int]:
        inner = width - LEFT - RIGHT
        parts = value_axis([(place(tick), text(tick)) for tick in scale], width)
        for line in lines:
            count = max(len(line.values) - 1, 1)
            points = " ".join(
                f"{LEFT + inner * i / count:.1f},{place(value):.1f}" for i, value in enumerate(line.values)
            )
            dash = ' stroke-dasharray="5 4"' if line.dashed else ""
            parts.append(
                f'<polyline class="line c{line.colour}" points="{points}"{dash}>'
                f"<title>{escape(line.name)}</title></polyline>"
            )
        return parts + _time_axis(start, end, height, LEFT, width), height

    legend = "".join(
        f'<span><i class="b{line.colour}{" dashed" if line.dashed else ""}"></i>{escape(line.name)}</span>'
        for line in lines
    )
    return for_both_widths(draw, title) + f'<p class="legend">{legend}</p>'


def heat_map(
    names: Sequence[str], rows: Sequence[Sequence[float]], start: float, end: float, text: Text, title: str,
    highest: float | None = None,
) -> str:  # fmt: skip
    """A row of cells per name, darker where the value is higher (by its root, so that small ones show).

    Args: `highest`: what is darkest, by default the highest value; give it where two maps are compared.
    """
    high = highest if highest is not None else max((max(row, default=0) for row in rows), default=0)
    cell = 20

    def draw(width: int) -> tuple[list[str], int]:
        # where there is no room beside the cells, a name stands above its own
        left, above = (190, 0) if width == WIDE else (RIGHT, 18)
        height = TOP + (cell + above) * len(names) + BOTTOM
        inner = width - left - RIGHT
        parts = []
        for number, (name, row) in enumerate(zip(names, rows, strict=True)):
            y = TOP + (cell + above) * number
            parts.append(_name(name, 27, 190 - 6, y + 14) if not above else _name(name, 48, left, y + 13, "start"))
            y += above
            parts.append(f'<rect class="empty" x="{left}" y="{y + 1}" width="{inner}" height="{cell - 2}"/>')
            step = inner / max(len(row), 1)
            for i, value in enumerate(row):
                if value > 0:
                    share = 0.15 + 0.85 * math.sqrt(min(value / high, 1)) if high > 0 else 0
                    when = clock_text(start + (end - start) * i / len(row), 0)
                    parts.append(
                        f'<rect class="heat" x="{left + i * step:.1f}" y="{y + 1}" width="{step + 0.3:.1f}" '
                        f'height="{cell - 2}" opacity="{share:.2f}"><title>{escape(name)}, {when}: '
                        f"{escape(text(value))}</title></rect>"
                    )
        return parts + _time_axis(start, end, height, left, width), height

    return for_both_widths(draw, title)


def paired_bars(
    names: Sequence[str], before: Sequence[float | None], after: Sequence[float | None], text: Text, title: str
) -> str:
    """Two bars per name, on a scale of powers of ten where the values differ a lot; None is said, not drawn."""
    known = [v for v in [*before, *after] if v]
    high, low = max(known, default=1.0), min(known, default=1.0)
    is_log = low > 0 and high / low > 100
    row = 40

    def share(value: float) -> float:
        if value <= 0:
            return 0.0
        return 0.08 + 0.92 * math.log(value / low) / math.log(high / low) if is_log else value / high

    def draw(width: int) -> tuple[list[str], int]:
        left, above = (250, 0) if width == WIDE else (RIGHT, 18)
        inner = width - left - 110
        parts = []
        for number, name in enumerate(names):
            y = TOP + (row + above) * number
            parts.append(_name(name, 38, left - 8, y + 21) if not above else _name(name, 48, left, y + 13, "start"))
            for place, (value, colour) in enumerate(((before[number], 0), (after[number], 1))):
                at = y + above + 3 + 16 * place
                size = inner * share(value) if value else 0
                parts.append(f'<rect class="f{colour}" x="{left}" y="{at}" width="{size:.1f}" height="13" rx="2"/>')
                label = "no quota" if value is None else text(value)
                parts.append(f'<text x="{left + size + 6:.1f}" y="{at + 11}">{escape(label)}</text>')
        return parts, TOP + (row + above) * len(names) + 6

    said = '<p class="soft">Lengths are logarithmic.</p>' if is_log else ""  # a bar must not look as half of another
    return for_both_widths(draw, title) + said


def _name(name: str, most: int, x: float, y: float, anchor: str = "end") -> str:
    """A name that stands beside or above what belongs to it, cut to `most` characters."""
    shown = name if len(name) <= most else name[: most - 1] + "…"
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(shown)}</text>'


def for_both_widths(draw: Callable[[int], tuple[list[str], int]], title: str) -> str:
    """A plot twice, for desks and for phones; the page's style shows one of them. Args: `draw`: parts and height."""
    found = []
    for width, name in ((WIDE, "wide"), (NARROW, "narrow")):
        parts, height = draw(width)
        found.append(
            f'<svg class="{name}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
            f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
        )
    return "".join(found)
