"""`kbroker pipeline replay, recommend, report`: what other quotas would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import command_config_option, connect, decorators
from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_jobs import date_option
from kbroker.cli.pipeline_session import LocalPath, progress, running, session, spark_options
from kbroker.cli.pipeline_table import as_of_option, place_of, storage_option, table_argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.common.quotas import QuotaEntity
    from kbroker.spark.tables.table_place import TablePlace
    from kbroker.spark.whatif.quota_set import QuotaSet
    from kbroker.spark.whatif.recommend import Headroom, Recommendation
    from kbroker.spark.whatif.replay import Checked
    from kbroker.spark.whatif.replay_core import Windows

FILE = LocalPath(dir_okay=False)
RESULT = LocalPath(dir_okay=False, is_result=True)


table_options = decorators(table_argument, date_option, as_of_option, storage_option)
window_options = decorators(
    click.option("--samples", type=click.IntRange(1), default=11, show_default=True, help="quota.window.num."),
    click.option(
        "--window-seconds", type=click.IntRange(1), default=1, show_default=True, help="quota.window.size.seconds."
    ),
)
recommend_options = decorators(
    click.option(
        "--throttled-below",
        type=click.FloatRange(0, 100, min_open=True),
        default=1.0,
        show_default=True,
        metavar="PERCENT",
        help="Of the seconds in which an entity sends anything, how many may be throttled.",
    ),
    click.option(
        "--by",
        type=click.Choice(["user,client-id", "user", "client-id"]),
        default="user,client-id",
        show_default=True,
        help="Whose quotas.",
    ),
    click.option(
        "--outliers",
        type=click.IntRange(0),
        default=5,
        show_default=True,
        help="Separate quotas, of each type.",
    ),
    click.option("--io-threads", type=click.IntRange(1), metavar="N", help="num.io.threads, for the headroom."),
    click.option("--network-threads", type=click.IntRange(1), metavar="N", help="num.network.threads."),
    click.option("--listeners", type=click.IntRange(1), default=1, show_default=True, help="How many there are."),
)


@click.command()
@table_options
@click.option("--quotas", "path", type=FILE, required=True, metavar="FILE.yaml", help="As `kbroker quotas apply`.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="How many clients to show.")
@click.option("--check", is_flag=True, help="Whether the log's own updates give its own verdicts, under FILE.yaml.")
@window_options
@spark_options
def replay(
    table: str,
    dates: tuple[str, ...],
    path: Path,
    top: int,
    check: bool,
    samples: int,
    window_seconds: int,
    **common: Any,
) -> None:
    """Show who other quotas would have delayed.

    By how much, and when. TABLE is one of `ingest`. Every value goes through the sensors of the broker. It is
    an open loop: clients do not
    react, as real ones would.
    """
    place_of(table, common)  # what is no table is refused first
    wanted = _read(path)
    from kbroker.spark.whatif.quota_set import QuotaSet
    from kbroker.spark.whatif.replay import replay_clients, totals_of

    quotas, windows = QuotaSet(wanted), _windows(samples, window_seconds)
    say = progress(common)
    found: Checked | None = None
    with _spark(table, common) as (spark, place):
        if check:
            say.doing = "checking"
            found = _checked(spark, place, dates, quotas, windows)
        else:
            say(f"replaying under {len(quotas.quotas)} entities of {path}")
            say.doing = "replaying"
            clients = replay_clients(spark, place, quotas, dates=dates or None, windows=windows).cache()
            rows = [row.asDict() for row in clients.limit(top).collect()]
            sums = totals_of(clients)
    if found is not None:
        _print_check(found, common)
        return
    from kbroker.spark import formatting as jobs
    from kbroker.spark.whatif.replay_core import OPEN_LOOP

    if common["as_json"]:
        shown = [{**row, **{n: str(row[n]) if row[n] else None for n in ("first_delay", "last_delay")}} for row in rows]
        document: dict[str, Any] = {"note": OPEN_LOOP, "totals": sums, "clients": shown}
        print_json(document)
        return
    print_table(
        [
            "PRINCIPAL",
            "CLIENT ID",
            "REQUESTS",
            "DELAY BEFORE",
            "DELAYED",
            "DELAY AFTER",
            "LONGEST",
            "SECONDS",
            "FIRST",
            "LAST",
        ],
        [
            [
                *(
                    row["principal"],
                    row["client_id"],
                    jobs.count(row["requests"]),
                    jobs.duration(row["logged_delay_ms"]),
                ),
                *(jobs.count(row["delayed"]), jobs.duration(row["delay_ms"]), jobs.duration(row["longest_delay_ms"])),
                f"{row['delayed_seconds']:,} of {row['active_seconds']:,}",
                *(f"{row[name]:%H:%M:%S}" if row[name] else None for name in ("first_delay", "last_delay")),
            ]
            for row in rows
        ],
        right=range(2, 8),
    )
    click.echo(
        f"{jobs.count(sums['requests'])} requests of {sums['clients']:,} clients: delay before "
        f"{jobs.duration(sums['logged_delay_ms'])}, after {jobs.duration(sums['delay_ms'])}; {OPEN_LOOP}."
    )


@click.command()
@table_options
@click.option("--output", "-o", type=RESULT, metavar="FILE.yaml", help="Write it there; else to stdout.")
@recommend_options
@window_options
@spark_options
def recommend(
    table: str, dates: tuple[str, ...], output: Path | None, samples: int, window_seconds: int, **common: Any
) -> None:
    """Recommend quotas, as a file for `kbroker quotas apply`.

    A default of each type, and separate quotas for the entities that need more. Per entity the smallest quota
    that would have throttled less than a share of its seconds, found through the sensors
    of the broker and stated with that cost.
    """
    with _spark(table, common) as (spark, place):
        from kbroker.spark.whatif.recommend import yaml_text

        found = _recommended(spark, place, dates, _windows(samples, window_seconds), common)
    text = yaml_text(found)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        progress(common)(f"wrote {output}")
    if common["as_json"]:
        print_json(_recommendation_json(found))
    elif output is None:
        click.echo(text, nl=False)
    else:
        _print_recommendation(found)


@click.command()
@table_options
@click.option("--output", "-o", type=RESULT, required=True, metavar="FILE.html", help="The page.")
@click.option("--quotas", "path", type=FILE, metavar="FILE.yaml", help="What to try; else what is recommended.")
@click.option("--current", type=FILE, metavar="FILE.yaml", help="The quotas in force, to stand beside it.")
@click.option("--bootstrap-server", metavar="HOST:PORT", help="Ask this broker for the quotas in force instead.")
@command_config_option
@recommend_options
@window_options
@spark_options
def report(
    table: str,
    dates: tuple[str, ...],
    output: Path,
    path: Path | None,
    current: Path | None,
    bootstrap_server: str | None,
    samples: int,
    window_seconds: int,
    **common: Any,
) -> None:
    """Write a page with plots of a request log.

    Usage over time, throttles, recommended against current quotas, what if. One HTML file that needs nothing else.
    """
    in_force, brokers = _in_force(current, bootstrap_server)
    wanted = _read(path) if path is not None else None
    with _spark(table, common) as (spark, place):
        from kbroker.spark.report.write import write_report

        windows = _windows(samples, window_seconds)
        found = _recommended(spark, place, dates, windows, common)
        say = progress(common)
        say("replaying")
        say.doing = "replaying"
        done = write_report(
            spark,
            place,
            output,
            wanted or found.quotas(),
            datetime.now(timezone.utc),
            recommendation=found,
            current=in_force,
            dates=dates or None,
            windows=windows,
        )
    _notified(output, done, brokers, common)


def _notified(output: Path, size_bytes: int, brokers: int, common: dict[str, Any]) -> None:
    from kbroker.cli.quota_views import json_brokers

    if common["as_json"]:
        print_json({"report": str(output), "size_bytes": size_bytes, **json_brokers(brokers)})
    else:
        click.echo(f"{output} ({size_bytes:,} bytes)")


def _read(path: Path) -> dict[QuotaEntity, dict[str, float]]:
    from kbroker.client.quota_file import QuotaFileError, read_quota_file

    try:
        return read_quota_file(path)
    except QuotaFileError as error:
        raise click.ClickException(str(error)) from None


def _in_force(
    path: Path | None, bootstrap_server: str | None
) -> tuple[dict[QuotaEntity, dict[str, float]] | None, int]:
    """The quotas in force, if they are known, and how many brokers enforce them, each by itself."""
    if path is not None and bootstrap_server is not None:
        raise click.UsageError("only one of --current and --bootstrap-server")
    if path is not None:
        return _read(path), 1
    if bootstrap_server is None:
        return None, 1
    from kbroker.cli.quota_views import warn_of_brokers
    from kbroker.client.quotas import QuotaClient

    with connect(bootstrap_server) as cluster:
        client = QuotaClient(cluster)
        found = client.describe()
        brokers = client.broker_count()
    warn_of_brokers(brokers)
    return found, brokers


def _windows(samples: int, window_seconds: int) -> Windows:
    from kbroker.spark.whatif.replay_core import Windows

    return Windows(samples, window_seconds)


@contextmanager
def _spark(table: str, common: dict[str, Any]) -> Iterator[tuple[SparkSession, TablePlace]]:
    """A session, and where the table lies, which is there."""
    from kbroker.spark.tables.delta_table import REQUEST_LOG, TOPIC, Table, TableError

    place = place_of(table, common)
    kind = Table(place).info().kind
    if kind != REQUEST_LOG:
        held = "an archive of a topic" if kind == TOPIC else "a table of `watch`"
        raise TableError(f"{place} is {held}: a table of `kbroker pipeline ingest` is needed")
    with running(common, session) as spark:
        yield spark, place


def _checked(
    spark: SparkSession, table: TablePlace, dates: tuple[str, ...], quotas: QuotaSet, windows: Windows
) -> Checked:
    from kbroker.spark.tables.table import read_table
    from kbroker.spark.whatif.replay import check, replay_exact

    return check(replay_exact(read_table(spark, table, dates=dates or None), quotas, windows=windows))


def _print_check(found: Checked, common: dict[str, Any]) -> None:
    if common["as_json"]:
        print_json(found._asdict())
        return
    print_table(["EQUAL", "DIFFERENT", "ONLY IN THE LOG", "ONLY IN THE REPLAY", "UNKNOWN"], [list(found[:5])])
    if found.incomplete:
        click.echo(
            f"The log lacks {found.missing:,} values of {found.incomplete:,} counters: it was sampled, or records were "
            "dropped, or it does not begin with the broker. Verdicts after them are unknown."
        )


def _recommended(
    spark: SparkSession, table: TablePlace, dates: tuple[str, ...], windows: Windows, common: dict[str, Any]
) -> Recommendation:
    from dataclasses import replace

    from kbroker.spark.whatif.recommend import capacity_percent, headroom_of, needs_of_table, recommend

    share, by = common["throttled_below"] / 100, common["by"]
    say = progress(common)
    say(f"looking for the smallest quotas by {by}")
    say.doing = "looking"
    needs = needs_of_table(spark, table, share=share, by=by, dates=dates or None, windows=windows)
    found = recommend(needs, share=share, by=by, top=common["outliers"])
    if common["io_threads"] is None or common["network_threads"] is None:
        return found
    capacity = capacity_percent(common["io_threads"], common["network_threads"], common["listeners"])
    say.doing = "headroom"
    return replace(found, headroom=headroom_of(spark, table, found, capacity, dates=dates or None))


def _recommendation_json(found: Recommendation) -> dict[str, Any]:
    from kbroker.cli.quota_views import json_entry

    return {
        "by": found.by,
        "throttled_below": found.share,
        "quotas": [json_entry(entity, values) for entity, values in found.quotas().items()],
        "needs": [{**need._asdict(), "share": need.share} for need in found.needs],
        "headroom": None if found.headroom is None else {**found.headroom._asdict(), "free": found.headroom.free},
    }


def _print_recommendation(found: Recommendation) -> None:
    from kbroker.common.quota_limits import limit_text
    from kbroker.common.quotas import shown_name
    from kbroker.spark.whatif.quota_set import KEY_OF

    kinds = found.by.split(",")
    rows: list[list[object]] = [
        [*(shown_name(None) if kind in kinds else None for kind in ("user", "client-id")), KEY_OF[kind_of],
         limit_text(KEY_OF[kind_of], limit), None, None]
        for kind_of, limit in found.defaults.items()
    ]  # fmt: skip
    for need in found.outliers:
        rows.append(
            [need.user, need.client_id, KEY_OF[need.quota_type],
             limit_text(KEY_OF[need.quota_type], need.limit), f"{need.peak:,.2f}",
             f"{need.throttled_seconds:,} of {need.seconds:,} s ({need.share:.2%})"]
        )  # fmt: skip
    print_table(["USER", "CLIENT-ID", "QUOTA", "LIMIT", "PEAK RATE", "THROTTLED"], rows, right=[3, 4, 5])
    if found.headroom is not None:
        click.echo(_headroom_text(found.headroom))


def _headroom_text(room: Headroom) -> str:
    return (
        f"Threads: {room.capacity:,.0f} % to give, {room.mean:,.1f} % used on average, {room.peak:,.1f} % in the "
        f"busiest second; the recommended request quotas allow {room.recommended:,.1f} % together."
    )
