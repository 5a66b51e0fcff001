"""`kbroker pipeline watch`: its views equal those of the batch jobs, over failures and restarts."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from click.testing import CliRunner, Result

from kbroker._core.clock import VirtualClock
from kbroker.cli import cli
from kbroker.cli.pipeline_watch import default_limit
from kbroker.spark import shared_folder
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.delta_table import VIEWS, TableError, TableInfo, describe_table
from kbroker.spark.tables.delta_table import Table as DeltaTable
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table import read_table, write_rows
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.usage_views.usage import MEASURES
from kbroker.spark.watch import live_page, views
from kbroker.spark.watch.live_page import write_live_page
from kbroker.spark.watch.minutes import USAGE
from kbroker.spark.watch.watch import Watched, watch
from kbroker.testing import EmbeddedBroker
from tests.spark.day import START_US, make_day
from tests.spark.watching import WATERMARK_MS, assert_equal_to_the_batch_jobs, closing_line, follow, future_line, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = StreamOptions(buckets=1, watermark_ms=WATERMARK_MS)
pytestmark = pytest.mark.slow


class Failing:
    """Failure at the nth end of a phase without clean-up, which leaves the files of a kill."""

    def __init__(self, phase: str = "", times: int = 1) -> None:
        self.phase, self.times = phase, times
        self.seen: Counter[str] = Counter()

    def __call__(self, reached: str) -> None:
        self.seen[reached] += 1
        if reached == self.phase and self.seen[reached] == self.times:
            raise RuntimeError(f"ended at {reached}")


def run(spark: SparkSession, logs: Path, table: Path, at: Failing, said: list[str]) -> Watched | None:
    """Watch a folder until all is read, and write a page; return None if the run ended in the phase."""
    clock = VirtualClock(START_US // 1000 + 10 * 24 * 3_600_000)

    def refresh() -> bool:
        page = table.with_suffix(".html")
        return write_live_page(spark, table, page, span_ms=24 * 3_600_000, every_ms=30_000, clock=clock)

    try:
        done = watch(
            spark, LogSource.of_files(logs, format="json"), table, OPTIONS, refresh=None if at.phase else refresh,
            clock=clock, at=at, progress=said.append,
        )  # fmt: skip
    except (PipelineError, RuntimeError) as error:
        if not at.phase or f"ended at {at.phase}" not in str(error):
            raise
        return None
    assert not at.phase
    return done


def test_views_are_those_of_the_batch_jobs(spark: SparkSession, tmp_path: Path, command: Callable[..., Result]) -> None:
    """The views are equal over late rows, invalid lines, a line of the next year, and an end in each phase.

    Rows that are too late are counted and add nothing, not even their connection.
    """
    lines = list(make_day(1_000).lines())[::4]
    logs, table = tmp_path / "logs", tmp_path / "table"
    put(logs, 1, [*lines[:125], future_line()])
    said: list[str] = []
    # Batch 0 reads; batch 1 has no data and writes the closed minutes. Runs end in batch 1, whose state is computed:
    # before its files, and between the table's commit and Spark's.
    assert run(spark, logs, table, Failing("written"), said) is None
    assert describe_table(table)["rows"] == 0
    assert run(spark, logs, table, Failing("committed"), said) is None
    before = describe_table(table)["rows"]
    assert before > 0
    too_late = lines[0].replace("app-", "late-")
    assert too_late != lines[0]
    put(logs, 2, ["", "{no record", too_late, *lines[125:]])
    put(logs, 3, [closing_line()])
    done = run(spark, logs, table, Failing(), said)
    assert done is not None
    assert "batch 1: is already in the table" in said
    assert any(
        " arrived late and are left out of the views; 1 lines are not records, or ahead" in line for line in said
    ), said
    assert (done.rejected, done.records) == (1, 128)
    assert 1 <= done.late <= 4  # rows of the state, counted once: a usage, a connection, and a throttle
    assert done.state_rows < 4 * len(lines)
    assert done.rows + before == describe_table(table)["rows"]
    assert done.state_rows > 0
    assert_equal_to_the_batch_jobs(spark, table, logs)

    page = (tmp_path / "table.html").read_text()
    assert done.pages > 0
    assert '<meta http-equiv="refresh" content="30">' in page
    assert "team-0 / app-00" in page
    assert "delayed by quotas" in page
    assert "What if" not in page

    seen = json.loads(command("pipeline", "usage", table, "--by", "requests", "--top", "1", "--json", "--quiet").stdout)
    assert (seen[0]["principal"], seen[0]["client_id"]) == ("User:team-0", "app-00")
    held = json.loads(command("pipeline", "throttles", table, "--json", "--quiet").stdout)
    assert sum(row["delay_served_ms"] for row in held["quotas"]) > 0


def test_the_page_is_about_one_version(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes that a batch adds while the page is made are in none of its parts."""
    table = DeltaTable(tmp_path / "t")
    schema = views.views_schema()
    info = table.open(TableInfo(VIEWS, 1, views.SCHEMA_VERSION, schema.jsonValue()))

    def add(minute: int) -> None:
        row = {"view": USAGE, "time": datetime.fromtimestamp(60 * minute, timezone.utc), **dict.fromkeys(MEASURES, 1)}
        rows = spark.createDataFrame([row], schema)
        table.commit(write_rows(rows, table.place, info, f"minute-{minute}"))

    def beside(*of: Any, **given: Any) -> DataFrame:
        add(600)
        return read_table(*of, **given)

    add(0)
    monkeypatch.setattr(live_page, "read_table", beside)
    found = live_page.gather_views(spark, table.place, 24 * 3_600_000)
    assert found is not None
    assert (found.start_s, found.end_s, found.totals["requests"]) == (0, 60, 1)
    assert found.all_over_time["requests"] == [1]
    found = live_page.gather_views(spark, table.place, 24 * 3_600_000)
    assert found is not None
    assert (found.start_s, sum(found.all_over_time["requests"])) == (0, 2)


