"""Results of a study: saturation of a point, goals, and tables, computed from saved files."""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.purgatory.run_point import drawn_expired_share, expired_share, is_disturbed

MIXES = {"low": "20 ms median, 60 ms 75th percentile", "high": "200 ms median, 400 ms 75th percentile"}
GOAL_RATE = 400_000
Point = dict[str, Any]


def drawn_expired_percent(point: Point) -> float:
    return 100 * drawn_expired_share(point)


def expired_percent(point: Point) -> float:
    return 100 * expired_share(point)


def expiry_p99(point: Point) -> float:
    late = point.get("expiry_late_ms")
    return float(late["p99"]) if late else 0.0


def line(point: Point) -> str:
    """Return one line of progress."""
    head = f"{point['part']:7}{point['series']:10} {point['mix']:4} {point['rate_target']:>9,.0f}/s"
    if "rate_enqueue" not in point:
        return f"{head}  gave up: {point['given_up']}"
    memory = point.get("rss_peak_mb") or point.get("heap_peak_mb") or 0
    saturated = f"  SATURATED: {point['saturated']}" if point["saturated"] else ""
    return (
        f"{head} -> {point['rate_enqueue']:>9,.0f}/s  {point['cpu_us_per_request']:6.2f} us  {memory:6.1f} MB"
        f"  late p99 {expiry_p99(point):6.2f} ms  expired {expired_percent(point):5.2f} %"
        f"  others {point.get('other_cpus', 0):.2f}, host {point.get('stolen_cpus', 0):.2f} CPU{saturated}"
    )


def chosen(document: dict[str, Any], **wanted: Any) -> list[Point]:
    return [p for p in document["points"] if all(p.get(name) == value for name, value in wanted.items())]


def rounds(document: dict[str, Any], mix: str, rate: float, value: Callable[[Point], float]) -> tuple[list[float], ...]:
    """Return the values of kbroker and Kafka at the goal points, in the order of the rounds."""
    of = {"part": "goals", "mix": mix, "rate_target": rate}
    return tuple([value(p) for p in chosen(document, series=s, **of)] for s in ("kbroker", "kafka"))


def median_ratio(ours: list[float], theirs: list[float]) -> float | None:
    if not ours or len(ours) != len(theirs):
        return None
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def taken(points: list[Point]) -> dict[str, float]:
    """Return the median CPUs used by other processes of the machine, and withheld by its host."""
    names = ("other_cpus", "stolen_cpus")
    found = {name: [p[name] for p in points if name in p] for name in names}
    return {name: statistics.median(values) if values else 0 for name, values in found.items()}


def disturbance(document: dict[str, Any]) -> str:
    """Return a sentence about the CPU that other programs used meanwhile."""
    middle = taken([p for p in document["points"] if p["part"] == "goals" and "other_cpus" in p])
    used, withheld = middle["other_cpus"], middle["stolen_cpus"]
    said = f"ther programs used {used:.2f} CPU meanwhile, and the host withheld {withheld:.2f}"
    if not is_disturbed(middle):
        return f"O{said} (medians of the goals' runs)."
    return (
        f"**O{said} (medians of the goals' runs). The ratios stand, as both had the same share; lateness, expired share"
        " and saturation say more about that share than about a design.**"
    )


