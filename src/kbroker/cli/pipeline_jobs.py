"""`kbroker pipeline ingest, archive, compact, convert`: jobs that write tables. Progress: stderr, results: stdout."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli.options import Finite, bootstrap_option, client_properties, decorators, key_values
from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_session import (
    FOLDER,
    no_spark_options,
    progress,
    progress_options,
    running,
    session,
    spark_options,
)
from kbroker.cli.pipeline_table import place_of, retention_of, retention_option, storage_option, table_argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.tables.log_reader import LogSource
    from kbroker.spark.tables.table_place import TablePlace
    from kbroker.spark.tables.table_stream import Ingested, StreamOptions

Done = TypeVar("Done")

date_option = click.option(
    "--date",
    "dates",
    multiple=True,
    metavar="YYYY-MM-DD",
    callback=lambda context, parameter, words: check_dates(words),
    help="Only this day. Repeatable.",
)

#: How a topic is read.
source_options = decorators(
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
)
max_per_batch_option = click.option(
    "--max-per-batch", metavar="COUNT|SIZE", help="Records of a topic, or a size of files, such as 100MB."
)
topic_option = click.option(
    "--topic",
    metavar="NAME",
    callback=lambda context, parameter, name: check_topic(name),
    help="Read this topic, such as __request_log, instead of files.",
)
format_option = click.option(
    "--format",
    "log_format",
    type=click.Choice(["auto", "json", "arrow"]),
    default="auto",
    show_default=True,
    help="What the records are; naming it saves time.",
)
#: Where a stream's table is kept.
kept_options = decorators(
    retention_option,
    storage_option,
    click.option(
        "--checkpoint",
        metavar="DIR",
        help="Where Spark keeps offsets: a folder, or a URI; else inside a TABLE on a disk or in HDFS.",
    ),
)
stream_options = decorators(
    source_options,
    click.option("--follow", is_flag=True, help="Go on until stopped; else end when all that is there is read."),
    click.option("--interval", type=Finite(0), default=10, show_default=True, help="Seconds between batches."),
    max_per_batch_option,
    click.option(
        "--watermark",
        type=Finite(0),
        default=10,
        show_default=True,
        help="Minutes after its end until an hour is closed, by the time of the rows.",
    ),
    kept_options,
)


@click.command()
@table_argument
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@topic_option
@format_option
@click.option("--buckets", type=click.IntRange(1, 99), default=8, show_default=True, help="Of a new table.")
@stream_options
@spark_options
def ingest(table: str, logs: tuple[str, ...], topic: str | None, log_format: str, buckets: int, **common: Any) -> None:
    """Read a request log into a Delta Lake table.

    TABLE is a folder, or a URI such as s3://BUCKET/NAME.

    LOGs are files, folders of files, patterns, or URIs; those of a real Kafka too. Run it again to go on: each record
    is taken once, also after a kill. What is no record is kept in TABLE/_rejected.
    """
    if bool(logs) == bool(topic):
        raise click.UsageError("name either LOGs or a --topic")
    place = place_of(table, common)
    source = log_source(topic, logs, log_format, common)
    chosen = _stream(common, buckets, place, topic)

    def run(spark: SparkSession, **more: Any) -> Ingested:
        from kbroker.spark.tables.ingest import ingest as run_ingest

        return run_ingest(spark, source(), place, chosen(), **more)

    _run_stream(run, place, common)


@click.command()
@table_argument
@click.option(
    "--topic",
    required=True,
    metavar="NAME",
    callback=lambda context, parameter, name: check_topic(name),
    help="What to keep.",
)
@click.option("--key", type=click.Choice(["binary", "string", "json"]), default="binary", show_default=True)
@click.option("--value", type=click.Choice(["binary", "string", "json"]), default="binary", show_default=True)
@click.option("--key-columns", default="", metavar="DDL", help='Of a JSON key: "id bigint".')
@click.option("--value-columns", default="", metavar="DDL", help='Of a JSON value: "name string, tags array<string>".')
@click.option("--buckets", type=click.IntRange(1, 99), default=8, show_default=True, help="Of a new table.")
@stream_options
@spark_options
def archive(
    table: str, topic: str, key: str, value: str, key_columns: str, value_columns: str, buckets: int, **common: Any
) -> None:
    """Keep a topic as a Delta Lake table.

    TABLE is a folder, or a URI such as s3://BUCKET/NAME.

    Run it again to go on. Records that do not fit the columns are kept in TABLE/_rejected; columns can be added later.
    """
    from kbroker.spark.tables.archive import RecordSchema
    from kbroker.spark.tables.archive import archive as run_archive

    place = place_of(table, common)
    source = log_source(topic, (), "auto", common)
    chosen = _stream(common, buckets, place, topic)
    schema = RecordSchema(key, value, key_columns, value_columns)
    schema.check()

    def run(spark: SparkSession, **more: Any) -> Ingested:
        return run_archive(spark, source(), place, schema, chosen(), **more)

    _run_stream(run, place, common, "archiving")


@click.command()
@table_argument
@retention_option
@storage_option
@progress_options
@no_spark_options
def compact(table: str, **common: Any) -> None:
    """Rewrite TABLE to one sorted file per hour and bucket.

    Deletes what it and others have replaced longer ago than --retention. Jobs may read and write TABLE meanwhile, if
    --retention is longer than a batch takes.
    """
    place = place_of(table, common)
    retention = retention_of(common)
    from kbroker.spark.tables.compaction import compact_table

    say = progress(common)
    with say.step("compacting", unit="files") as step:
        done = compact_table(place, **retention, progress=say, rewritten=step.at)
    rows = {
        "hours": done.hours,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "deleted": done.deleted,
    }
    summary({"compacted": rows, "table": described(place)}, common)


@click.command()
@click.argument("table", type=FOLDER)
@click.option("--checkpoint", type=FOLDER, metavar="DIR", help="Of the stream that filled it; else inside the table.")
@progress_options
@no_spark_options
def convert(table: Path, checkpoint: Path | None, **common: Any) -> None:
    """Make an old TABLE a Delta Lake table.

    For tables of a kbroker that kept them by itself, in a folder _manifest. Files stay as they are, and the next
    `ingest` goes on where the last one ended.
    """
    from kbroker.spark.tables.convert import convert_table

    done = convert_table(table, checkpoint, progress=progress(common))
    summary({"converted": done, "table": described(table)}, common)


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


def check_topic(name: str | None) -> str | None:
    """Of `--topic`: Spark's sources would take "a,b" for two topics, of which a table remembers neither."""
    from kbroker.common.topics import invalid_name_reason

    if name is not None and invalid_name_reason(name) is not None:
        raise click.BadParameter(f"expected the name of one topic: up to 249 of A-Z a-z 0-9 . _ -, got {name!r}")
    return name


