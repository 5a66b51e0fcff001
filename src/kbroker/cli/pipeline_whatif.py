"""`kbroker pipeline replay, recommend, report`: effects of other quotas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import command_config_option, connect
from kbroker.cli.output import print_done, print_json, print_table
from kbroker.cli.pipeline_options import (
    FILE,
    RESULT,
    option,
    place_of,
    recommend_options,
    spark_options,
    table_options,
    window_options,
)
from kbroker.cli.pipeline_session import progress, running, session
from kbroker.cli.quota_views import json_brokers, json_entry, warn_of_brokers
from kbroker.client.quota_file import read_quota_file
from kbroker.client.quotas import QuotaClient
from kbroker.common.quota_limits import limit_text
from kbroker.common.quotas import QuotaEntity, shown_name
from kbroker.spark import formatting as jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.tables.table_place import TablePlace
    from kbroker.spark.whatif.check import Checked
    from kbroker.spark.whatif.feed import Windows
    from kbroker.spark.whatif.recommend import Headroom, Recommendation

    Quotas = dict[QuotaEntity, dict[str, float]]

_TIMES = ("first_delay", "last_delay")  # columns of `by_client`


@click.command()
@table_options
@click.option(
    "--quotas",
    "path",
    type=FILE,
    required=True,
    metavar="FILE.yaml",
    help="Quotas to try, as for `kbroker quotas apply`.",
)
@option("--top", help="Number of clients to show.")
@click.option("--check", is_flag=True, help="Check that the logged values lead to the logged verdicts under FILE.yaml.")
@window_options
@spark_options
def replay(table: str, path: Path, top: int, check: bool, **common: Any) -> None:
    """Show the delays that other quotas would have caused.

    The output has the delays of each client with their times. TABLE is a table of `ingest`. The sensors of the broker
    evaluate every value. Clients do not react to these delays, as real ones would (open loop).
    """
    place_of(table, common)  # an unknown store is the first error
    wanted = read_quota_file(path)
    if check:
        _print_check(_checked(table, wanted, common), common)
    else:
        rows, sums = _replayed(table, wanted, path, top, common)
        _print_replay(rows, sums, common)


def _checked(table: str, wanted: Quotas, common: dict[str, Any]) -> Checked:
    with _spark(table, common, "checking") as (spark, place):
        from kbroker.spark.tables.table import read_table
        from kbroker.spark.whatif.check import check, replay_exact
        from kbroker.spark.whatif.quota_set import QuotaSet

        rows = read_table(spark, place, dates=common["dates"] or None)
        return check(replay_exact(rows, QuotaSet(wanted), windows=_windows(common)))


def _print_check(found: Checked, common: dict[str, Any]) -> None:
    if common["as_json"]:
        print_json(found._asdict())
        return
    print_table(["EQUAL", "DIFFERENT", "ONLY IN THE LOG", "ONLY IN THE REPLAY", "UNKNOWN"], [list(found[:5])])
    if found.incomplete:
        click.echo(
            f"The log lacks {found.missing:,} values of {found.incomplete:,} counters: it was sampled, or records were "
            "dropped, or it does not begin with the broker. Later verdicts of these counters are unknown."
        )


def _replayed(
    table: str, wanted: Quotas, path: Path, top: int, common: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the first clients by delay, and the totals."""
    with _spark(table, common, "replaying") as (spark, place):
        from pyspark.sql import functions as F

        from kbroker.spark.whatif.quota_set import QuotaSet
        from kbroker.spark.whatif.replay import replay_bins
        from kbroker.spark.whatif.sum import by_client, totals_of

        quotas = QuotaSet(wanted)
        progress(common)(f"replaying under {len(quotas.quotas)} entities of {path}")
        dates, windows = common["dates"] or None, _windows(common)
        clients = by_client(replay_bins(spark, place, quotas, dates=dates, windows=windows)).cache()
        # as numbers, since PySpark returns times in the time zone of this machine
        first = clients.limit(top).withColumns({name: F.unix_seconds(name) for name in _TIMES})
        return [row.asDict() for row in first.collect()], totals_of(clients)


def _print_replay(rows: list[dict[str, Any]], sums: dict[str, int], common: dict[str, Any]) -> None:
    from kbroker.spark.whatif.feed import OPEN_LOOP

    if common["as_json"]:
        shown = [{**row, **{name: _utc(row[name], "%Y-%m-%d %H:%M:%S") for name in _TIMES}} for row in rows]
        print_json({"note": OPEN_LOOP, "totals": sums, "clients": shown})
        return
    header = ["PRINCIPAL", "CLIENT ID", "REQUESTS", "DELAY BEFORE", "DELAYED", "DELAY AFTER", "LONGEST", "SECONDS"]
    lines = [
        [
            *(row["principal"], row["client_id"]),
            *(jobs.count(row["requests"]), jobs.duration(row["logged_delay_ms"])),
            *(jobs.count(row["delayed"]), jobs.duration(row["delay_ms"]), jobs.duration(row["longest_delay_ms"])),
            f"{row['delayed_seconds']:,} of {row['active_seconds']:,}",
            *(_utc(row[name], "%H:%M:%S") for name in _TIMES),
        ]
        for row in rows
    ]
    print_table([*header, "FIRST", "LAST"], lines, right=range(2, 8))
    click.echo(
        f"{jobs.count(sums['requests'])} requests of {sums['clients']:,} clients: delay before "
        f"{jobs.duration(sums['logged_delay_ms'])}, after {jobs.duration(sums['delay_ms'])}; {OPEN_LOOP}."
    )


