"""`kbroker pipeline ingest, archive, compact`: jobs that write tables. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import Finite, bootstrap_option, client_properties, decorators, key_values
from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_session import FOLDER, progress, running, session, spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.tables.log_reader import LogSource
    from kbroker.spark.tables.table_stream import Ingested, StreamOptions

date_option = click.option(
    "--date",
    "dates",
    multiple=True,
    metavar="YYYY-MM-DD",
    callback=lambda context, parameter, words: check_dates(words),
    help="Only this day. Repeatable.",
)

stream_options = decorators(
    bootstrap_option,
    click.option(
        "--connector",
        type=click.Choice(["kbroker", "kafka"]),
        default="kbroker",
        show_default=True,
        help="Spark's source of the topic; kafka is the official one and needs `kbroker pipeline jars`.",
    ),
    click.option(
        "--option", "more", multiple=True, metavar="NAME=VALUE", help="A further option of the source. Repeatable."
    ),
    click.option("--follow", is_flag=True, help="Go on until stopped; else end when all that is there is read."),
    click.option("--interval", type=Finite(0), default=10, show_default=True, help="Seconds between batches."),
    click.option("--max-per-batch", type=click.IntRange(1), help="Records of a topic, bytes of files."),
    click.option(
        "--watermark",
        type=Finite(0),
        default=10,
        show_default=True,
        help="Minutes after its end until an hour is closed, by the time of the rows.",
    ),
    click.option(
        "--grace",
        type=Finite(0),
        default=60,
        show_default=True,
        help="Minutes until files that a compaction replaced are deleted.",
    ),
    click.option("--checkpoint", type=FOLDER, metavar="DIR", help="Where Spark keeps offsets; else inside the table."),
    click.option("--table-format", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True),
)


@click.command()
@click.argument("table", type=FOLDER)
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option("--topic", metavar="NAME", help="Read this topic, such as __request_log, instead of files.")
@click.option(
    "--format",
    "log_format",
    type=click.Choice(["auto", "json", "arrow"]),
    default="auto",
    show_default=True,
    help="What the records are; naming it saves time.",
)
@click.option("--buckets", type=click.IntRange(1, 99), default=8, show_default=True, help="Of a new table.")
@stream_options
@spark_options
def ingest(table: Path, logs: tuple[str, ...], topic: str | None, log_format: str, buckets: int, **common: Any) -> None:
    """Read a request log into TABLE, a folder of Parquet files.

    LOGs are files, folders of files, or patterns; those of a real Kafka too. Run it again to go on: each record is
    taken once, also after a kill. What is no record is kept in TABLE/_rejected.
    """
    if bool(logs) == bool(topic):
        raise click.UsageError("name either LOGs or a --topic")
    source = _source(topic, logs, log_format, common)
    chosen = _stream(common, buckets)

    def run(spark: SparkSession, **more: Any) -> Ingested:
        from kbroker.spark.tables.ingest import ingest as run_ingest

        return run_ingest(spark, source(), table, chosen(), **more)

    _run_stream(run, table, common)


@click.command()
@click.argument("table", type=FOLDER)
@click.option("--topic", required=True, metavar="NAME", help="What to keep.")
@click.option("--key", type=click.Choice(["binary", "string", "json"]), default="binary", show_default=True)
@click.option("--value", type=click.Choice(["binary", "string", "json"]), default="binary", show_default=True)
@click.option("--key-columns", default="", metavar="DDL", help='Of a JSON key: "id bigint".')
@click.option("--value-columns", default="", metavar="DDL", help='Of a JSON value: "name string, tags array<string>".')
@click.option("--buckets", type=click.IntRange(1, 99), default=8, show_default=True, help="Of a new table.")
@stream_options
@spark_options
def archive(
    table: Path, topic: str, key: str, value: str, key_columns: str, value_columns: str, buckets: int, **common: Any
) -> None:
    """Keep a topic as Parquet in TABLE.

    Run it again to go on. Records that do not fit the columns are kept in TABLE/_rejected; columns can be added later.
    """
    from kbroker.spark.tables.archive import RecordSchema
    from kbroker.spark.tables.archive import archive as run_archive

    source = _source(topic, (), "auto", common)
    chosen = _stream(common, buckets)
    schema = RecordSchema(key, value, key_columns, value_columns)
    schema.check()

    def run(spark: SparkSession, **more: Any) -> Ingested:
        return run_archive(spark, source(), table, schema, chosen(), **more)

    _run_stream(run, table, common)


@click.command()
@click.argument("table", type=FOLDER)
@click.option("--grace", type=Finite(0), default=60, show_default=True, help="Minutes to keep replaced files.")
@spark_options
def compact(table: Path, grace: float, **common: Any) -> None:
    """Rewrite TABLE to one file per hour and bucket.

    Deletes the files it replaces; not while a job writes the table.
    """
    from kbroker.spark.tables.manifest import DELTA, Table

    common["delta"] = Table(table).info().table_format == DELTA
    with running(common, session) as spark:
        from kbroker.spark.tables.table_stream import compact_table

        done = compact_table(spark, table, grace_ms=int(grace * 60_000), progress=progress(common))
    rows = {
        "hours": done.hours,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "rows": done.rows,
        "deleted": done.deleted,
    }
    _summary({"compacted": rows, **_described(table)}, common)


def check_dates(words: tuple[str, ...]) -> tuple[str, ...]:
    """Of `--date`: days as the table names them; another form would find nothing, and say nothing."""
    for word in words:
        try:
            day = datetime.strptime(word, "%Y-%m-%d").strftime("%Y-%m-%d")
        except ValueError:
            day = ""
        if word != day:
            raise click.BadParameter(f"expected a day such as 2026-01-31, got {word!r}")
    return words


def _source(
    topic: str | None, logs: tuple[str, ...], log_format: str, common: dict[str, Any]
) -> Callable[[], LogSource]:
    from kbroker.spark.locations import local_path

    for log in logs:
        local_path(log)  # a URI is refused before Spark starts
    more = key_values(common["more"], "--option")
    security = {f"kafka.{name}": value for name, value in client_properties().items()}

    def source() -> LogSource:
        from kbroker.spark.tables.log_reader import LogSource

        if topic is None:
            return LogSource.of_files(*logs, format=log_format)
        return LogSource.of_topic(
            common["bootstrap_server"],
            topic,
            connector=common["connector"],
            format=log_format,
            options={**security, **more},
        )

    return source


def _stream(common: dict[str, Any], buckets: int) -> Callable[[], StreamOptions]:
    def chosen() -> StreamOptions:
        from kbroker.spark.tables.table_stream import StreamOptions

        return StreamOptions(
            buckets=buckets,
            follow=common["follow"],
            interval_ms=int(common["interval"] * 1000),
            max_per_batch=common["max_per_batch"],
            watermark_ms=int(common["watermark"] * 60_000),
            grace_ms=int(common["grace"] * 60_000),
            checkpoint=common["checkpoint"],
            table_format=common["table_format"],
        )

    return chosen


def _run_stream(run: Callable[..., Ingested], table: Path, common: dict[str, Any]) -> None:
    """Run a stream until it ends, or until a signal asks it to: then after the batch at hand."""
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        progress(common)("stopping after this batch")

    with running(common, session) as spark:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            done = run(spark, progress=progress(common), stopping=lambda: stopping)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    rows = {
        "batches": done.batches,
        "rows": done.rows,
        "rejected": done.rejected,
        "files": done.files,
        "compacted_hours": done.compacted.hours,
        "elapsed_ms": done.elapsed_ms,
    }
    _summary({"run": rows, **_described(table)}, common)


def _described(table: Path) -> dict[str, dict[str, Any]]:
    """What is in a table, as far as it is known without Spark: nothing of one that Delta keeps."""
    from kbroker.spark.tables.manifest import DELTA, Table, describe_table

    return {} if Table(table).info().table_format == DELTA else {"table": describe_table(table)}


def _summary(found: dict[str, dict[str, Any]], common: dict[str, Any]) -> None:
    if common["as_json"]:
        print_json(found)
        return
    from kbroker.spark import formatting as jobs

    shown = {"elapsed_ms": jobs.duration, "size_bytes": jobs.size}
    rows = [
        [
            part if number == 0 else "",
            name.removesuffix("_ms").removesuffix("_bytes").replace("_", " "),
            shown[name](value) if name in shown else f"{value:,}" if isinstance(value, int) else value,
        ]
        for part, values in found.items()
        for number, (name, value) in enumerate(values.items())
    ]
    print_table(["", "WHAT", "VALUE"], rows, right=[2])
