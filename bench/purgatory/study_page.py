"""Page about a purgatory study: cost and memory of kbroker's purgatory at each rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.purgatory import measurements
from bench.purgatory.curves import Curve, Run, curve_plot
from bench.purgatory.measurements import Row
from bench.purgatory.tables import DISTURBED, HEADER, cells, target
from kbroker.spark import formatting as jobs
from kbroker.spark.report.document import LINES, render_page
from kbroker.spark.report.plots import Plot, Text

PLOTS: tuple[tuple[str, str, Text], ...] = (
    ("Requests enqueued per second", "rate_enqueued", lambda v: jobs.count(v)),
    ("CPU per request, microseconds", "cpu_us_per_request", lambda v: f"{v:,.10g}"),
    ("Memory: growth of the process, MB", "memory_mb", lambda v: f"{v:,.10g}"),
    ("Longest pause of the generator, ms", "pause_max_ms", lambda v: f"{v:,.10g}"),
    ("Expiry late, 99th percentile, ms", "expiry_late_p99_ms", lambda v: f"{v:,.10g}"),
    ("Expired beside drawn: points apart", "off", lambda v: f"{v:,.10g}"),
    ("CPUs that others used meanwhile", "other_cpus", lambda v: f"{v:,.10g}"),
    ("CPUs that the host withheld", "stolen_cpus", lambda v: f"{v:,.10g}"),
)


def write_study_page(rows: Sequence[Row], source: str, output: str | Path, made_at: datetime) -> None:
    """Write the page of a study.

    Args: `source`: origin of its rows, as shown by the page. `made_at`: time shown by the page.
    Raises: OSError.
    """
    Path(output).write_bytes(render_study(rows, source, made_at).encode())


def render_study(rows: Sequence[Row], source: str, made_at: datetime) -> str:
    """Return the whole page."""
    done = [row for row in rows if row["error"] is None]
    groups = _groups(done)
    return render_page(
        "study_page.html",
        folder=Path(__file__).parent,
        title=f"Purgatory study, {len(rows):,} runs",
        source=source,
        made_at=made_at,
        cards=_cards(done, sorted({str(row["host"]) for row in done})),
        runs=len(rows),
        disturbed=measurements.disturbed(rows),
        how_disturbed=DISTURBED,
        failures=measurements.failures(rows),
        mixes=list(groups),
        plots=_plots(groups),
        header=[word.capitalize() for word in HEADER],
        medians=[cells(one) for one in measurements.summed(rows)],
    )


def _cards(done: Sequence[Row], hosts: Sequence[str]) -> Iterable[tuple[str, str]]:
    kept = [row["rate"] for row in done if row["rate"] and not row["saturated"]]
    full = [row["rate_enqueued"] for row in done if not row["rate"] and not row["saturated"]]
    yield jobs.count(sum(row["made"] for row in done)), "requests in all"
    yield (f"{jobs.count(max(kept))}/s" if kept else "-"), "highest rate that was kept up"
    if full:
        yield f"{jobs.count(max(full))}/s", "best at full speed"
    yield jobs.duration(1000 * sum(row["cpu_s"] for row in done)), "of CPU"
    yield f"{len(hosts):,}", "machine" if len(hosts) == 1 else "machines"


def _groups(done: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs with a target rate, by the name of their curve."""
    groups: dict[str, list[Row]] = {}
    for row in done:
        if row["rate"]:
            groups.setdefault(_name(row, done), []).append(row)
    return groups


def _plots(groups: dict[str, list[Row]]) -> Iterable[tuple[str, Plot]]:
    """Yield a plot of each figure that a run has, with its heading."""
    for title, figure, text in PLOTS:
        curves = [
            Curve(name, [run for row in rows if (run := _run(row, figure)) is not None], 1 + i % LINES)
            for i, (name, rows) in enumerate(groups.items())
        ]
        if any(curve.runs for curve in curves):
            yield title, curve_plot(curves, target, text, f"{title}, by target rate")


def _run(row: Row, figure: str) -> Run | None:
    value = _value(row, figure)
    note = f"{target(row['rate'])}/s, seed {row['seed']}, repetition {row['repetition']}"
    if row["saturated"]:
        note += f", saturated by {row['saturated']}"
    return None if value is None else Run(row["rate"], value, bool(row["saturated"]), note)


def _value(row: Row, figure: str) -> float | None:
    if figure == "memory_mb":
        return float(row["rss_peak_mb"] - row["rss_start_mb"])
    if figure == "off":
        return 100 * abs(float(row["expired_share"] - row["drawn_share"]))
    found = row[figure]
    return None if found is None else float(found)


def _name(row: Row, done: Sequence[Row]) -> str:
    """Return the name of a curve: the mix, and each other setting that differs between the runs."""
    alike = [
        name for name in measurements.GROUP if name not in ("mix", "p50_ms", "p75_ms", "rate", "limit_s", "warmup")
    ]
    more: list[Any] = [f"{name} {row[name]:,}" for name in alike if len({other[name] for other in done}) > 1]
    return ", ".join([f"{row['mix']} mix ({row['p50_ms']:g} ms median, {row['p75_ms']:g} ms 75th percentile)", *more])
