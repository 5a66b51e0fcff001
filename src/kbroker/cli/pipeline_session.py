"""Start of Spark for the commands of the pipeline, progress of its stages, and reports of its failures."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.progress_display import ProgressDisplay, Watch
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Prefix of the lines of Spark's JVM that are kbroker's own, which a command shows without --verbose.
OUR_LINES = "kbroker: "
EXECUTOR_SECONDS = 15.0  # time until a cluster without executors is reported


def progress(common: dict[str, Any]) -> ProgressDisplay:
    """Return the command's progress display, on stderr, and silent with --quiet."""
    display = common.get("display")
    if display is None:
        display = common["display"] = ProgressDisplay(quiet=common["quiet"])
    return display


def session(common: dict[str, Any]) -> SparkSession:
    """Start a Spark session with the options of a command."""
    from kbroker.spark.executors import require_executors
    from kbroker.spark.setup import gateway
    from kbroker.spark.setup.session import build_session, require_packages

    require_packages()

    def listener(line: str) -> None:
        if common["verbose"] or (line.startswith(OUR_LINES) and not common["quiet"]):
            gateway.to_stderr(line)

    say = progress(common)
    say("starting Spark")
    spark = build_session(
        "kbroker pipeline",
        master=common["master"],
        remote=common["remote"],
        driver_memory=common["driver_memory"],
        connector=common.get("connector") == "kafka",
        log_level="WARN" if common["verbose"] else "ERROR",
        settings=common["settings"],
        properties_file=common["properties_file"],
        py_env=common["py_env"],
        listener=listener,
    )
    timer = _miss_executors(spark, say)
    try:
        require_executors(spark)
    except BaseException:
        with suppress(Exception):
            spark.stop()
        raise
    finally:
        timer.cancel()
    return spark


def _miss_executors(spark: SparkSession, say: Callable[[str], object]) -> threading.Timer:
    """Start a timer that reports that a cluster has started no executor, for which Spark waits indefinitely."""
    from kbroker.spark.session_kind import is_connect, runs_elsewhere

    def look() -> None:
        if is_connect(spark) or not runs_elsewhere(spark):
            return
        with suppress(Exception):  # the session may have ended by now
            scala = spark.sparkContext._jsc.sc()
            if scala.getExecutorMemoryStatus().size() <= 1:  # the driver is included
                say(
                    f"{scala.master()} started no executor within {EXECUTOR_SECONDS:g} s: check that it has workers "
                    "with enough free cores and memory"
                )

    timer = threading.Timer(EXECUTOR_SECONDS, look)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def _watched(spark: SparkSession, display: ProgressDisplay) -> Iterator[None]:
    """Show the progress of Spark's stages."""
    if display.is_quiet:
        yield
        return
    from kbroker.spark.stage_progress import stage_progress

    ask, end = stage_progress(spark)

    def tasks() -> tuple[str, float, float] | None:
        found = ask()
        return None if found is None else (f"{display.doing}, stage {found[0] + 1}", found[1], found[2])

    watch = Watch(display, tasks, "tasks")
    try:
        yield
    finally:
        watch.close()
        end()


@contextmanager
def running(common: dict[str, Any], start: Callable[[dict[str, Any]], SparkSession]) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it at the end.

    Args: `start`: makes the session.
    Raises: PipelineError, one sentence for any exception of PySpark, after its trace on stderr with --verbose.
    """
    from kbroker.spark.failures import is_of_spark
    from kbroker.spark.setup import gateway

    if not common["verbose"]:
        gateway.hide_traces()
    try:
        spark = start(common)
        try:
            with _watched(spark, progress(common)):
                yield spark
        finally:
            with suppress(Exception):  # a driver without its cluster; its error would hide the cause
                spark.stop()
    except Exception as error:
        origin = error if is_of_spark(error) else error.__cause__
        if common["verbose"] and origin is not None and is_of_spark(origin):
            click.echo("".join(traceback.format_exception(origin)), err=True)
        lost = gateway.lost_jvm(error)
        if lost is not None:
            raise PipelineError(lost) from error
        if not is_of_spark(error):
            raise
        from kbroker.spark.failures import sentence, unreadable_file

        damaged = unreadable_file(error)
        if damaged is not None:
            raise damaged from error
        more = "" if common["verbose"] else " (--verbose shows the trace)"
        raise PipelineError(sentence(error) + more) from error
