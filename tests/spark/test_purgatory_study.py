"""Purgatory study as a Spark job: a task and a row for every point, failures that name their point, a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from bench.purgatory import measurements, study
from bench.purgatory.build import native
from bench.purgatory.run_point import Point, measure, point_of
from bench.purgatory.spark_job import plan, points_of, run_points, run_study
from bench.purgatory.study_page import render_study
from kbroker.spark.errors import PipelineError
from tests.spark.test_report import assert_stands_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Short points, without a limit that a stalled machine could exceed.
SHORT: dict[str, Any] = {"n": 3_000, "timeout_ms": 20, "memory_mb": 0, "limit_s": 3600.0}
MIX = (2.0, 6.0)
NOW = datetime(2026, 1, 3, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return points_of(["2/6", "8/24"], [100_000, 0], seeds=(1, 7), repetitions=2, **SHORT)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, points: list[Point]) -> list[dict[str, Any]]:
    return run_study(spark, points)


def test_a_row_for_every_point(points: list[Point], rows: list[dict[str, Any]]) -> None:
    """Rows have the plan's order and columns, and account for every request of their points."""
    assert [measurements.point(row) for row in rows] == points
    assert len(rows) == 16
    for row in rows:
        assert list(row) == list(measurements.COLUMNS)
        assert row["error"] is None
        assert row["made"] == row["immediate"] + row["completed"] + row["expired"] == 3_000
        assert row["expired_share"] >= row["drawn_share"] > 0
        assert row["saturated"] in ("", "rate")
        assert row["cpu_s"] > 0
        assert row["rss_peak_mb"] >= row["rss_start_mb"] > 0
        assert row["host"]


def test_a_seed_draws_the_same_in_every_executor(rows: list[dict[str, Any]]) -> None:
    """The draws depend on mix, rate and seed, not on the executor; another seed draws other values."""
    shares: dict[tuple[Any, ...], set[float]] = {}
    for row in rows:
        shares.setdefault((row["mix"], row["rate"], row["seed"]), set()).add(row["drawn_share"])
        below = native("workload").drawn(
            3_000, row["rate"], row["p50_ms"], row["p75_ms"], timeout_ms=20, seed=row["seed"]
        )[2]
        assert row["drawn_share"] == pytest.approx(1 - below / 3_000)
    assert all(len(found) == 1 for found in shares.values())
    assert shares["2/6", 0.0, 1] != shares["2/6", 0.0, 7]


def test_each_point_is_a_task(spark: SparkSession, points: list[Point]) -> None:
    """A partition holds one point, in the order of the plan."""
    held = plan(spark, points).rdd.glom().collect()
    assert [[point_of(row.asDict()) for row in partition] for partition in held] == [[point] for point in points]


def test_a_plan_may_be_any_dataframe(spark: SparkSession) -> None:
    """Some of the columns are enough, in any order and partitions; unknown columns and an empty plan are errors."""
    wanted = spark.createDataFrame(
        [(500, 100_000.0, 20, 2.0, 6.0, 1), (700, 0.0, 20, 2.0, 6.0, 5)],
        "n int, rate double, timeout_ms int, p50_ms double, p75_ms double, seed int",
    ).coalesce(1)
    found = {row.n: row for row in run_points(wanted).collect()}
    assert {n: (row.made, row.mix, row.seed) for n, row in found.items()} == {
        500: (500, "2/6", 1),
        700: (700, "2/6", 5),
    }
    with pytest.raises(PipelineError, match="no column 'speed'"):
        run_points(wanted.withColumnRenamed("rate", "speed"))
    with pytest.raises(PipelineError, match="not 0"):
        run_points(wanted.limit(0))


def test_a_plan_that_cannot_be(spark: SparkSession) -> None:
    """Duplicate and invalid points are named before any point runs."""
    point = Point("mine", *MIX, 10.0)
    with pytest.raises(PipelineError, match="mine mix at 10/s, seed 1, repetition 1: the plan has it twice"):
        plan(spark, [point, point])
    with pytest.raises(PipelineError, match="mine mix at full speed, seed 1, repetition 1: wheel_size must be"):
        plan(spark, [Point("mine", *MIX, 0.0, wheel_size=1)])
    with pytest.raises(PipelineError, match="1 to 100,000 points, not 0"):
        run_study(spark, [])