@pytest.mark.soak
def test_the_command_follows_a_brokers_log(tmp_path: Path) -> None:
    """Ctrl-C ends the command after the current batch with a summary, and leaves no process."""
    with EmbeddedBroker({"kbroker.request.log.topic": "__request_log"}) as broker:
        words = ("watch", str(tmp_path / "t"), "--topic", "__request_log", "-b", broker.bootstrap_servers, "--json")
        more = ("--every", "1s", "--page", str(tmp_path / "page.html"), "--master", "local[2]")
        call = [sys.executable, "-m", "kbroker", "pipeline", *words, *more]
        found, said = follow(call, r"batch \d+: [1-9][\d,]* records; ")
    assert found["run"]["batches"] >= 1
    assert found["run"]["records"] > 0
    assert found["run"]["rejected"] == 0
    assert "stopping after this batch" in said
    assert "Traceback" not in said


def test_a_batch_has_a_limit_where_records_are_in_order() -> None:
    """A batch is limited, except for several logs, or several partitions with the official source."""
    with EmbeddedBroker() as broker:
        broker.create_topic("one", 1)
        broker.create_topic("two", 2)
        found = {topic: default_limit(topic, (), "kafka", broker.bootstrap_servers) for topic in ("one", "two", "none")}
        assert default_limit("two", (), "kbroker", broker.bootstrap_servers) == 1_000_000
    assert found == {"one": 1_000_000, "two": None, "none": None}
    assert [default_limit(None, logs, "kbroker", "") for logs in (["a"], ["a", "b"])] == [500_000_000, None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["T"], "expected either LOGs or --topic, got neither"),
        (["T", "a.log", "--topic", "t"], "expected either LOGs or --topic, got both"),
        (["T", "a.log", "--every", "30"], "expected a time such as 500ms, 30s, 5min, 2h or 1d, got '30'"),
        (["T", "a.log", "--every", "10ms"], "expected at least 1000 ms, got 10ms"),
        (["T", "a.log", "--watermark", "-5s"], "expected a time such as"),
        (["T", "a.log", "--page", "no/where/page.html"], "expected the folder no/where for page.html"),
        (["ftp://host/T", "a.log"], "ftp"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line, before Spark starts."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["pipeline", "watch", *words])
    assert said in " ".join(done.output.split())
    assert done.exit_code in (1, 2)


def test_tables_of_other_kinds_are_refused(spark: SparkSession, tmp_path: Path, command: Callable[..., Result]) -> None:
    """Views have no requests for a replay and no seconds, and a table of `ingest` cannot be filled with views."""
    from kbroker.spark.tables.log_schema import spark_schema
    from kbroker.spark.watch import views

    log, watched = tmp_path / "log", tmp_path / "views"
    DeltaTable(log).open(TableInfo(columns=spark_schema().jsonValue()))
    DeltaTable(watched).open(TableInfo("views", columns=views.views_schema().jsonValue()))
    put(tmp_path / "logs", 1, [closing_line()])
    with pytest.raises(TableError, match="is a table of kind request log, not views"):
        watch(spark, LogSource.of_files(tmp_path / "logs"), log, OPTIONS)
    for words, said in (
        (("recommend", watched), "is a table of `watch`: a table of `kbroker pipeline ingest` is needed"),
        (("usage", watched, "--per", "second"), "got a table of `watch`"),
    ):
        done = CliRunner().invoke(cli, ["pipeline", *map(str, words)])
        assert said in " ".join(done.output.split())
        assert done.exit_code in (1, 2)


def test_a_checkpoint_of_the_drivers_own_is_named_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The views are in a store; the error names the checkpoint, which an executor lacks, not a table or a log."""
    monkeypatch.setattr(shared_folder, "runs_elsewhere", lambda spark: True)
    monkeypatch.setattr(shared_folder, "_ask", lambda *of: {"0": "worker-3"})
    monkeypatch.setattr(shared_folder, "settles", lambda is_there: False)
    own, spark = tmp_path / "own", cast("SparkSession", None)  # not used before the error
    said = f"executor of Spark on worker-3 has another {own} than this machine: the checkpoint of `watch`, in which"
    with pytest.raises(PipelineError, match=re.escape(said)):
        watch(spark, LogSource.of_files(tmp_path), "s3://bucket/views", StreamOptions(buckets=1, checkpoint=own))
