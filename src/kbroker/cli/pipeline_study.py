"""`kbroker pipeline purgatory-study`: the broker's purgatory alone, at many rates, each run a task of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_jobs import options, progress, session, spark_options

if TYPE_CHECKING:
    from kbroker.spark.purgatory.figures import Summary

DEFAULT_MIXES = ("low", "high")
DEFAULT_RATES = (50_000.0, 100_000.0, 200_000.0, 400_000.0, 0.0)

what_is_drawn = options(
    click.option(
        "--mix",
        "mixes",
        multiple=True,
        default=DEFAULT_MIXES,
        show_default=True,
        metavar="NAME|P50/P75",
        help="When requests complete: low (20/60 ms), high (200/400 ms) or your own percentiles. Repeatable.",
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
        "--seed", "seeds", multiple=True, type=int, default=(1,), show_default=True, help="Of the draws. Repeatable."
    ),
    click.option("--repeat", "repetitions", type=click.IntRange(1), default=1, show_default=True, help="Of each run."),
    click.option("--n", type=int, default=1_000_000, show_default=True, help="Requests of a run."),
    click.option("--timeout-ms", type=int, default=200, show_default=True, help="Of each request."),
    click.option("--keys", type=int, default=3, show_default=True, help="Under which each request is watched."),
    click.option("--payload-bytes", type=int, default=100, show_default=True, help="Of each request."),
)
what_it_meets = options(
    click.option("--tick-ms", type=int, default=1, show_default=True, help="Of the timing wheel."),
    click.option("--wheel-size", type=int, default=20, show_default=True, help="Slots of the timing wheel."),
    click.option("--warmup", type=int, default=100_000, show_default=True, help="Requests before, not counted."),
    click.option(
        "--memory-mb", type=int, default=200, show_default=True, help="A run that grows by more gives up; 0: no limit."
    ),
    click.option(
        "--limit-s", type=float, default=0.0, help="When a run gives up; by default after twice its schedule and 10 s."
    ),
)


@click.command(name="purgatory-study")
@what_is_drawn
@what_it_meets
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep a row per run: FILE.parquet, else lines of JSON. `kbroker pipeline report` draws it.",
)
@spark_options
def purgatory_study(
    mixes: tuple[str, ...],
    rates: tuple[float, ...],
    seeds: tuple[int, ...],
    repetitions: int,
    output: Path | None,
    **common: Any,
) -> None:
    """Measure the purgatory at many rates.

    Every mix at every rate with every seed is a run of its own, and a task of Spark: kbroker's purgatory and timing
    wheel under drawn requests, without a broker. Runs on one machine disturb each other, as its other programs
    do: OTHERS says how much. --master 'local[1]' runs one after the other.
    """
    from kbroker.spark.purgatory.study import points_of

    names = ("n", "timeout_ms", "keys", "payload_bytes", "tick_ms", "wheel_size", "warmup", "memory_mb", "limit_s")
    points = points_of(mixes, rates, seeds=seeds, repetitions=repetitions, **{name: common[name] for name in names})
    if output is not None and not output.parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.parent}", param_hint="--output")
    spark = session(common)
    try:
        from kbroker.spark.errors import PipelineError
        from kbroker.spark.purgatory import figures
        from kbroker.spark.purgatory.study import run_study

        say = progress(common)
        say(f"running {len(points):,} points")
        rows = run_study(spark, points, progress=say)
    finally:
        spark.stop()
    if output is not None:
        figures.write_rows(rows, output)
        say(f"wrote {output}")
    failed, sums = figures.failures(rows), figures.summed(rows)
    if common["as_json"]:
        shown = [
            {**one.group, "runs": one.runs, "failed": one.failed, **one.figures, "saturated": one.saturated}
            for one in sums
        ]
        runs = {"runs": len(rows), "failed": len(failed), "disturbed": figures.disturbed(rows)}
        print_json({**runs, "failures": failed, "points": shown})
    else:
        _print(sums)
        _say_disturbed(figures.disturbed(rows), len(rows))
    if failed:
        more = f" (and {len(failed) - 1:,} more)" if len(failed) > 1 else ""
        raise PipelineError(f"{failed[0]}{more}")


def _print(sums: list[Summary]) -> None:
    from kbroker.spark.purgatory.tables import HEADER, cells

    print_table(HEADER, [cells(one) for one in sums], right=range(1, len(HEADER) - 1))


def _say_disturbed(count: int, runs: int) -> None:
    from kbroker.spark.purgatory.tables import DISTURBED

    if count:
        click.echo(f"{count:,} of {runs:,} runs {DISTURBED}.")
