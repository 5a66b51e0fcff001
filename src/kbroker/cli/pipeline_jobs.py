"""`kbroker pipeline ingest, archive, compact`: jobs that write tables. Progress: stderr, results: stdout."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli.options import client_properties
from kbroker.cli.output import print_json, print_table
from kbroker.cli.pipeline_options import (
    logs_argument,
    max_per_batch_of,
    no_spark_options,
    option,
    options,
    place_of,
    progress_options,
    retention_of,
    retention_options,
    spark_options,
    stream_options,
    table_argument,
)
from kbroker.cli.pipeline_session import progress, running, session
from kbroker.spark import formatting as jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.spark.tables.log_reader import LogSource
    from kbroker.spark.tables.table_place import TablePlace
    from kbroker.spark.tables.table_stream import Ingested, StreamOptions

Done = TypeVar("Done")
_FORM = click.Choice(["binary", "string", "json"])


@click.command()
@table_argument
@logs_argument
@options("--topic", "--format")
@stream_options
@spark_options
def ingest(table: str, logs: tuple[str, ...], topic: str | None, log_format: str, **common: Any) -> None:
    """Read a request log into a Delta Lake table.

    TABLE is a folder, or a URI such as s3://BUCKET/NAME.

    LOGs are files, folders of files, patterns, or URIs, of kbroker or of Apache Kafka. Run the command again to
    continue: each record is read once, even after a kill. Lines that are not records are kept in TABLE/_rejected.
    """
    if bool(logs) == bool(topic):
        raise click.UsageError(f"expected either LOGs or --topic, got {'both' if logs else 'neither'}")
    place = place_of(table, common)
    chosen = _stream(common, place, topic)
    source = log_source(topic, logs, log_format, common)

    def run(spark: SparkSession, **more: Any) -> Ingested:
        from kbroker.spark.tables.ingest import ingest as run_ingest

        return run_ingest(spark, source(), place, chosen(), **more)

    _run_stream(run, place, common)


@click.command()
@table_argument
@option("--topic", required=True, help="Topic to keep.")
@click.option("--key", type=_FORM, default="binary", show_default=True, help="Form of the keys.")
@click.option("--value", type=_FORM, default="binary", show_default=True, help="Form of the values.")
@click.option("--key-columns", default="", metavar="DDL", help='Columns of a JSON key: "id bigint".')
@click.option("--value-columns", default="", metavar="DDL", help='Columns of a JSON value: "name string, n int".')
@stream_options
@spark_options
def archive(table: str, topic: str, key: str, value: str, key_columns: str, value_columns: str, **common: Any) -> None:
    """Keep a topic as a Delta Lake table.

    TABLE is a folder, or a URI such as s3://BUCKET/NAME.

    Run the command again to continue. Records that do not fit the columns are kept in TABLE/_rejected; columns can be
    added later.
    """
    from kbroker.spark.tables.archive import RecordSchema
    from kbroker.spark.tables.archive import archive as run_archive

    place = place_of(table, common)
    source = log_source(topic, (), "auto", common)
    chosen = _stream(common, place, topic)
    schema = RecordSchema(key, value, key_columns, value_columns)
    schema.check()

    def run(spark: SparkSession, **more: Any) -> Ingested:
        return run_archive(spark, source(), place, schema, chosen(), **more)

    _run_stream(run, place, common, "archiving")


@click.command()
@table_argument
@retention_options
@options("--storage-option")
@progress_options
@no_spark_options
def compact(table: str, **common: Any) -> None:
    """Rewrite TABLE to one sorted file per hour and bucket.

    Deletes files that were replaced longer ago than --retention. Other jobs may read and write TABLE meanwhile, if
    --retention is longer than a batch takes.
    """
    place = place_of(table, common)
    retention = retention_of(common)
    from kbroker.spark.tables.compaction import compact_table

    say = progress(common)
    with say.step("compacting", unit="files") as step:
        done = compact_table(place, **retention, progress=say, rewritten=step.at)
    rows = {name: getattr(done, name) for name in ("hours", "files_before", "files_after", "deleted")}
    summary({"compacted": rows, "table": described(place)}, common)


def log_source(
    topic: str | None, logs: tuple[str, ...], log_format: str, common: dict[str, Any]
) -> Callable[[], LogSource]:
    """Return a function that makes the source of the arguments and `source_options`; calling it needs PySpark.

    Raises: PipelineError for a log that does not exist, or is in an unknown store.
    """
    from kbroker.spark.tables.log_store import require_logs
    from kbroker.spark.tables.table_place import TablePlace

    storage, more = common["storage"], common["more"]
    require_logs([TablePlace.of(log, storage) for log in logs])  # Spark takes seconds to start
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


def _stream(common: dict[str, Any], table: TablePlace, topic: str | None) -> Callable[[], StreamOptions]:
    return stream_of(
        common,
        table,
        topic,
        buckets=common["buckets"],
        follow=common["follow"],
        interval_ms=int(common["interval"] * 1000),
        watermark_ms=int(common["watermark"] * 60_000),
    )


def stream_of(
    common: dict[str, Any],
    table: TablePlace,
    topic: str | None,
    default_limit: Callable[[], int | None] = lambda: None,
    **settings: Any,
) -> Callable[[], StreamOptions]:
    """Return a function that makes the options of a stream into a table; calling it needs PySpark.

    Args: `default_limit`: returns the limit of a batch without `--max-per-batch`; `settings` of `StreamOptions`.
    Raises: PipelineError, UsageError for errors that can be found before Spark starts.
    """
    from kbroker.spark.tables.checkpoint import place_of_checkpoint
    from kbroker.spark.tables.delta_table import require_usable

    require_usable(table)
    place_of_checkpoint(common["checkpoint"], table)
    retention = retention_of(common)
    limit = max_per_batch_of(common["max_per_batch"], topic) or default_limit()

    def chosen() -> StreamOptions:
        from kbroker.spark.tables.table_stream import StreamOptions

        return StreamOptions(max_per_batch=limit, checkpoint=common["checkpoint"], **retention, **settings)

    return chosen


def _run_stream(
    run: Callable[..., Ingested], place: TablePlace, common: dict[str, Any], doing: str = "ingesting"
) -> None:
    done = run_stream(run, common, doing)
    rows = {name: getattr(done, name) for name in ("batches", "rows", "rejected", "files")}
    rows |= {"compacted_hours": done.compacted.hours, "elapsed_ms": done.elapsed_ms}
    summary({"run": rows, "table": described(place)}, common)


def run_stream(run: Callable[..., Done], common: dict[str, Any], doing: str) -> Done:
    """Run a stream until it ends, or until SIGINT or SIGTERM, after which it completes the current batch."""
    say = progress(common)
    say.doing = doing
    with running(common, session) as spark, stop_signals(say) as stopping:
        return run(spark, progress=say, stopping=stopping)


@contextmanager
def stop_signals(say: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM was received. A second Ctrl-C ends the process at once.

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
    """Return the contents of a table, for `summary`."""
    from kbroker.spark.tables.delta_table import describe_table

    return describe_table(table)


def summary(found: dict[str, dict[str, Any]], common: dict[str, Any]) -> None:
    """Print the results of a job and the contents of its table, as a table or as JSON."""
    if common["as_json"]:
        print_json(found)
        return
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
