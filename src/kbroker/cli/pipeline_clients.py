"""`kbroker pipeline clients`: latency as clients measure it, beside the broker's."""

from __future__ import annotations

from typing import Any

import click

from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_options import log_options, place_of, spark_options
from kbroker.cli.pipeline_session import progress
from kbroker.cli.pipeline_views import request_rows
from kbroker.spark import formatting as jobs


@click.command()
@log_options
@click.option(
    "--pushes",
    multiple=True,
    metavar="LOG",
    help="Log of pushed metrics: a file, a folder or a pattern. Repeatable.  [default: the LOGs]",
)
@spark_options
def clients(logs: tuple[str, ...], dates: tuple[str, ...], top: int, pushes: tuple[str, ...], **common: Any) -> None:
    """Show latency as clients measure it, beside the broker's.

    The input is a request log, as a TABLE of `ingest` or as LOGs, and the log of the metrics that clients push
    (kbroker.telemetry.log.dir), which may be in the same folder. The clients with the largest difference are first:
    it is the time of the network and of the client's own queue.
    """
    from kbroker.spark.tables.log_store import require_logs

    require_logs([place_of(push, common) for push in pushes])  # before Spark starts and reads the logs
    with request_rows(logs, dates, common) as (rows, are_views):
        from kbroker.spark.tables.log_reader import LogSource
        from kbroker.spark.usage_views.clients import compare, read_pushes
        from kbroker.spark.usage_views.usage import day_of, second_of

        if are_views:
            raise click.UsageError("expected a table of `ingest` or LOGs, got one of `watch`, without latencies")
        progress(common).doing = "comparing"
        pushed = read_pushes(rows.sparkSession, LogSource.of_files(*(pushes or logs), storage=common["storage"]))
        if dates:
            pushed = pushed.where(day_of(second_of("time")).isin(*dates))
        found = [row.asDict() for row in compare(pushed, rows).limit(top).collect()]
    if common["as_json"]:
        print_json(found)
        return
    if not found:
        click.echo("No client has pushed metrics.")
        return
    header = ["PRINCIPAL", "CLIENT ID", "INSTANCES"]
    lines: list[list[object]] = [[row["principal"], row["client_id"], jobs.count(row["instances"])] for row in found]
    for name in ("produce", "fetch"):
        header += [name.upper(), "MAX", "BROKER", "DIFFERENCE"]
        for line, row in zip(lines, found, strict=True):
            own, broker = row[f"{name}_ms"], row[f"broker_{name}_ms"]
            rest = None if own is None or broker is None else own - broker
            line += [_shown(one) for one in (own, row[f"{name}_max_ms"], broker, rest)]
    print_table(header, lines, right=range(2, len(header)))


def _shown(time_ms: float | None) -> str | None:
    """Return a time as text; None if it is unknown.

    A difference is negative, and has its sign, where the averages of client and broker are of different requests.
    """
    if time_ms is None:
        return None
    return f"-{jobs.duration(-time_ms)}" if time_ms < 0 else jobs.duration(time_ms)
