"""Common parts of the tests of `watch`: logs whose minutes are closed in known batches, views beside the jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.tables.delta_table import Table
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.log_reader import LogSource, good, read_log
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TablePlace
from kbroker.spark.usage_views.throttles import throttles
from kbroker.spark.usage_views.usage import usage_per_day
from kbroker.spark.watch.views import throttles_of_views, usage_of
from tests.spark.day import make_day
from tests.spark.standalone import ROOT, START_S, environment
from tests.support.object_store import as_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
WATERMARK_MS = 6 * HOUR_MS  # rows of the day arrive up to five hours late


def put(logs: Path, number: int, lines: Sequence[str]) -> None:
    """Write a file that is read after those with lower numbers."""
    logs.mkdir(exist_ok=True)
    file = logs / f"requests-{number}.jsonl"
    new = file.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    os.utime(new, (number, number))
    new.rename(file)


def closing_line(day: int = 5) -> str:
    """Return a record of days later, which closes all earlier minutes and is in no view."""
    return _line(datetime(2026, 1, day, tzinfo=timezone.utc), "closing")


def future_line() -> str:
    """Return a record that is a year ahead of the clock."""
    return _line(datetime.now(timezone.utc) + timedelta(days=365), "future")


def _line(at: datetime, client_id: str) -> str:
    header = {"requestApiKey": 3, "requestApiVersion": 9, "correlationId": 1, "clientId": client_id}
    return json.dumps({"version": 2, "time": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "requestHeader": header})


def rows_of(found: DataFrame) -> list[tuple[tuple[str, Any], ...]]:
    """Return rows in a fixed order."""
    rows = [tuple(sorted(row.asDict().items())) for row in found.collect()]
    return sorted(rows, key=repr)


def assert_equal_to_the_batch_jobs(spark: SparkSession, table: Path, logs: Path) -> None:
    """Assert that usage by day and throttles of the views equal those of the jobs, and are not empty."""
    views = read_table(spark, table).cache()
    log = good(read_log(spark, LogSource.of_files(logs, format="json")))
    log = log.where("client_id is null or client_id not rlike '^(closing|future|late-.*)$'").cache()
    try:
        for mine, batch in ((usage_of(views, "date"), usage_per_day(log)), (throttles_of_views(views), throttles(log))):
            found, wanted = rows_of(mine), rows_of(batch.select(*mine.columns))
            assert found == wanted
            assert found
    finally:
        views.unpersist()
        log.unpersist()


def follow(
    call: Sequence[str], pattern: str, meanwhile: Callable[[], object] | None = None
) -> tuple[dict[str, Any], str]:
    """Run `watch --json` until a line of stderr matches, press Ctrl-C, and return the summary and all of stderr.

    Args: `meanwhile`: called when the command has been started.
    """
    with subprocess.Popen(
        call, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        said: list[str] = []
        try:
            if meanwhile is not None:
                meanwhile()
            while not any(re.match(pattern, line) for line in said):
                line = running.stderr.readline()
                assert line, said
                said.append(line)
            running.send_signal(signal.SIGINT)
            out, rest = running.communicate(timeout=START_S)
        finally:
            running.kill()
    assert running.returncode == 0, rest
    return json.loads(out), "".join(said) + rest


def watch_two_runs(
    call: Sequence[str], place: TablePlace, *words: str, between: Callable[[], object] | None = None
) -> str:
    """Follow a folder, stop, and continue: both runs together have written each minute once.

    Args: `place`: a folder, or one of a store, which is created; `words`: further words of the command; `between`:
    called after the start of the second run. Returns: stderr of the second run.
    """
    day = make_day(1_000)
    kept = [number for number, late in enumerate(day.late) if not late][:200]
    lines, rows = list(day.lines()), day.rows.to_pylist()
    table = place.within("views")
    files = (place.file("views"), place.file("logs"), *as_words(place.storage_options))
    more = (*files, "--every", "1s", "--watermark", "1min", "--json", *words)
    place.write("logs/requests-1.jsonl", _text([lines[number] for number in kept[:100]]))
    first, _ = follow([*call, *more], r"batch \d+: .* open: .*; closed until ")
    place.write("logs/requests-2.jsonl", _text([*(lines[number] for number in kept[100:]), closing_line()]))
    second, said = follow([*call, *more], r"batch \d+: .*; closed until 2026-01-04 23:59:00", between)
    assert (first["run"]["records"], second["run"]["records"]) == (100, 101)
    assert first["run"]["late"] == second["run"]["late"] == 0
    names = ["view", "time", "principal", "client_id", "requests"]
    views = read_columns(table, [one.path for one in Table(table).files()], names).to_pylist()
    used = [row for row in views if row["view"] == "usage"]
    assert len({(row["time"], row["principal"], row["client_id"]) for row in used}) == len(used)
    assert sum(row["requests"] for row in used) == sum(
        rows[number]["repeated"] or 1 for number in kept if rows[number]["api_key"] is not None
    )
    return said


def _text(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
