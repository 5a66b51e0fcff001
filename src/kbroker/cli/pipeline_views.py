"""`kbroker pipeline usage, throttles, lag`: views of a request log, and the lag of consumer groups and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import bootstrap_option, connect, json_option
from kbroker.cli.output import fields, print_json, print_rows, print_table
from kbroker.cli.pipeline_options import log_options, no_spark_options, options, place_of, spark_options
from kbroker.cli.pipeline_session import progress, running, session
from kbroker.spark import formatting as jobs
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kbroker.spark.usage_views.lag import Lag


@click.command()
@log_options
@click.option(
    "--by",
    type=click.Choice(["bytes", "requests", "request-time", "mutations", "connections"]),
    default="bytes",
    show_default=True,
    help="Measure to sort by, highest first.",
)
@click.option(
    "--per",
    type=click.Choice(["total", "day", "second"]),
    default="total",
    show_default=True,
    help="One row per entity, per entity and day, or per entity and second.",
)
@spark_options
def usage(logs: tuple[str, ...], dates: tuple[str, ...], top: int, by: str, per: str, **common: Any) -> None:
    """Show the usage of the broker by clients.

    The output has the requests, bytes, time, mutations, connections, and the busiest second of each.

    The input is a TABLE of `ingest` or `watch`, or LOGs of kbroker or Apache Kafka.
    """
    with request_rows(logs, dates, common) as (rows, are_views):
        from kbroker.spark.usage_views import usage as measured
        from kbroker.spark.watch.views import usage_of

        progress(common).doing = "adding up"
        if are_views and per == "second":
            raise click.UsageError("expected a table of `ingest` with --per second, got a table of `watch`")
        if are_views:
            used = usage_of(rows, *(["date"] if per == "day" else []))
        else:
            makes = {"total": measured.usage, "day": measured.usage_per_day, "second": measured.usage_per_second}
            used = makes[per](rows)
        found = [row.asDict() for row in measured.top(used, by, top).collect()]
    if common["as_json"]:
        print_json(found)
        return
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "requests": ("REQUESTS", jobs.count),
        "request_bytes": ("IN", jobs.size),
        "response_bytes": ("OUT", jobs.size),
        "request_time_us": ("TIME", lambda us: jobs.duration(us / 1000)),
        "mutations": ("MUTATIONS", jobs.count),
        "connections": ("CONNECTIONS", jobs.count),
    }
    header = [*(["DATE"] if per != "total" else []), *(["SECOND"] if per == "second" else []), "PRINCIPAL", "CLIENT ID"]
    columns = []
    for name, (title, text) in shown.items():
        columns += [(title, name, text), *([("MAX/S", f"{name}_peak", text)] if per != "second" else [])]
    lines = [
        [*_place(row, per), row["principal"], row["client_id"], *(text(row[name]) for _, name, text in columns)]
        for row in found
    ]
    right = range(len(header), len(header) + len(columns))
    print_table([*header, *(title for title, _, _ in columns)], lines, right=right)


def _place(row: dict[str, Any], per: str) -> list[Any]:
    if per == "second":
        second = row["second"]
        return [row["date"], f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"]
    return [row["date"]] if per == "day" else []


@click.command()
@log_options
@spark_options
def throttles(logs: tuple[str, ...], dates: tuple[str, ...], top: int, **common: Any) -> None:
    """Show throttled clients, and the quotas that throttled them.

    The output has the number and length of the delays, and each quota's share of all delay.

    The input is a TABLE of `ingest` or `watch`, or LOGs. A log of Apache Kafka has delays but not their quotas.
    """
    with request_rows(logs, dates, common) as (rows, are_views):
        from kbroker.spark.usage_views import throttles as judged
        from kbroker.spark.watch.views import throttles_of_views

        progress(common).doing = "adding up"
        every = (throttles_of_views(rows) if are_views else judged.throttles(rows)).cache()
        quotas = [row.asDict() for row in judged.by_quota(every).collect()]
        found = [row.asDict() for row in every.limit(top).collect()]
    if common["as_json"]:
        print_json({"quotas": quotas, "throttles": found})
        return
    if not found:
        click.echo("No client was throttled.")
        return
    print_table(
        ["QUOTA", "CLIENTS", "TIMES", "REFUSED", "DELAY", "SHARE"],
        [
            [
                q["quota_type"] or "unknown",
                *(jobs.count(q[name]) for name in ("clients", "verdicts", "refused")),
                *(jobs.duration(q["delay_served_ms"]), jobs.share(q["share"])),
            ]
            for q in quotas
        ],
        right=range(1, 6),
    )
    click.echo()
    print_table(
        ["QUOTA", "USER", "CLIENT ID", "IP", "LIMIT", "TIMES", "REFUSED", "ASKED", "DELAY", "LONGEST", "SHARE"],
        [
            [
                t["quota_type"] or "unknown",
                *(t[name] or None for name in ("user", "client_id", "ip")),
                "-" if t["limit"] is None else f"{t['limit']:,.10g}",
                *(jobs.count(t[name]) for name in ("verdicts", "refused")),
                *(jobs.duration(t[name]) for name in ("delay_asked_ms", "delay_served_ms", "delay_max_ms")),
                jobs.share(t["share"]),
            ]
            for t in found
        ],
        right=range(4, 11),
    )


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@bootstrap_option
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    metavar="DIR",
    help="Checkpoint of a Spark stream, or table of ingest or archive: a folder or a URI. Repeatable.",
)
@options("--storage-option")
@click.option("--partitions", is_flag=True, help="Print a row per partition.")
@json_option
@no_spark_options
def lag(
    names: tuple[str, ...],
    bootstrap_server: str,
    checkpoints: tuple[str, ...],
    storage: dict[str, str],
    partitions: bool,
    as_json: bool,
) -> None:
    """Show the lag of consumer groups and Spark streams.

    Without a GROUP or a --checkpoint, all groups are shown. The command needs neither Spark nor Java.
    """
    from kbroker.spark.usage_views.lag import checkpoint_lag, group_lag, read_checkpoint

    folders = [place_of(folder, {"storage": storage}) for folder in checkpoints]
    for folder in folders:
        read_checkpoint(folder)  # report a wrong folder before connecting to a broker
    with connect(bootstrap_server) as cluster:
        found = group_lag(cluster, names) if names or not folders else []
        for folder in folders:
            found += checkpoint_lag(cluster, folder)
    if not found and not as_json:
        click.echo("no offsets are committed")
        return
    if as_json or partitions:
        header = ["KIND", "READER", "TOPIC", "PARTITION", "OFFSET", "END", "LAG"]
        rows = [fields(one, "kind reader topic partition offset end_offset lag") for one in found]
        print_rows(header, rows, as_json)
    else:
        print_table(["KIND", "READER", "TOPIC", "PARTITIONS", "LAG", "LARGEST", "UNKNOWN"], _by_topic(found))


def _by_topic(found: Sequence[Lag]) -> list[list[object]]:
    """Return sums per reader and topic; unknown lags are counted separately, not as zero."""
    groups: dict[tuple[str, str, str], list[int | None]] = {}
    for one in found:
        groups.setdefault((one.kind, one.reader, one.topic), []).append(one.lag)
    rows: list[list[object]] = []
    for key, lags in groups.items():
        known = [lag for lag in lags if lag is not None]
        rows.append([*key, len(lags), sum(known) if known else None, max(known, default=None), len(lags) - len(known)])
    return rows


@contextmanager
def request_rows(
    logs: tuple[str, ...], dates: tuple[str, ...], common: dict[str, Any]
) -> Iterator[tuple[DataFrame, bool]]:
    """Yield the rows of a table or of logs, and whether they are the views of `watch`.

    Spark runs until the block ends.

    Raises: UsageError, TableError; PipelineError if no record can be read.
    """
    from kbroker.spark.tables.delta_table import REQUEST_LOG, VIEWS, Table, TableError, describe_table
    from kbroker.spark.tables.log_reader import LogSource
    from kbroker.spark.tables.log_store import require_logs

    places = [place_of(log, common) for log in logs]
    tables = [table for table in map(Table, places) if table.exists()]
    if tables and len(logs) > 1:
        raise click.UsageError("expected one TABLE or only LOGs, got a TABLE with others")
    say = progress(common)
    kind = tables[0].info().kind if tables else REQUEST_LOG
    if kind not in (REQUEST_LOG, VIEWS):
        raise TableError(f"{tables[0]} is an archive of a topic, not a request log")
    if not tables and common["as_of"] is not None:
        raise click.UsageError("expected a TABLE with --as-of, got LOGs, which have no versions")
    if not tables:
        require_logs(places)
    source = None if tables else LogSource.of_files(*logs, storage=common["storage"])
    with running(common, session) as spark:
        from kbroker.spark.tables.log_reader import POSITION, REASON, SOURCE, good, read_log
        from kbroker.spark.tables.table import read_table
        from kbroker.spark.usage_views.usage import day_of, second_of

        if source is None:
            place = tables[0].at_version  # a running `ingest` or `watch` adds rows
            known = describe_table(place, dates or None)
            rows_text, hours, files = (jobs.counted(known[f"{one}s"], one) for one in ("row", "hour", "file"))
            say(f"reading {rows_text} of {hours} in {files}")
            yield read_table(spark, place, dates=dates or None), kind == VIEWS
        else:
            say.doing = "reading"
            parsed = read_log(spark, source).cache()
            records, others = parsed.selectExpr(f"count_if({REASON} is null)", f"count({REASON})").collect()[0]
            if others and not records:
                (first,) = parsed.select(SOURCE, POSITION, REASON).take(1)
                raise PipelineError(
                    f"{', '.join(logs)}: none of {jobs.counted(others, 'line')} is a record of a request (at "
                    f"{first[POSITION]} of {first[SOURCE]}: {first[REASON]}): expected a TABLE or a request log"
                )
            say(f"read {jobs.counted(records, 'record')}; lines that are not records: {jobs.count(others)}")
            rows = good(parsed)
            yield (rows.where(day_of(second_of("time")).isin(*dates)) if dates else rows), False
