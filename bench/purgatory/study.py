"""Purgatory study on Spark: the broker's purgatory alone, at many rates, each run a task.

    python bench/purgatory/study.py --master 'local[1]' [--rate N]... [--output FILE] [--page FILE.html] ...
    python bench/purgatory/study.py --from FILE --page FILE.html      # draws the rows of an earlier study

Needs the extra `spark`, Java 17, Cython and a C++ compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.purgatory import measurements
from bench.purgatory.tables import DISTURBED, HEADER, cells
from kbroker.cli.options import decorators
from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_options import spark_options
from kbroker.cli.pipeline_session import progress, running, session
from kbroker.spark.errors import PipelineError
from tests.support.compiled import CannotCompile

OUTPUT = click.Path(dir_okay=False, path_type=Path)

DEFAULT_MIXES = ("low", "high")
DEFAULT_RATES = (50_000.0, 100_000.0, 200_000.0, 400_000.0, 0.0)

workload_options = decorators(
    click.option(
        "--mix",
        "mixes",
        multiple=True,
        default=DEFAULT_MIXES,
        show_default=True,
        metavar="NAME|P50/P75",
        help="Completion times: low (20/60 ms), high (200/400 ms) or your own percentiles. Repeatable.",
    ),
    click.option(
        "--rate",
        "rates",
        multiple=True,
        type=click.FloatRange(0),
        default=DEFAULT_RATES,
        show_default=True,
        metavar="N",
        help="Requests per second to reach; 0 is as fast as possible. Repeatable.",
    ),
    click.option(
        "--seed", "seeds", multiple=True, type=int, default=(1,), show_default=True, help="Random seed. Repeatable."
    ),
    click.option("--repeat", "repetitions", type=click.IntRange(1), default=1, show_default=True, help="Repetitions."),
    click.option("--n", type=int, default=1_000_000, show_default=True, help="Requests of a run."),
    click.option("--timeout-ms", type=int, default=200, show_default=True, help="Timeout of a request."),
    click.option("--keys", type=int, default=3, show_default=True, help="Keys under which a request is watched."),
    click.option("--payload-bytes", type=int, default=100, show_default=True, help="Payload of a request."),
)
run_options = decorators(
    click.option("--tick-ms", type=int, default=1, show_default=True, help="Tick of the timing wheel."),
    click.option("--wheel-size", type=int, default=20, show_default=True, help="Slots of the timing wheel."),
    click.option("--warmup", type=int, default=100_000, show_default=True, help="Uncounted first requests."),
    click.option(
        "--memory-mb", type=int, default=200, show_default=True, help="A run that grows by more gives up; 0: no limit."
    ),
    click.option(
        "--limit-s", type=float, default=0.0, help="Time limit of a run; by default twice its schedule and 10 s."
    ),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@workload_options
@run_options
@click.option(
    "--output", "-o", type=OUTPUT, metavar="FILE", help="Keep a row per run: FILE.parquet, else lines of JSON."
)
@click.option("--page", type=OUTPUT, metavar="FILE.html", help="Draw the runs: one HTML file that needs nothing else.")
@click.option(
    "--from", "saved", type=OUTPUT, metavar="FILE", help="Run nothing: report and draw the rows that --output kept."
)
@spark_options
def study(output: Path | None, page: Path | None, saved: Path | None, **common: Any) -> None:
    """Measure the purgatory at many rates.

    Each mix at each rate with each seed is a separate run and a task of Spark: kbroker's purgatory and timing wheel
    with generated requests, without a broker. Runs on one machine are disturbed by each other and by other programs;
    OTHERS is the CPU of these. --master 'local[1]' runs one after the other.
    """
    for path, option in ((output, "--output"), (page, "--page")):
        if path is not None and not path.parent.is_dir():
            raise click.BadParameter(f"{path.parent} is not a folder", param_hint=option)
    try:
        rows = _run(common) if saved is None else measurements.read_rows(saved)
        if output is not None:
            measurements.write_rows(rows, output)
            progress(common)(f"wrote {output}")
        if page is not None:
            from bench.purgatory.study_page import write_study_page

            write_study_page(rows, str(output or saved or "this study"), page, datetime.now(timezone.utc))
            progress(common)(f"wrote {page}")
    except (PipelineError, CannotCompile, OSError) as error:
        raise click.ClickException(str(error)) from None
    _report(rows, as_json=common["as_json"])


def _run(common: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each point on Spark. Returns: a row for each. Raises: PipelineError for impossible options."""
    from bench.purgatory.spark_job import points_of, run_study

    names = ("n", "timeout_ms", "keys", "payload_bytes", "tick_ms", "wheel_size", "warmup", "memory_mb", "limit_s")
    points = points_of(
        common["mixes"],
        common["rates"],
        seeds=common["seeds"],
        repetitions=common["repetitions"],
        **{name: common[name] for name in names},
    )
    with running(common, session) as spark:
        progress(common)(f"running {len(points):,} points")
        return run_study(spark, points, progress=progress(common))


def _report(rows: Sequence[measurements.Row], *, as_json: bool) -> None:
    """Print medians by mix and rate. Raises: ClickException with the first failed run."""
    failed, summaries, disturbed = measurements.failures(rows), measurements.summed(rows), measurements.disturbed(rows)
    if as_json:
        points = [
            {**one.group, "runs": one.runs, "failed": one.failed, **one.figures, "saturated": one.saturated}
            for one in summaries
        ]
        runs = {"runs": len(rows), "failed": len(failed), "disturbed": disturbed}
        print_json({**runs, "failures": failed, "points": points})
    else:
        print_table(HEADER, [cells(one) for one in summaries], right=range(1, len(HEADER) - 1))
        if disturbed:
            click.echo(f"{disturbed:,} of {len(rows):,} runs {DISTURBED}.")
    if failed:
        more = f" (and {len(failed) - 1:,} more)" if len(failed) > 1 else ""
        raise click.ClickException(f"{failed[0]}{more}")


if __name__ == "__main__":
    study()
