"""Program for the tests: commands of the pipeline, one after the other, in one Spark session.

    python -m tests.spark.many_commands < [[WORD, ...], ...] as JSON > [{"status": 0, "out": "", "err": ""}, ...]

Words NAME=VALUE before a command are its environment, which neither the JVM nor executors have. All commands use the
session of the first one and ignore another master. `watch`, which has no end, is stopped when its table has rows.
"""

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner

from kbroker.cli import (
    cli,
    pipeline_jobs,
    pipeline_options,
    pipeline_session,
    pipeline_views,
    pipeline_watch,
    pipeline_whatif,
)
from kbroker.spark import failures
from kbroker.spark.tables import table_stream
from kbroker.spark.tables.delta_table import Table
from tests.spark.source_support import WORKER_STARTS

_kept: dict[str, Any] = {}


def _session(common: dict[str, Any]) -> Any:
    if "session" not in _kept:
        spark = pipeline_session.session(common)
        _kept["session"], _kept["stop"] = spark, spark.stop
        spark.stop = lambda: None  # type: ignore[method-assign]
    return _kept["session"]


def _until_rows(run: Callable[..., Any], common: dict[str, Any], doing: str) -> Any:
    """Run a stream until it is stopped, or its table has rows."""
    place = pipeline_options.place_of(_kept["words"][1], common)

    def has_rows() -> bool:
        table = Table(place)  # a new instance, since a table keeps the version that it has read
        return table.exists() and bool(table.files())

    def until(spark: Any, *, stopping: Callable[[], bool], **more: Any) -> Any:
        return run(spark, stopping=lambda: stopping() or has_rows(), **more)

    return pipeline_jobs.run_stream(until, common, doing)


def run(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands in one session, which `end` ends; return status, out and err of each."""
    table_stream.STARTS = failures.TRIES = WORKER_STARTS
    pipeline_session.EXECUTOR_SECONDS = 600.0  # on a busy machine a cluster starts an executor late
    for module in (pipeline_jobs, pipeline_views, pipeline_whatif):
        module.session = _session  # type: ignore[attr-defined]
    pipeline_watch.run_stream = _until_rows  # type: ignore[attr-defined]
    results = []
    for words in commands:
        command = list(itertools.dropwhile(lambda word: "=" in word, words))
        variables = dict(word.split("=", 1) for word in words[: len(words) - len(command)])
        _kept["words"] = command
        done = CliRunner().invoke(cli, ["pipeline", *command], env=variables)
        results.append({"status": done.exit_code, "out": done.stdout, "err": done.stderr})
    return results


def end() -> None:
    """Stop the session of the commands, if there is one."""
    if "stop" in _kept:
        _kept["stop"]()


if __name__ == "__main__":
    found = run(json.load(sys.stdin))
    end()
    json.dump(found, sys.stdout)
