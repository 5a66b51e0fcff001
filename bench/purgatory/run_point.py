"""Point of the purgatory study, and one run of it in this process, without Spark and Arrow."""

from __future__ import annotations

import gc
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.purgatory.build import native
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from bench.purgatory.native.driver import StudyDesign

#: Mixes of completion times by name: median and 75th percentile in milliseconds, from the article.
MIXES: dict[str, tuple[float, float]] = {"low": (20.0, 60.0), "high": (200.0, 400.0)}
KEPT_UP = 0.95  # share of the drawn rate
MOST_OTHER_CPUS = 0.3  # above this, figures that depend on thread scheduling describe the machine instead of a design
MOST_STOLEN_CPUS = 0.1  # a virtual machine without a processor for 10 ms delays all figures by 10 ms
_FULL_SPEED_AT_LEAST = 50_000  # requests per second that the time limit of a run without a target assumes


@dataclass(frozen=True)
class Point:
    """Run of the study: the drawn workload, and the timing wheel.

    Args:
        mix: name of the two percentiles of the completion times (log-normal).
        rate: requests per second, at exponential intervals; 0 is unlimited.
        seed: seed of all draws. repetition: distinguishes runs of one seed.
        n: number of requests, each with timeout_ms, a number of watch keys, and payload_bytes.
        tick_ms, wheel_size: of the timing wheel.
        warmup: uncounted requests at full speed before the run.
        memory_mb: resident memory, beyond that at the start, at which the run gives up; 0 is unlimited.
        limit_s: time after which the run gives up; 0 is twice its schedule and 10 s.
    """

    mix: str
    p50_ms: float
    p75_ms: float
    rate: float
    seed: int = 1
    repetition: int = 1
    n: int = 1_000_000
    timeout_ms: int = 200
    keys: int = 3
    payload_bytes: int = 100
    tick_ms: int = 1
    wheel_size: int = 20
    warmup: int = 0
    memory_mb: int = 200
    limit_s: float = 0.0

    def __str__(self) -> str:
        speed = f"{self.rate:,.10g}/s" if self.rate else "full speed"
        return f"{self.mix} mix at {speed}, seed {self.seed}, repetition {self.repetition}"

    def check(self) -> Point:
        """Return the point. Raises: PipelineError with the point and the impossible value."""
        at_least = {"seed": 0, "repetition": 1, "n": 1, "timeout_ms": 1, "keys": 1, "payload_bytes": 0, "tick_ms": 1}
        at_least |= {"wheel_size": 2, "warmup": 0, "memory_mb": 0}
        at_most = {"n": 100_000_000, "warmup": 100_000_000, "keys": 64, "payload_bytes": 1 << 20, "seed": (1 << 63) - 1}
        at_most |= {"wheel_size": 1_000_000, "timeout_ms": 10**9, "tick_ms": 10**9, "memory_mb": 1 << 30}
        for name, least in at_least.items():
            value, most = getattr(self, name), at_most.get(name, (1 << 31) - 1)
            if not least <= value <= most:
                raise PipelineError(f"{self}: {name} must be between {least:,} and {most:,}, not {value:,}")
        if not 0 < self.p50_ms < self.p75_ms <= 10**9:
            raise PipelineError(
                f"{self}: the median must be above 0 and the 75th percentile above it, not {self.p50_ms:g} and "
                f"{self.p75_ms:g} ms"
            )
        if not 0 <= self.rate <= 1e9:
            raise PipelineError(f"{self}: the rate must be between 0 (full speed) and 1e9 a second")
        if not 0 <= self.limit_s <= 1e6:
            raise PipelineError(f"{self}: limit_s must be between 0 and 1,000,000, not {self.limit_s:g}")
        return self


def mix_of(text: str) -> tuple[str, float, float]:
    """Return a mix by its name ("low"), or by its percentiles in milliseconds ("20/60"). Raises: PipelineError."""
    if text in MIXES:
        return (text, *MIXES[text])
    first, slash, second = text.partition("/")
    try:
        p50_ms, p75_ms = float(first), float(second)
    except ValueError:
        slash = ""
    if not slash or not 0 < p50_ms < p75_ms < math.inf:
        raise PipelineError(
            f"a mix is {', '.join(MIXES)}, or its median and 75th percentile in ms, as 20/60; not {text!r}"
        )
    return f"{p50_ms:g}/{p75_ms:g}", p50_ms, p75_ms


def point_of(row: Mapping[str, Any]) -> Point:
    """Return a point from the columns of a plan.

    Missing and null columns have the defaults of the class, percentiles those of their mix. Raises: PipelineError for
    unknown columns, and for impossible values.
    """
    kinds = {field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in fields(Point)}
    unknown = sorted(set(row) - set(kinds))
    if unknown:
        raise PipelineError(f"a plan of the study has no column {unknown[0]!r}; it may have {', '.join(kinds)}")
    given = {name: value for name, value in row.items() if value is not None}
    if "rate" not in given:
        raise PipelineError("a plan of the study needs the column 'rate' in each row")
    if "p50_ms" not in given and "p75_ms" not in given:
        mix, p50_ms, p75_ms = mix_of(str(given.get("mix", "low")))
        given |= {"mix": mix, "p50_ms": p50_ms, "p75_ms": p75_ms}
    elif not {"p50_ms", "p75_ms"} <= set(given):
        raise PipelineError("a plan of the study names both percentiles, p50_ms and p75_ms, or none")
    given.setdefault("mix", f"{given['p50_ms']:g}/{given['p75_ms']:g}")
    try:
        cast = {name: kinds[name](value) for name, value in given.items()}
        cut = [name for name, value in given.items() if kinds[name] is int and cast[name] != value]
        if cut:
            raise ValueError(f"{cut[0]} must be a whole number, not {given[cut[0]]!r}")
        return Point(**cast).check()
    except (TypeError, ValueError, OverflowError) as error:
        raise PipelineError(f"a row of the plan holds what cannot be: {error}") from None


