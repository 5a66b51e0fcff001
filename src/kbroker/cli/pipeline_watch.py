"""`kbroker pipeline watch`: follow the usage and throttles of a log in a table and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import Duration, connect
from kbroker.cli.pipeline_jobs import described, log_source, run_stream, stream_of, summary
from kbroker.cli.pipeline_options import (
    RESULT,
    kept_options,
    logs_argument,
    option,
    options,
    place_of,
    source_options,
    spark_options,
    table_argument,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.watch.watch import Watched


#: Limit of a batch, whose minutes are all in Spark's state: up to 450 bytes for each record in the worst case.
MAX_RECORDS, MAX_FILE_BYTES = 1_000_000, 500_000_000


def default_limit(topic: str | None, logs: Sequence[str], connector: str, bootstrap_server: str) -> int | None:
    """Return the limit of a batch, records of a topic or bytes of files; None if only a whole batch is in order."""
    if topic is None:
        return MAX_FILE_BYTES if len(logs) == 1 else None
    if connector == "kbroker":
        return MAX_RECORDS
    with connect(bootstrap_server) as cluster:
        (found,) = cluster.fetch_metadata([topic])
    return MAX_RECORDS if len(found.partitions) == 1 else None


@click.command()
@table_argument
@logs_argument
@options("--topic")
@click.option("--page", type=RESULT, metavar="FILE.html", help="Page with plots to keep up to date.")
@click.option(
    "--every",
    type=Duration(1000),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time between batches, and between pages.",
)
@option(
    "--watermark",
    type=Duration(),
    default="1min",
    metavar="TIME",
    help="Time from the end of a minute until it is closed, by the time of the records. Later records are left out of "
    "the views.",
)
@click.option(
    "--last",
    type=Duration(60_000),
    default="1d",
    show_default=True,
    metavar="TIME",
    help="Time before now that the page shows.",
)
@options("--format")
@source_options
@options("--max-per-batch")
@kept_options
@spark_options
def watch(
    table: str,
    logs: tuple[str, ...],
    topic: str | None,
    page: Path | None,
    every: int,
    watermark: int,
    last: int,
    log_format: str,
    **common: Any,
) -> None:
    """Follow a request log until stopped.

    The command adds up usage and throttles by minute in TABLE, a Delta Lake table that `usage` and `throttles` read. It
    can also keep a page with the latest minutes. TABLE is a folder, or a URI such as s3://BUCKET/NAME.

    LOGs are files, folders of files, or patterns; or name a --topic. A minute is written once, when it is closed, also
    after a kill; run the command again to continue. SIGINT or SIGTERM ends it after the current batch.

    A batch has at most a million records of a topic, or 500 MB of files, unless --max-per-batch is given. There is no
    such limit for several LOGs, or for several partitions with --connector kafka: records would be read out of order
    and arrive late.
    """
    if bool(logs) == bool(topic):
        raise click.UsageError(f"expected either LOGs or --topic, got {'both' if logs else 'neither'}")
    place = place_of(table, common)
    limit = partial(default_limit, topic, logs, common["connector"], common["bootstrap_server"])
    times = {"interval_ms": every, "watermark_ms": watermark}
    chosen = stream_of(common, place, topic, limit, buckets=1, follow=True, **times)
    source = log_source(topic, logs, log_format, common)

    def run(spark: SparkSession, **more: Any) -> Watched:
        from kbroker.spark.watch.live_page import write_live_page
        from kbroker.spark.watch.watch import watch as run_watch

        refresh = None
        if page is not None:
            refresh = partial(write_live_page, spark, place, page, span_ms=last, every_ms=every)
        return run_watch(spark, source(), place, chosen(), refresh=refresh, **more)

    done = run_stream(run, common, "watching")
    names = ("batches", "records", "rejected", "late", "rows", "pages", "state_rows")
    rows = {name: getattr(done, name) for name in names}
    rows |= {"state_size_bytes": done.state_bytes, "elapsed_ms": done.elapsed_ms}
    summary({"run": rows, "table": described(place)}, common)
