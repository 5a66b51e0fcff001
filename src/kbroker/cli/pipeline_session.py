"""The options with which the commands of the pipeline start Spark, and what becomes of Spark's failures."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import decorators, json_option, key_values
from kbroker.cli.progress_display import ProgressDisplay, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    _ParamType = click.ParamType[Path]
else:
    _ParamType = click.ParamType  # not generic before click 8.2

#: Lines of Spark's JVM that a command shows without --verbose begin so: they are ours.
OUR_LINES = "kbroker: "
EXECUTOR_SECONDS = 15.0  # until a cluster without executors is worth a line


class LocalPath(_ParamType):
    """A path, or a `file:` URI. A URI of another file system is wrong usage, and never a local folder of that name.

    Args: `exists`: something must be there; `file_okay`, `dir_okay`: what may be; `is_result`: a command makes it at
    its end, so it is wrong usage at once if its folder is not there or takes no files.
    """

    name = "path"

    def __init__(
        self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True, is_result: bool = False
    ) -> None:
        self._path = click.Path(
            exists=exists, file_okay=file_okay, dir_okay=dir_okay, writable=is_result, path_type=Path
        )
        self._is_result = is_result

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises: BadParameter."""
        from kbroker.spark.errors import PipelineError
        from kbroker.spark.locations import local_path

        try:
            path = self._path.convert(local_path(value), param, ctx)
        except PipelineError as error:
            self.fail(str(error), param, ctx)
        if self._is_result and not path.exists():
            if not path.parent.is_dir():
                self.fail(f"expected a folder at {path.parent}, for {path.name}; there is none", param, ctx)
            if not os.access(path.parent, os.W_OK):
                self.fail(f"expected a folder that takes files, which {path.parent} does not", param, ctx)
        return path


FOLDER = LocalPath(file_okay=False)

progress_options = decorators(
    click.option("--quiet", "-q", is_flag=True, help="Nothing on stderr but a failure."),
    json_option,
)


def _url(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Not empty, as a shell makes it of a variable that is not set: the job would run on this machine."""
    if value is not None and not value.strip():
        raise click.BadParameter("expected a URL, got an empty one", context, option)
    return value


spark_options = decorators(
    click.option(
        "--master",
        metavar="URL",
        callback=_url,
        help="Where Spark runs, as Spark's own.  [default: spark-defaults.conf's, or local[*]]",
    ),
    click.option(
        "--remote", metavar="sc://HOST[:PORT]", callback=_url, help="A Spark Connect server instead of a master."
    ),
    click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's. Repeatable."),
    click.option(
        "--properties-file",
        type=LocalPath(exists=True, dir_okay=False),
        metavar="FILE",
        help="Settings of Spark's in place of spark-defaults.conf, as spark-submit takes them.",
    ),
    click.option(
        "--py-env",
        type=LocalPath(exists=True, dir_okay=False),
        metavar="ARCHIVE",
        help="The Python of Spark's executors, packed by venv-pack or conda-pack; it is sent to them.",
    ),
    click.option("--driver-memory", metavar="SIZE", help="Of Spark's JVM.  [default: spark-defaults.conf's, or 1g]"),
    click.option("--verbose", "-v", is_flag=True, help="What Spark says, and the traces of its failures."),
    progress_options,
)


def _refuse(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            f"{context.info_name} runs in this very command and needs no Spark: leave {option.opts[0]} out"
        )


#: For commands that need no Spark: a place for it is wrong usage, and one sentence says why.
no_spark_options = decorators(
    *(
        click.option(name, hidden=True, expose_value=False, callback=_refuse)
        for name in ("--master", "--remote", "--py-env", "--properties-file")
    )
)


def progress(common: dict[str, Any]) -> ProgressDisplay:
    """Where a command's progress goes: stderr, or nowhere with --quiet. One for the whole command."""
    display = common.get("display")
    if display is None:
        display = common["display"] = ProgressDisplay(quiet=common["quiet"])
    return display


def session(common: dict[str, Any]) -> SparkSession:
    """A Spark session as the options of a command say."""
    from kbroker.spark.executors import require_executors
    from kbroker.spark.setup import gateway
    from kbroker.spark.setup.session import build_session, require_packages

    if common["master"] and common["remote"]:
        raise click.UsageError("only one of --master and --remote")
    settings = key_values(common["settings"], "--conf")
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
        settings=settings,
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
    """Tell the user after a while that a cluster has given no executor: Spark waits for one without end."""
    from kbroker.spark.session_kind import is_connect, runs_elsewhere

    def look() -> None:
        if is_connect(spark) or not runs_elsewhere(spark):
            return
        with suppress(Exception):  # the session may have ended by now
            scala = spark.sparkContext._jsc.sc()
            if scala.getExecutorMemoryStatus().size() <= 1:  # the driver is one of them
                say(
                    f"no executor of {scala.master()} has come within {EXECUTOR_SECONDS:g} s: has it workers with the "
                    "free cores and memory that are asked for?"
                )

    timer = threading.Timer(EXECUTOR_SECONDS, look)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def _watched(spark: SparkSession, display: ProgressDisplay) -> Iterator[None]:
    """Show how far Spark's stages are."""
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
    """Spark as long as a command needs it.

    Args: `start`: makes the session.
    Raises: PipelineError, one sentence for whatever PySpark raises; its trace goes to stderr first with --verbose.
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
            with suppress(Exception):  # of a driver that has lost its cluster; it would hide the reason
                spark.stop()
    except Exception as error:
        origin = error if is_of_spark(error) else error.__cause__
        if common["verbose"] and origin is not None and is_of_spark(origin):
            click.echo("".join(traceback.format_exception(origin)), err=True)
        from kbroker.spark.errors import PipelineError

        lost = gateway.lost_jvm(error)
        if lost is not None:
            raise PipelineError(lost) from error
        if not is_of_spark(error):
            raise
        from kbroker.spark.failures import sentence
        from kbroker.spark.tables.unreadable_files import unreadable_file

        damaged = unreadable_file(error)
        if damaged is not None:
            raise damaged from error
        more = "" if common["verbose"] else " (--verbose shows the trace)"
        raise PipelineError(sentence(error) + more) from error
