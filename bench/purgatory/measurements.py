"""Rows of the purgatory study: columns, summaries of repetitions, files."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.purgatory.run_point import Point, is_disturbed
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
KINDS = {"str": "string", "int": "int64", "float": "float64"}
PLAN = {field.name: KINDS[str(field.type)] for field in fields(Point)}
#: Results of a run, beside the columns of its point; all are null but `error` if the run failed.
FIGURES = {
    "made": "int64",
    "immediate": "int64",  # completed when they were enqueued
    "completed": "int64",
    "expired": "int64",
    "rate_drawn": "float64",
    "rate_enqueued": "float64",
    "elapsed_s": "float64",
    "cpu_s": "float64",  # of the process: purgatory and harness
    "cpu_us_per_request": "float64",
    "rss_start_mb": "float64",
    "rss_peak_mb": "float64",  # of the whole Python process; pause and lateness as observed by its threads
    "pause_max_ms": "float64",
    "paused_ms": "float64",
    "expiry_late_p50_ms": "float64",
    "expiry_late_p99_ms": "float64",
    "expiry_late_max_ms": "float64",
    "expired_share": "float64",
    "drawn_share": "float64",
    "peak_pending": "int64",
    "offers_per_request": "float64",
    "saturated": "string",
    "other_cpus": "float64",
    "stolen_cpus": "float64",
    "load_1m": "float64",
    "cores": "int64",
    "host": "string",
    "error": "string",
}
COLUMNS = {**PLAN, **FIGURES}
#: Columns that distinguish groups of runs; runs of a group differ only by chance.
GROUP = tuple(name for name in PLAN if name not in ("seed", "repetition"))
MEDIANS = (
    *("rate_enqueued", "cpu_s", "cpu_us_per_request", "pause_max_ms", "expiry_late_p50_ms", "expiry_late_p99_ms"),
    *("expiry_late_max_ms", "expired_share", "drawn_share", "other_cpus", "stolen_cpus", "load_1m"),
    "offers_per_request",
)


class Summary(NamedTuple):
    """Summary of one group: medians of the runs that did not fail.

    `figures`: figures of MEDIANS, and `memory_mb`, the growth of the process. `saturated`: most frequent cause of
    saturation, empty if at most half of the runs were saturated.
    """

    group: dict[str, Any]
    runs: int
    failed: int
    figures: dict[str, float | None]
    saturated: str


def plan_schema() -> pa.Schema:
    """Return the columns of a plan."""
    return _schema(PLAN)


def row_schema() -> pa.Schema:
    """Return the columns of the study's results."""
    return _schema(COLUMNS)


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def summed(rows: Iterable[Row]) -> list[Summary]:
    """Return a summary of each group, by mix and rate, with full speed last."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    found = []
    for key, runs in groups.items():
        done = [run for run in runs if run["error"] is None]
        figures = {name: _median(run[name] for run in done) for name in MEDIANS}
        figures["memory_mb"] = _median(run["rss_peak_mb"] - run["rss_start_mb"] for run in done)
        reasons = [run["saturated"] for run in done if run["saturated"]]
        saturated = statistics.mode(reasons) if 2 * len(reasons) > len(done) else ""
        group = dict(zip(GROUP, key, strict=True))
        found.append(Summary(group, len(runs), len(runs) - len(done), figures, saturated))
    return sorted(found, key=lambda s: (s.group["p50_ms"], s.group["mix"], s.group["rate"] or float("inf")))


def disturbed(rows: Iterable[Row]) -> int:
    """Return the number of runs that were disturbed by other work of the machine or its host."""
    return sum(row["error"] is None and is_disturbed(row) for row in rows)


def failures(rows: Iterable[Row]) -> list[str]:
    """Return a sentence for each failed run, with its point."""
    return [f"{point(row)}: {row['error']}" for row in rows if row["error"] is not None]


def point(row: Row) -> Point:
    """Return the point of a row."""
    return Point(**{name: row[name] for name in PLAN})


def write_rows(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write rows to a Parquet file, or with any other suffix as JSON lines. An existing file is replaced atomically."""
    target = Path(path)
    staged = target.with_name(f".{target.name}.part")
    if target.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], row_schema()), staged)
    else:
        staged.write_text("".join(f"{json.dumps(dict(row))}\n" for row in rows), encoding="utf-8")
    staged.replace(target)


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of such a file. Raises: PipelineError for a file of another form; OSError."""
    source = Path(path)
    data = source.read_bytes()
    rows: list[Any]
    try:
        if data[:4] == b"PAR1":
            import pyarrow as pa
            import pyarrow.parquet as pq

            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        else:
            rows = [json.loads(line) for line in data.decode().splitlines() if line.strip()]
    except (ValueError, OSError) as error:  # Arrow's errors are ValueErrors or OSErrors
        raise PipelineError(f"{source} is not a file that the purgatory study wrote ({error})") from None
    lacking = [name for name in COLUMNS if not rows or not all(isinstance(r, dict) and name in r for r in rows)]
    if lacking:
        raise PipelineError(f"{source} is not a file that the purgatory study wrote: it has no {lacking[0]}")
    return rows


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