def test_a_point_that_fails_is_a_row(spark: SparkSession) -> None:
    """The failed point's row has the error, and the other rows their figures."""
    points = points_of(["2/6"], [100_000], seeds=(1, 2, 3), **SHORT)

    def fails_for_two(point: Point) -> dict[str, Any]:
        if point.seed == 2:
            raise MemoryError
        return measure(point)

    rows = run_study(spark, points, measure=fails_for_two)
    assert [row["error"] for row in rows] == [None, "MemoryError", None]
    assert [row["made"] for row in rows] == [3_000, None, 3_000]
    assert measurements.failures(rows) == ["2/6 mix at 100,000/s, seed 2, repetition 1: MemoryError"]
    (summary,) = measurements.summed(rows)
    assert (summary.runs, summary.failed) == (3, 1)
    assert summary.figures["rate_enqueued"] is not None


def test_a_point_whose_process_ends_is_named(spark: SparkSession) -> None:
    """The system may end a process for its memory."""
    points = points_of(["2/6"], [100_000], seeds=(1, 2), **SHORT)

    def ends_for_two(point: Point) -> dict[str, Any]:
        if point.seed == 2:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return measure(point)

    with pytest.raises(PipelineError, match="2/6 mix at 100,000/s, seed 2, repetition 1: its executor's process ended"):
        run_study(spark, points, measure=ends_for_two)


def test_progress_is_printed(spark: SparkSession, tmp_path: Path) -> None:
    """Progress is printed while points run, for this plan's points only, and the session's settings are unchanged."""
    go_on = tmp_path / "go-on"
    heard: list[str] = []

    def until_allowed(point: Point) -> dict[str, Any]:
        """Wait in the last point until progress is reported."""
        import threading

        while point.seed == 3 and not go_on.exists():
            threading.Event().wait(0.01)
        return measure(point)

    def hear(line: str) -> None:
        heard.append(line)
        go_on.touch()

    rows = run_study(
        spark, points_of(["2/6"], [100_000], seeds=(1, 2, 3), **SHORT), progress=hear, measure=until_allowed
    )
    assert len(rows) == 3
    assert heard
    assert all(line.endswith("of 3 points done") for line in heard)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.parametrize("name", ["study.parquet", "study.json"])
