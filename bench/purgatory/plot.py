"""Draw a study: python bench/purgatory/plot.py STUDY.json OUT_WITHOUT_SUFFIX  (writes .png and .svg)

Needs matplotlib (the `bench` extra), but not kbroker. A saturated point is drawn as a cross, with an M if memory was
exhausted.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Point = dict[str, Any]
STYLES = {  # colour, line style, name
    "kbroker": ("#1f6f8b", "-", "kbroker"),
    "kafka": ("#d1693c", "-", "Apache Kafka, warmed JVM"),
    "old": ("#5d6268", "--", "old design, purge at 1,000 entries"),
    "old-mid": ("#8a8f94", "-.", "old design, purge at 300,000"),
    "old-high": ("#b3b8bd", ":", "old design, purge at 2,000,000"),
}
MIXES = {
    "low": "low mix: median 20 ms, 75th percentile 60 ms",
    "high": "high mix: median 200 ms, 75th percentile 400 ms",
}


def thousands(value: float, _: Any = None) -> str:
    return f"{value / 1000:,.0f}k" if value < 1_000_000 else f"{value / 1_000_000:g}M"


def of(document: dict[str, Any], part: str, mix: str, series: str) -> list[Point]:
    return [p for p in document["points"] if (p["part"], p["mix"], p["series"]) == (part, mix, series)]


def curve(axes: Any, points: list[Point], series: str, value: Callable[[Point], float | None]) -> None:
    """Draw the points with a target in the order of their rates; saturated points are crosses outside the line."""
    colour, style, name = STYLES[series]
    timed = [p for p in points if p["rate_target"] and "rate_enqueue" in p and value(p) is not None]
    timed.sort(key=lambda p: p["rate_target"])
    kept = [p for p in timed if not p["saturated"]]
    lost = [p for p in timed if p["saturated"]]
    axes.plot(
        [p["rate_target"] for p in kept],
        [value(p) for p in kept],
        style,
        color=colour,
        marker="o",
        ms=3.5,
        lw=1.4,
        label=name,
    )
    axes.plot([p["rate_target"] for p in lost], [value(p) for p in lost], "x", color=colour, ms=6, mew=1.6)
    for point in lost:
        if point["saturated"] == "memory":
            axes.annotate(
                "M",
                (point["rate_target"], value(point)),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=6,
                color=colour,
            )


def pause_ms(point: Point) -> float | None:
    """Return the longest garbage collection of the JVM, or the longest stall of another design's generator."""
    found = point.get("gc_max_ms", point.get("stall_max_ms"))
    return None if found is None else max(float(found), 0.1)


def late_ms(point: Point) -> float | None:
    late = point.get("expiry_late_ms")
    return None if late is None else max(float(late["p99"]), 0.1)


def memory_mb(point: Point) -> float | None:
    found = point.get("rss_peak_mb", point.get("heap_peak_mb"))
    return None if found is None else float(found)


PANELS: tuple[tuple[str, Callable[[Point], float | None], bool], ...] = (
    ("requests enqueued per second", lambda p: float(p["rate_enqueue"]), False),
    ("CPUs used", lambda p: float(p["cpus"]), False),
    ("memory, MB (JVM: heap)", memory_mb, False),
    ("longest pause, ms (JVM: collection; else: generator held up)", pause_ms, True),
    ("expiry late, 99th percentile, ms", late_ms, True),
)


def draw_panel(axes: Any, document: dict[str, Any], mix: str, value: Callable[[Point], float | None]) -> None:
    for series in STYLES:
        points = of(document, "sweep", mix, series)
        if points:
            curve(axes, points, series, value)
    axes.xaxis.set_major_formatter(thousands)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)