def schedule_limit_s(n: int, rate: float, more_s: float) -> float:
    """Return the time limit of a run in seconds: twice its schedule, and `more_s`; a slower run is saturated anyway."""
    return 2 * n / (rate or _FULL_SPEED_AT_LEAST) + more_s


def run_once(design: str | StudyDesign, n: int, rate: float, warmup: int = 0, **settings: Any) -> dict[str, Any]:
    """Run a design once in this process, after a warm-up at full speed.

    Args: `design`, `settings`: as for StudyRun.
    Returns: StudyRun's figures, with `other_cpus` (CPUs used by all other processes of the machine), `stolen_cpus`
    (CPUs that the host of a virtual machine withheld in spite of work) and `held_at_end` (requests whose memory was not
    returned).
    Raises: ValueError, TypeError for impossible arguments; MemoryError; RuntimeError for a lost request.
    """
    driver = native("driver")
    if warmup:
        driver.StudyRun(design, warmup, **settings).go()
    gc.collect()
    driver.trim()
    run = driver.StudyRun(design, n, rate=rate, **settings)
    used_s, stolen_s = machine_cpu_s(), stolen_cpu_s()
    run.go()
    used_s, stolen_s = machine_cpu_s() - used_s, stolen_cpu_s() - stolen_s
    found: dict[str, Any] = run.figures()
    found["other_cpus"] = max(0.0, used_s - found["cpu_s"]) / found["elapsed_s"]
    found["stolen_cpus"] = stolen_s / found["elapsed_s"]
    found["held_at_end"] = driver.held(run)
    return found


def measure(point: Point) -> dict[str, Any]:
    """Run a point with kbroker's purgatory; return its row: the point's columns, then FIGURES.

    Raises: as `run_once`.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = run_once(
        "wheel",
        point.n,
        point.rate,
        point.warmup,
        p50=point.p50_ms,
        p75=point.p75_ms,
        timeout_ms=point.timeout_ms,
        size=point.payload_bytes,
        keys=point.keys,
        seed=point.seed,
        tick_ms=point.tick_ms,
        wheel_size=point.wheel_size,
        memory_mb=math.ceil(native("driver").rss_mb()) + point.memory_mb if point.memory_mb else 0,
        limit_s=point.limit_s or schedule_limit_s(point.n, point.rate, 10),
    )
    late = found["expiry_late_ms"] or {}
    names = [
        *("made", "immediate", "completed", "expired", "peak_pending", "rate_drawn", "elapsed_s", "cpu_s"),
        *("cpu_us_per_request", "rss_start_mb", "rss_peak_mb", "offers_per_request", "other_cpus", "stolen_cpus"),
    ]
    return {
        **asdict(point),
        **{name: found[name] for name in names},
        "rate_enqueued": found["rate_enqueue"],
        "pause_max_ms": found["stall_max_ms"],
        "paused_ms": found["stalled_ms"],
        **{f"expiry_late_{name}_ms": late.get(name) for name in ("p50", "p99", "max")},
        "expired_share": expired_share(found),
        "drawn_share": drawn_expired_share({**found, "n": point.n}),
        "saturated": saturation(found),
        "load_1m": load,
        "cores": os.cpu_count(),
        "host": platform.node(),
        "error": None,
    }


def is_disturbed(figures: Mapping[str, Any]) -> bool:
    """Return whether other work, of the machine or its host, used so much CPU that it explains lateness.

    Returns: False for a run without these figures (Kafka's).
    """
    used, withheld = figures.get("other_cpus", 0), figures.get("stolen_cpus", 0)
    return bool(used > MOST_OTHER_CPUS or withheld > MOST_STOLEN_CPUS)


def saturation(figures: Mapping[str, Any]) -> str:
    """Return the cause of saturation: "memory", "time" or "rate"; empty if not saturated. Full speed has no target."""
    if figures.get("given_up"):
        return str(figures["given_up"])
    if figures["rate_target"] and figures["rate_enqueue"] < KEPT_UP * figures["rate_drawn"]:
        return "rate"
    return ""


def drawn_expired_share(figures: Mapping[str, Any]) -> float:
    """Return the share of requests whose drawn completion time is not below the timeout, 0..1."""
    return (float(figures["n"]) - float(figures["drawn_to_complete"])) / float(figures["n"])


def expired_share(figures: Mapping[str, Any]) -> float:
    """Return the share of expired requests, 0..1."""
    made = figures["made"] if "made" in figures else figures["n"]  # Kafka's program creates all requests
    return float(figures["expired"]) / max(1.0, float(made))


def machine_cpu_s() -> float:
    """Return the machine's CPU seconds so far (user, nice, system, irq, softirq), 0 if /proc does not report them."""
    return _processor_s(1, 2, 3, 6, 7)


def stolen_cpu_s() -> float:
    """Return the CPU seconds so far that the host withheld in spite of work, 0 if /proc does not report them."""
    return _processor_s(8)


def _processor_s(*fields: int) -> float:
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(int(words[field]) for field in fields) / 100
