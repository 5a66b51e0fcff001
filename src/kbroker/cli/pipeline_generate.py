"""`kbroker pipeline generate`: a request log made up, for those who have none yet, and for measurements."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import click

from kbroker.cli.options import Finite
from kbroker.cli.output import print_json
from kbroker.cli.pipeline_session import progress, running, session, spark_options
from kbroker.cli.pipeline_table import place_of, storage_option


class _Count(Finite):
    """A whole number, which may be written as 20e6."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: BadParameter."""
        number = super().convert(value, param, ctx)
        if number != int(number):
            self.fail(f"{value} is not a whole number.", param, ctx)
        return int(number)


@click.command()
@click.argument("place", metavar="TABLE|DIR")
@click.option(
    "--as",
    "form",
    type=click.Choice(["table", "arrow"]),
    default="table",
    show_default=True,
    help="A Delta Lake table, or a folder of Arrow files on a disk, for `ingest`.",
)
@click.option("--requests", type=_Count(1), default=1_000_000, show_default=True, help="How many records; 20e6 too.")
@click.option("--entities", type=_Count(1), default=1_000, show_default=True, help="Pairs of user and client id.")
@click.option("--days", type=Finite(0, min_open=True), default=1, show_default=True, help="How long.")
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), default="2026-01-01", show_default=True, help="From when.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed, the same rows.")
@click.option("--hot-share", type=Finite(0, 1), default=0.3, show_default=True, help="Of the first entity's requests.")
@click.option("--skew", type=Finite(0), default=1.1, show_default=True, help="Zipf's exponent, of the others.")
@click.option("--breaching", type=Finite(0, 1), default=0.1, show_default=True, help="Share of entities over a quota.")
@click.option("--buckets", type=click.IntRange(1, 99), default=8, show_default=True, help="Of a table.")
@storage_option
@spark_options
def generate(
    place: str, form: str, requests: int, entities: int, days: float, start: datetime, seed: int, hot_share: float,
    skew: float, breaching: float, buckets: int, **common: Any,
) -> None:  # fmt: skip
    """Make up a request log.

    To try the other commands, or to measure them at the size that a cluster would have. Clients produce, fetch and
    administer in bursts, more by day than by night; some exceed their quotas and are throttled.
    """
    from kbroker.spark import formatting as jobs
    from kbroker.spark.generator.generate import generate_files, generate_table
    from kbroker.spark.generator.population import Shape
    from kbroker.spark.locations import local_path
    from kbroker.spark.tables.delta_table import require_usable
    from kbroker.spark.tables.table_place import TablePlace

    start_us = int(start.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000
    shape = Shape(requests, entities, seed, days, hot_share, skew, breaching, start_us, buckets)
    shape.check()
    where = place_of(place, common) if form == "table" else local_path(place)
    if isinstance(where, TablePlace):
        require_usable(where)
    say = progress(common)
    with running(common, session) as spark:
        say.doing = "generating"
        if isinstance(where, TablePlace):
            rows, files, size = generate_table(spark, where, shape, progress=say)
        else:
            rows, files, size = generate_files(spark, where, shape, progress=say)
    if common["as_json"]:
        print_json({"place": place, "rows": rows, "files": files, "size_bytes": size})
    else:
        click.echo(f"{jobs.counted(rows, 'request')} in {jobs.counted(files, 'file')} of {place} ({jobs.size(size)})")