def test_files_keep_rows(rows: list[dict[str, Any]], spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Files read back equal the rows written, also in Spark, and no other file is left in the folder."""
    path = tmp_path / name
    measurements.write_rows(rows, path)
    measurements.write_rows(rows, path)
    assert measurements.read_rows(path) == rows
    assert [file.name for file in tmp_path.iterdir()] == [name]
    frame = spark.read.parquet(str(path)) if name.endswith("parquet") else spark.read.json(str(path))
    assert frame.where("made = 3000").count() == 16


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing more", b'{"mix": "low"}\n', b"[]\n", b"\xff\xfe", b"no"])
def test_a_file_that_is_no_study(tmp_path: Path, content: bytes) -> None:
    """The error names the expected kind of file."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(PipelineError, match=r"file is not a file that the purgatory study wrote"):
        measurements.read_rows(path)


def test_the_page_of_a_study(rows: list[dict[str, Any]]) -> None:
    """The page has curves for both mixes, crosses for saturated points, a table and notes of failures."""
    failed = {
        **dict.fromkeys(measurements.FIGURES),
        **{name: rows[0][name] for name in measurements.PLAN},
        "error": "<b>&",
    }
    crossed = {**rows[0], "rate": 5_000.0, "saturated": "rate", "other_cpus": 1.5, "mix": "2/6"}
    text = render_study([*rows, failed, crossed], "a <file>", NOW)
    assert_stands_alone(text)
    assert "a &lt;file&gt;" in text
    assert "Failed: 2/6 mix at 100,000/s, seed 1, repetition 1: &lt;b&gt;&amp;" in text
    assert "2/6 mix (2 ms median, 6 ms 75th percentile)" in text
    assert "full speed" in text
    assert "saturated by rate" in text
    assert "shared their machine" in text
    assert 'class="cross' in text
    for heading in ("Requests enqueued", "CPU per request", "Expiry late", "Medians"):
        assert heading in text


def test_a_page_of_failures_only(rows: list[dict[str, Any]]) -> None:
    failed = {
        **dict.fromkeys(measurements.FIGURES),
        **{name: rows[0][name] for name in measurements.PLAN},
        "error": "why",
    }
    assert "Failed:" in render_study([failed], "file", NOW)


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs a command in the session of the tests."""

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr(study, "session", lambda common: Kept())
    return lambda *words: CliRunner().invoke(study.study, [str(word) for word in words])


WORDS = ("--mix", "2/6", "--n", 2_000, "--timeout-ms", 20, "--warmup", 500, "--memory-mb", 0, "--limit-s", 3600)


def test_the_command(run: Callable[..., Any], tmp_path: Path) -> None:
    """The command prints figures by mix and rate or as JSON, stores rows, and draws them at once or later."""
    path, page = tmp_path / "study.parquet", tmp_path / "page.html"
    done = run(*WORDS, "--rate", 50_000, "--rate", 0, "--repeat", 2, "-o", path, "--page", page)
    assert done.exit_code == 0, done.output
    assert "running 4 points" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["MIX", "TARGET/S", "RUNS", "ENQUEUED/S"]
    assert [line.split()[:2] for line in lines[1:3]] == [["2/6", "50,000"], ["2/6", "full"]]
    assert [row["made"] for row in measurements.read_rows(path)] == [2_000] * 4
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    again = run("--from", path, "--page", tmp_path / "again.html")
    assert again.stdout == done.stdout
    assert (tmp_path / "again.html").stat().st_size == page.stat().st_size
    as_json = run(*WORDS, "--rate", 50_000, "--json", "-q")
    found = json.loads(as_json.stdout)
    assert (found["runs"], found["failed"], found["failures"]) == (1, 0, [])
    (point,) = found["points"]
    assert (point["mix"], point["rate"], point["n"], point["runs"]) == ("2/6", 50_000, 2_000, 1)
    assert as_json.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mix", "medium"), "a mix is low, high, or its median and 75th percentile"),
        (("--n", 0), "low mix at 50,000/s, seed 1, repetition 1: n must be between 1 and"),
        (("--wheel-size", 1), "wheel_size must be between 2"),
        (("--seed", -1), "seed must be between 0"),
        (("--rate", -1), "-1"),
        (("-o", "/there/is/no/such/folder/x.json"), "is not a folder"),
    ],
)
def test_bad_options(run: Callable[..., Any], words: tuple[Any, ...], said: str) -> None:
    """The error is one sentence, before Spark starts."""
    done = run(*words)
    assert done.exit_code in (1, 2)
    assert said in done.output
    assert "Traceback" not in done.output
    assert "running" not in done.output


def test_a_command_with_a_failure(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    """The figures of the other points are stored and printed, then the failure, and the status is 1."""
    failed = {
        **dict.fromkeys(measurements.FIGURES),
        **{name: rows[0][name] for name in measurements.PLAN},
        "error": "MemoryError",
    }
    monkeypatch.setattr("bench.purgatory.spark_job.run_study", lambda *args, **more: [*rows, failed])
    done = run("--rate", 1, "-o", tmp_path / "rows.json")
    assert done.exit_code == 1
    assert "Error: 2/6 mix at 100,000/s, seed 1, repetition 1: MemoryError" in done.stderr
    assert "(1 failed)" in done.stdout
    assert len(measurements.read_rows(tmp_path / "rows.json")) == 17


def test_the_program_of_the_page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of docs/pipeline-study.md runs a sweep and a plan of wheel sizes."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipeline-study.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    here: dict[str, Any] = {"spark": spark}
    monkeypatch.chdir(tmp_path)
    exec(compile(program.replace('"wheels.parquet"', repr(str(tmp_path / "wheels"))), "page", "exec"), here)
    assert len(here["rows"]) == 16
    assert {row.wheel_size: row.made for row in spark.read.parquet(str(tmp_path / "wheels")).collect()} == {
        10: 20_000,
        100: 20_000,
    }


def test_the_page_names_every_option_and_figure() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipeline-study.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`(--[\w-]+|\w+)`", page))
    words = {word for option in study.study.params for word in option.opts if word.startswith("--")}
    assert words - shown == set()
    columns = {name for name in measurements.FIGURES if not name.startswith("expiry_late_")}
    assert columns - shown == set()
