"""Commands as a user runs them: ingest, views, and the sentences of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import cli, pipeline_jobs, pipeline_views
from tests.spark.day import make_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_ingest_and_look(tmp_path: Path, command: Callable[..., Result]) -> None:
    """A real Kafka's log is ingested; the views list the largest and the throttled clients."""
    day = make_day(1_000)
    log, table = tmp_path / "kafka-request.log", tmp_path / "table"
    log.write_text("no record\n" + "\n".join(day.lines()) + "\n")
    done = command("pipeline", "ingest", table, log, "--buckets", "1", "--json")
    printed = json.loads(done.stdout)
    assert (printed["run"]["rows"], printed["run"]["rejected"], printed["table"]["rows"]) == (1_000, 1, 1_000)
    assert "batch 0: 1,000 rows into" in done.stderr

    seen = command("pipeline", "usage", table, "--top", "1", "--by", "requests", "--quiet")
    header, first = seen.stdout.splitlines()
    assert header.split()[:4] == ["PRINCIPAL", "CLIENT", "ID", "REQUESTS"]
    who = ("User:team-0", "app-00")
    assert first.split()[:3] == [*who, f"{day.usage[who]['requests']:,.0f}"]

    held = command("pipeline", "throttles", log, "--json")
    assert "read 1,000 records; lines that are not records: 1" in held.stderr
    printed = json.loads(held.stdout)
    assert sum(row["delay_served_ms"] for row in printed["quotas"]) == sum(
        row["delay_served_ms"] for row in day.throttles.values()
    )
    assert len(printed["throttles"]) == min(20, len(day.throttles))


def test_what_is_no_log_is_an_error(command: Callable[..., Result], tmp_path: Path) -> None:
    """An empty log is a log without records; a folder without files, or with other files, is not a log."""
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    with pytest.raises(AssertionError, match=f"no file of a log in {folder}: expected files of lines or Arrow batches"):
        command("pipeline", "usage", folder)
    (folder / "requests.jsonl").touch()
    assert "read 0 records" in command("pipeline", "usage", folder).stderr
    (folder / "notes.txt").write_text("some\ntext\n")
    with pytest.raises(AssertionError) as failed:
        command("pipeline", "throttles", folder)
    assert "none of 2 lines is a record of a request (at 0 of notes.txt: no record of a request in this line)" in str(
        failed.value
    )


def test_a_failure_in_a_session_is_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line is Spark's sentence without its trace; `test_start.py` has the soak of a process."""
    (tmp_path / "requests-1.jsonl").touch()

    def start(common: dict[str, Any]) -> SparkSession:
        spark.conf.set("spark.sql.shuffle.partitions", "none")
        return spark

    monkeypatch.setattr(pipeline_views, "session", start)
    done = CliRunner().invoke(cli, ["pipeline", "usage", str(tmp_path), "--quiet"])
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: ")
    assert "shuffle.partitions" in line
    assert line.endswith("(--verbose shows the trace)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ingest", "T"], "expected either LOGs or --topic, got neither"),
        (["ingest", "T", "a.log", "--topic", "t"], "expected either LOGs or --topic, got both"),
        (["ingest", "T", "--topic", "t", "--option", "x"], "expected NAME=VALUE, got 'x'"),
        (
            ["ingest", "T", "--topic", "a,b"],
            "expected the name of one topic: up to 249 of A-Z a-z 0-9 . _ -, got 'a,b'",
        ),
        (["archive", "T", "--topic", ""], "expected the name of one topic"),
        (["archive", "T", "--topic", "t", "--max-per-batch", "1MB"], "a number of records such as 1e6, got '1MB'"),
        (["ingest", "T", "a.log", "--max-per-batch", "1Mb"], "expected bytes such as 1048576, 1MB"),
        (["watch", "T", "a.log", "--max-per-batch", "0"], "expected at least 1, and less than 2^63, got '0'"),
        (["compact", "T"], "T is not a table: it has no _delta_log"),
        (["archive", "T"], "Missing option '--topic'"),
        (["archive", "T", "--topic", "t", "--value", "json"], "a value that is JSON needs its columns"),
        (["archive", "T", "--topic", "t", "--key-columns", "a int"], "columns were given for the key"),
        (["usage"], "Missing argument"),
        (["usage", "T", "--remote", ""], "'--remote': expected a URL, got an empty one"),
        (["usage", "T", "--master", " "], "'--master': expected a URL, got an empty one"),
        (["usage", "T", "--by", "age"], "'age' is not one of"),
        (["usage", "T", "--driver-memory", "2gb"], "expected a size with the unit k, m, g or t, such as 2g, got '2gb'"),
        (["usage", "T", "--driver-memory", "2048"], "expected a size with the unit"),
        (["lag", "--checkpoint", "."], "is not a checkpoint of a stream"),
        (["usage", "ftp://host/T"], "ftp"),
        (["ingest", "T", "NOLOG"], "NOLOG, found none; name files, folders of files, or patterns of file names"),
        (["watch", "T", "no-*.jsonl"], "no-*.jsonl, found none; name files"),
        (["usage", "NOLOG"], "NOLOG, found none; name files"),
        (["clients", "README.md", "--pushes", "NOLOG"], "NOLOG, found none; name files"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line, before Spark starts if possible."""
    monkeypatch.chdir(tmp_path)
    for module in (pipeline_jobs, pipeline_views):
        monkeypatch.setattr(module, "session", lambda common: pytest.fail("Spark was started"))
    done = CliRunner().invoke(cli, ["pipeline", *words])
    assert said in " ".join(done.output.split())
    assert done.exit_code in (1, 2)
    assert list(tmp_path.iterdir()) == []  # no folder was created with such a name