def goal_rows(document: dict[str, Any]) -> list[tuple[str, str, str, str, str, str]]:
    """Return the rows of the goals: goal, kbroker, Kafka, ratio, limit, verdict."""
    rows = []

    def add(
        name: str, mix: str, rate: float, value: Callable[[Point], float], form: str, bound: str,
        reached: Callable[[float, float | None], bool],
    ) -> None:  # fmt: skip
        ours, theirs = rounds(document, mix, rate, value)
        if not ours:
            return
        middle, ratio = statistics.median(ours), median_ratio(ours, theirs)
        verdict = "reached" if reached(middle, ratio) else "**missed**"
        of = {"part": "goals", "series": "kbroker", "mix": mix, "rate_target": rate}
        others = taken(chosen(document, **of))
        if verdict != "reached" and ("late" in name or "share" in name) and is_disturbed(others):
            verdict = f"not judged: others had {sum(others.values()):.2f} CPU"
        if bound == "-":
            verdict = ""
        elif "Kafka" in bound and ratio is None:
            verdict = "Kafka was not run"
        rows.append(
            (
                f"{name}, {mix} mix",
                form.format(middle),
                form.format(statistics.median(theirs)) if theirs else "-",
                f"{ratio:.2f}" if ratio is not None else "-",
                bound,
                verdict,
            )
        )

    for mix in MIXES:
        add("enqueues per second at full speed", mix, 0, lambda p: p["rate_enqueue"], "{:,.0f}",
            ">= 1.5 of Kafka", lambda _, ratio: ratio is not None and ratio >= 1.5)  # fmt: skip
    for mix in MIXES:
        add("CPU us per request at 400,000/s", mix, GOAL_RATE, lambda p: p["cpu_us_per_request"], "{:.2f}",
            "<= 0.5 of Kafka", lambda _, ratio: ratio is not None and ratio <= 0.5)  # fmt: skip
    for mix in MIXES:
        add("expiry late p99 at 400,000/s, ms", mix, GOAL_RATE, expiry_p99, "{:.2f}",
            "<= 3", lambda middle, _: middle <= 3)  # fmt: skip
    for mix in MIXES:
        add("memory at 400,000/s, MB", mix, GOAL_RATE,
            lambda p: p.get("rss_peak_mb") or p["heap_peak_mb"], "{:.1f}",
            "<= 100", lambda middle, _: middle <= 100)  # fmt: skip
    for mix in MIXES:
        add("memory at full speed, MB", mix, 0,
            lambda p: p.get("rss_peak_mb") or p["heap_peak_mb"], "{:.1f}", "-", lambda middle, _: True)  # fmt: skip
    for mix in MIXES:
        add("expired share off the drawn one at 400,000/s, points", mix, GOAL_RATE,
            lambda p: abs(expired_percent(p) - drawn_expired_percent(p)), "{:.3f}",
            "<= 0.2", lambda middle, _: middle <= 0.2)  # fmt: skip
    return rows


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def sweep_row(point: Point) -> list[str]:
    target = f"{point['rate_target']:,.0f}" if point["rate_target"] else "full speed"
    if "rate_enqueue" not in point:
        return [point["series"], target, *["-"] * 8, point["saturated"]]
    late = point.get("expiry_late_ms") or {"p50": 0, "p99": 0}
    pauses = (
        f"{point['gc_count']} x, longest {point['gc_max_ms']} ms" if "gc_count" in point
        else f"held up {point['stall_max_ms']:.1f} ms"
    )  # fmt: skip
    memory = f"{point['rss_peak_mb']:.1f}" if "rss_peak_mb" in point else f"{point['heap_peak_mb']:.1f} (heap)"
    return [
        point["series"],
        target,
        f"{point['rate_enqueue']:,.0f}",
        f"{point['cpu_us_per_request']:.2f}",
        memory,
        f"{point['peak_pending']:,}",
        pauses,
        f"{late['p50']:.2f} / {late['p99']:.2f}",
        f"{expired_percent(point):.2f}",
        f"{point['offers_per_request']:.5f}" if "offers_per_request" in point else "-",
        point["saturated"] + (" (others busy)" if is_disturbed(point) else ""),
    ]


SWEEP_HEAD = (
    "design", "target/s", "enqueued/s", "CPU us", "memory MB", "peak pending", "pauses", "late p50 / p99 ms",
    "expired %", "offers per request", "saturated by",
)  # fmt: skip


MARKS = ("<!-- figures: made by bench/purgatory/run.py -->", "<!-- end of figures -->")


def write_markdown(path: Path, text: str) -> None:
    """Replace the text between the marks of an existing page, or write a new page."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    before, first, rest = page.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if first and last:
        text = f"{before}{first}\n{text}{last}{after}"
    path.write_text(text, encoding="utf-8")


def markdown(document: dict[str, Any]) -> str:
    """Return all tables."""
    facts = document["machine"]
    parts = [
        f"{facts['date']}: {facts['cpu']}, {facts['cores']} cores, kbroker {facts['kbroker']};"
        f" {document['n']:,} requests a run. {disturbance(document)}"
    ]
    goals = goal_rows(document)
    if goals:
        parts.append(table(("figure", "kbroker", "Kafka", "ratio", "to reach", ""), goals))
    for mix, text in MIXES.items():
        points = chosen(document, part="sweep", mix=mix)
        if points:
            parts.append(f"### {mix.capitalize()} mix: {text}\n\n" + table(SWEEP_HEAD, map(sweep_row, points)))
    sparse = chosen(document, part="sparse")
    if sparse:
        rows = [
            [
                p["series"],
                f"{p['rate_target']:,.0f}",
                f"{p['reaper_wakeups_per_s']:.1f}",
                f"{p['reaper_turns'] / p['elapsed_s']:.1f}",
                f"{p['queue_items']['mean']:.1f} / {p['live_buckets']['mean']:.1f}" if "queue_items" in p else "-",
            ]
            for p in sparse
        ]
        head = ("design", "requests/s", "reaper wake-ups/s", "turns/s", "queue items / live buckets, mean")
        parts.append("### Sparse timers\n\n" + table(head, rows))
    return "\n\n".join(parts) + "\n"