def _utc(second: int | None, form: str) -> str | None:
    """Return a second since 1970 as text."""
    return None if second is None else datetime.fromtimestamp(second, timezone.utc).strftime(form)


@click.command()
@table_options
@click.option("--output", "-o", type=RESULT, metavar="FILE.yaml", help="File to write.  [default: stdout]")
@recommend_options
@window_options
@spark_options
def recommend(table: str, output: Path | None, **common: Any) -> None:
    """Recommend quotas, as a file for `kbroker quotas apply`.

    The file contains a default of each type, and separate quotas for the entities that need more. The quota of an
    entity is the smallest that would have throttled it in less than --throttled-below percent of its seconds, as
    computed by the sensors of the broker. A comment states the actual share.
    """
    with _spark(table, common, "looking") as (spark, place):
        from kbroker.spark.whatif.recommend import yaml_text

        found = _recommended(spark, place, common)
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
@click.option("--output", "-o", type=RESULT, required=True, metavar="FILE.html", help="Page to write.")
@click.option("--quotas", "path", type=FILE, metavar="FILE.yaml", help="Quotas to try.  [default: the recommendation]")
@click.option("--current", type=FILE, metavar="FILE.yaml", help="Current quotas, shown next to the recommendation.")
@click.option("--bootstrap-server", metavar="HOST:PORT", help="Broker from which to read the current quotas.")
@command_config_option
@recommend_options
@window_options
@spark_options
def report(
    table: str, output: Path, path: Path | None, current: Path | None, bootstrap_server: str | None, **common: Any
) -> None:
    """Write a page with plots of a request log.

    The page shows usage over time, throttles, recommended and current quotas, and the delays under them. It is one HTML
    file that needs no other files.
    """
    in_force, brokers = _in_force(current, bootstrap_server)
    wanted = read_quota_file(path) if path is not None else None
    with _spark(table, common, "looking") as (spark, place):
        from kbroker.spark.report.write import write_report

        found = _recommended(spark, place, common)
        say = progress(common)
        say("replaying")
        say.doing = "replaying"
        done = write_report(
            spark,
            place,
            output,
            found.quotas() if wanted is None else wanted,
            datetime.now(timezone.utc),
            recommendation=found,
            current=in_force,
            dates=common["dates"] or None,
            windows=_windows(common),
        )
    document = {"report": str(output), "size_bytes": done, **json_brokers(brokers)}
    print_done(document, common["as_json"], f"{output} ({done:,} bytes)")


def _in_force(path: Path | None, bootstrap_server: str | None) -> tuple[Quotas | None, int]:
    """Return the current quotas, if given, and the number of brokers, each of which enforces them on its own."""
    if path is not None and bootstrap_server is not None:
        raise click.UsageError("expected only one of --current and --bootstrap-server, got both")
    if path is not None:
        return read_quota_file(path), 1
    if bootstrap_server is None:
        return None, 1
    with connect(bootstrap_server) as cluster:
        client = QuotaClient(cluster)
        found = client.describe()
        brokers = client.broker_count()
    warn_of_brokers(brokers)
    return found, brokers


def _windows(common: dict[str, Any]) -> Windows:
    from kbroker.spark.whatif.feed import Windows

    return Windows(common["samples"], common["window_seconds"])


@contextmanager
def _spark(table: str, common: dict[str, Any], doing: str) -> Iterator[tuple[SparkSession, TablePlace]]:
    """Yield a session and the place of a table of `ingest`, at the same version for all reads."""
    from kbroker.spark.tables.delta_table import REQUEST_LOG, TOPIC, Table, TableError

    place = place_of(table, common)
    found = Table(place)
    kind = found.info().kind
    if kind != REQUEST_LOG:
        held = "an archive of a topic" if kind == TOPIC else "a table of `watch`"
        raise TableError(f"{place} is {held}: a table of `kbroker pipeline ingest` is needed")
    progress(common).doing = doing
    with running(common, session) as spark:
        yield spark, found.at_version


def _recommended(spark: SparkSession, table: TablePlace, common: dict[str, Any]) -> Recommendation:
    from dataclasses import replace

    from kbroker.spark.whatif.recommend import capacity_percent, headroom_of, needs_of_table, recommend

    share, by, dates = common["throttled_below"] / 100, common["by"], common["dates"] or None
    say = progress(common)
    say(f"looking for the smallest quotas by {by}")
    needs = needs_of_table(spark, table, share=share, by=by, dates=dates, windows=_windows(common))
    found = recommend(needs, share=share, by=by, top=common["outliers"])
    if common["io_threads"] is None or common["network_threads"] is None:
        return found
    capacity = capacity_percent(common["io_threads"], common["network_threads"], common["listeners"])
    say.doing = "headroom"
    return replace(found, headroom=headroom_of(spark, table, found, capacity, dates=dates))


def _recommendation_json(found: Recommendation) -> dict[str, Any]:
    return {
        "by": found.by,
        "throttled_below": found.share,
        "quotas": [json_entry(entity, values) for entity, values in found.quotas().items()],
        "needs": [{**need._asdict(), "share": need.share} for need in found.needs],
        "headroom": None if found.headroom is None else {**found.headroom._asdict(), "free": found.headroom.free},
    }


def _print_recommendation(found: Recommendation) -> None:
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
        f"Threads: {room.capacity:,.0f} % available, {room.mean:,.1f} % used on average, {room.peak:,.1f} % in the "
        f"busiest second; the recommended request quotas allow {room.recommended:,.1f} % in total."
    )
