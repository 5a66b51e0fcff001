"""Figures of the purgatory study as text, for a terminal and a page."""

from __future__ import annotations

from bench.purgatory.measurements import Summary
from bench.purgatory.run_point import MOST_OTHER_CPUS, MOST_STOLEN_CPUS
from kbroker.spark import formatting as jobs

HEADER = (
    *("MIX", "TARGET/S", "RUNS", "ENQUEUED/S", "CPU US", "MEMORY", "PAUSE", "LATE P50", "P99", "MAX", "EXPIRED"),
    *("DRAWN", "OTHERS", "HOST", "SATURATED"),
)
DISTURBED = (
    f"shared their machine: others used more than {MOST_OTHER_CPUS} CPU meanwhile, or a virtual machine's host "
    f"withheld {MOST_STOLEN_CPUS}; lateness, pauses, expired share and saturation then say more about that than "
    "about the purgatory"
)


def target(rate: float) -> str:
    """Return the target rate of a run as text."""
    return jobs.count(rate) if rate else "full speed"


def cells(one: Summary) -> list[str]:
    """Return the cells of a row below HEADER."""
    found = one.figures
    runs = f"{one.runs:,}" if not one.failed else f"{one.runs:,} ({one.failed:,} failed)"
    return [
        one.group["mix"],
        target(one.group["rate"]),
        runs,
        jobs.count(found["rate_enqueued"]),
        _number(found["cpu_us_per_request"], 2),
        _with(found["memory_mb"], 1, " MB"),
        *(_with(found[name], 1, " ms") for name in ("pause_max_ms", "expiry_late_p50_ms", "expiry_late_p99_ms")),
        _with(found["expiry_late_max_ms"], 1, " ms"),
        *(_share(found[name]) for name in ("expired_share", "drawn_share")),
        _number(found["other_cpus"], 2),
        _number(found["stolen_cpus"], 2),
        one.saturated,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _with(value: float | None, digits: int, unit: str) -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