def per_batch(text: str | None, topic: str | None) -> int | None:
    """Of `--max-per-batch`: records of a topic, bytes of files. Raises: BadParameter."""
    from kbroker.common.units import parse_bytes

    if text is None:
        return None
    hint = "'--max-per-batch'"
    if topic is not None and text.strip()[-1:].isalpha():
        raise click.BadParameter(f"expected a number of records such as 1e6, got {text!r}", param_hint=hint)
    try:
        number = parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=hint) from None
    if not 1 <= number < 1 << 63:
        raise click.BadParameter(f"expected at least 1, and less than 2^63, got {text!r}", param_hint=hint)
    return int(number)


def log_source(
    topic: str | None, logs: tuple[str, ...], log_format: str, common: dict[str, Any]
) -> Callable[[], LogSource]:
    """What makes the source that the arguments and `source_options` of a command name; it needs PySpark."""
    from kbroker.spark.tables.table_place import TablePlace

    storage = key_values(common["storage"], "--storage-option")
    for log in logs:
        TablePlace.of(log, storage)  # an unknown store is refused before Spark starts
    more = key_values(common["more"], "--option")
    security = {f"kafka.{name}": value for name, value in client_properties().items()}

    def source() -> LogSource:
        from kbroker.spark.tables.log_reader import LogSource

        if topic is None:
            return LogSource.of_files(*logs, format=log_format, storage=storage)
        return LogSource.of_topic(
            common["bootstrap_server"],
            topic,
            connector=common["connector"],
            format=log_format,
            options={**security, **more},
        )

    return source


def _stream(common: dict[str, Any], buckets: int, table: TablePlace, topic: str | None) -> Callable[[], StreamOptions]:
    """Raises: PipelineError, UsageError for what is known to be wrong before Spark starts."""
    from kbroker.spark.tables.checkpoint import place_of_checkpoint
    from kbroker.spark.tables.delta_table import require_usable

    require_usable(table)
    place_of_checkpoint(common["checkpoint"], table)
    retention = retention_of(common)
    limit = per_batch(common["max_per_batch"], topic)

    def chosen() -> StreamOptions:
        from kbroker.spark.tables.table_stream import StreamOptions

        return StreamOptions(
            buckets=buckets,
            follow=common["follow"],
            interval_ms=int(common["interval"] * 1000),
            max_per_batch=limit,
            watermark_ms=int(common["watermark"] * 60_000),
            **retention,
            checkpoint=common["checkpoint"],
        )

    return chosen


def _run_stream(
    run: Callable[..., Ingested], place: TablePlace, common: dict[str, Any], doing: str = "ingesting"
) -> None:
    done = run_stream(run, common, doing)
    rows = {
        "batches": done.batches,
        "rows": done.rows,
        "rejected": done.rejected,
        "files": done.files,
        "compacted_hours": done.compacted.hours,
        "elapsed_ms": done.elapsed_ms,
    }
    summary({"run": rows, "table": described(place)}, common)


def run_stream(run: Callable[..., Done], common: dict[str, Any], doing: str) -> Done:
    """Run a stream until it ends, or until a signal asks it to: then after the batch at hand."""
    say = progress(common)
    say.doing = doing
    with running(common, session) as spark, stop_signals(say) as stopping:
        return run(spark, progress=say, stopping=stopping)


@contextmanager
def stop_signals(say: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come meanwhile. A second Ctrl-C ends the process at once, as `kill -9` does.

    Args: `say`: called by the handler, between any two instructions of the main thread.
    """
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not stopping:
            stopping = True
            say("stopping after this batch")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def described(table: TablePlace | Path) -> dict[str, Any]:
    """What is in a table, for `summary`."""
    from kbroker.spark.tables.delta_table import describe_table

    return describe_table(table)


def summary(found: dict[str, dict[str, Any]], common: dict[str, Any]) -> None:
    """Print what a job did and what is in its table, as a table or as JSON."""
    if common["as_json"]:
        print_json(found)
        return
    from kbroker.spark import formatting as jobs

    shown = {"elapsed_ms": jobs.duration, "size_bytes": jobs.size, "state_size_bytes": jobs.size}
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