def draw_full_speed(axes: Any, document: dict[str, Any], mix: str) -> None:
    """Draw the rate of each design at full speed, unless it is saturated."""
    for series, (colour, _, _) in STYLES.items():
        for point in of(document, "sweep", mix, series):
            if not point["rate_target"] and "rate_enqueue" in point and not point["saturated"]:
                axes.axhline(point["rate_enqueue"], color=colour, lw=0.8, ls="-.", alpha=0.7)
                text = f"full speed {thousands(point['rate_enqueue'])}"
                at = axes.get_yaxis_transform()
                axes.text(
                    1, point["rate_enqueue"], text, color=colour, fontsize=6, va="bottom", ha="right", transform=at
                )


def draw_offers(axes: Any, document: dict[str, Any]) -> None:
    for mix, style in (("low", "-"), ("high", "--")):
        points = [p for p in of(document, "sweep", mix, "kbroker") if p["rate_target"]]
        axes.plot(
            [p["rate_target"] for p in points], [p["offers_per_request"] for p in points], style, color="#1f6f8b",
            marker="o", ms=3.5, lw=1.4, label=f"kbroker, {mix} mix",
        )  # fmt: skip
    axes.axhline(1, color="#8a8f94", ls=":", lw=1.4, label="old design: one heap entry a request")
    axes.set_yscale("log")
    axes.set_title("offers to the delay queue per request", fontsize=8, loc="left")
    axes.set_xlabel("target rate, requests per second", fontsize=7)
    axes.xaxis.set_major_formatter(thousands)
    axes.legend(fontsize=6, frameon=False)


def draw_sparse(axes: Any, document: dict[str, Any]) -> None:
    for series in ("kbroker", "old"):
        colour, style, name = STYLES[series]
        points = of(document, "sparse", "low", series)
        wakeups = [p["reaper_wakeups_per_s"] for p in points]
        rates = [p["rate_target"] for p in points]
        axes.plot(rates, wakeups, style, color=colour, marker="o", ms=3.5, lw=1.4, label=name.split(",")[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("wake-ups of the reaper per second, sparse timers (low mix)", fontsize=8, loc="left")
    axes.set_xlabel("requests per second", fontsize=7)
    axes.legend(fontsize=6, frameon=False)


def draw(document: dict[str, Any], out: Path) -> None:
    figure, grid = plt.subplots(len(PANELS) + 1, 2, figsize=(10.5, 15), layout="constrained")
    for row, (title, value, logarithmic) in zip(grid, PANELS, strict=False):
        for axes, mix in zip(row, MIXES, strict=True):
            draw_panel(axes, document, mix, value)
            axes.set_title(title, fontsize=8, loc="left")
            if logarithmic:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
            else:
                axes.set_ylim(bottom=0)
    for axes, mix in zip(grid[0], MIXES, strict=True):
        axes.yaxis.set_major_formatter(thousands)
        draw_full_speed(axes, document, mix)
        axes.set_title(f"{MIXES[mix]}\nrequests enqueued per second", fontsize=8, loc="left")
    for axes in grid[2]:
        axes.axhline(document["memory_mb"], color="#333333", lw=0.8, ls="--")
        axes.text(0.99, document["memory_mb"], "cap of kbroker and the old design", fontsize=6, ha="right", va="bottom",
                  transform=axes.get_yaxis_transform())  # fmt: skip
    for axes in grid[-2]:
        axes.set_xlabel("target rate, requests per second", fontsize=7)
    draw_offers(grid[-1][0], document)
    draw_sparse(grid[-1][1], document)
    for axes in grid[-1]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=7)
    facts = document["machine"]
    others = statistics.median(p.get("other_cpus", 0) for p in document["points"])
    figure.suptitle(
        f"Purgatory under the article's workload: {document['n']:,} requests, time-out 200 ms, 100 bytes, tick 1 ms, "
        "wheel 20\n"
        f"{facts['cpu']}, {facts['cores']} cores, {facts['date']}; crosses: saturated (M: out of memory);"
        f" other programs used {others:.1f} CPU",
        fontsize=9,
    )
    handles, names = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=7, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(out.with_suffix(suffix), dpi=110, metadata={"Date": None} if suffix == ".svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
