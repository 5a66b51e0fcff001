"""Folders that can be tables, and the version of a time before the first one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.spark.tables.delta_table import TIME, Table, TableError, TableInfo
from kbroker.spark.tables.table_place import TablePlace

AT_S = 1_767_323_045.5
INFO = TableInfo(columns={"type": "struct", "fields": [
    {"name": TIME["request_log"], "type": "timestamp", "nullable": True, "metadata": {}}]})  # fmt: skip


@pytest.mark.parametrize("name", ["a b", "\u00e4=1", "100%", "50%zz", "a#b?c", "{x}", "\U0001f600", "x" * 200])
def test_a_folder_of_any_name_is_a_table(name: str, tmp_path: Path) -> None:
    """Names that a URL would have to encode are valid."""
    Table(tmp_path / name).open(INFO)
    assert Table(tmp_path / name).exists()
    assert Table(tmp_path / name).version == 0


@pytest.mark.parametrize("name", ["a%20b", "a%41", "a\\b", "[x]", "a|b", "a^b", "a\nb", "a\x7fb"])
def test_a_folder_that_delta_rs_would_take_for_another(name: str, tmp_path: Path) -> None:
    """delta-rs would create part of a table elsewhere, or panic: the error is one sentence, and nothing is created."""
    with pytest.raises(TableError, match="cannot be a table, because delta-rs reads"):
        Table(tmp_path / name).open(INFO)
    assert not list(tmp_path.iterdir())
    (tmp_path / name / "_delta_log").mkdir(parents=True)
    with pytest.raises(TableError, match="cannot be a table"):
        Table(tmp_path / name).exists()


@pytest.mark.parametrize(
    "words", [["ingest", "T", "log"], ["archive", "T", "--topic", "t"], ["watch", "T", "log"], ["compact", "T"]]
)
def test_it_is_refused_before_spark_starts(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("kbroker.spark.setup.session.build_session", start)
    (tmp_path / "log").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["pipeline", *("a%20b" if word == "T" else word for word in words)])
    assert (done.exit_code, "cannot be a table, because delta-rs reads '%20'" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("words", [["report", "T"], ["recommend", "T"]])
@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_a_result_has_a_folder(words: list[str], folder: str, tmp_path: Path) -> None:
    """A job of hours is rejected at once if its result cannot be written."""
    (tmp_path / "a file").touch()
    done = CliRunner().invoke(cli, ["pipeline", *words, "-o", str(tmp_path / folder / "result")])
    assert done.exit_code == 2, done.stderr
    assert f"expected the folder {tmp_path / folder} for result, found none" in " ".join(done.stderr.split())


def test_a_result_has_a_folder_that_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path)
    done = CliRunner().invoke(cli, ["pipeline", "report", "T", "-o", str(tmp_path / "result")])
    assert done.exit_code == 2, done.stderr
    assert f"expected a folder in which files can be written, got {tmp_path}" in " ".join(done.stderr.split())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table whose only version is of 2026-01-02 03:04:05.5."""
    Table(tmp_path / "t").open(INFO)
    (entry,) = (tmp_path / "t/_delta_log").glob("*.json")
    os.utime(entry, (AT_S, AT_S))
    return tmp_path / "t"


def test_a_time_before_the_first_version(table: Path) -> None:
    """A time before the first version is an error; delta-rs alone would return the first version."""
    at: Callable[[str], Table] = lambda time: Table(TablePlace.of(table, as_of=time))  # noqa: E731
    assert at("2026-01-02T03:04:05.500").version == 0
    assert at("2026-01-03").version == 0
    with pytest.raises(
        TableError, match=r"has no version of 2026-01-02T03:04:05: its earliest is of 2026-01-02 03:04:05.500 UTC"
    ):
        _ = at("2026-01-02T03:04:05").version
