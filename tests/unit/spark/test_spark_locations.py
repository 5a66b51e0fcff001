"""Names of tables, logs and checkpoints, and their URIs for Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.spark.errors import PipelineError
from kbroker.spark.locations import local_path, spark_path
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table_place import TablePlace

ELSEWHERE = ["hdfs://host:8020/t", "s3a://bucket/t", "S3://bucket/t", "gs://b", "abfss://c@a.host/t", "hdfs:/t"]


@pytest.mark.parametrize("given", ["t", "/data/t", "a:b", "a b/%20", "C:/t", "x:y/z"])
def test_a_path_is_itself(given: str) -> None:
    """A colon alone does not make a URI."""
    assert local_path(given) == local_path(Path(given)) == Path(given)


@pytest.mark.parametrize("given", ["file:///data/t", "file:/data/t", "FILE:///data/t", "file://localhost/data/t"])
def test_a_file_uri_is_its_path(given: str) -> None:
    assert local_path(given) == Path("/data/t")


def test_characters_stand_for_themselves() -> None:
    """Characters are not percent-decoded, as in Hadoop's paths."""
    assert local_path("file:///a%20b") == Path("/a%20b")
    assert spark_path("/a%20b c") == "file:///a%20b c"


def test_spark_is_given_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local path is given with its scheme, because Spark resolves others against `fs.defaultFS`."""
    monkeypatch.chdir(tmp_path)
    assert spark_path("t") == spark_path(Path("t")) == spark_path(tmp_path / "t") == f"file://{tmp_path}/t"


@pytest.mark.parametrize("given", ELSEWHERE)
def test_another_file_system_is_refused(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URI where a path is required is refused in one sentence, as text and as a Path, and no folder is created."""
    monkeypatch.chdir(tmp_path)
    scheme = given.partition(":")[0].lower()
    for refused in (local_path, lambda text: local_path(Path(text))):
        with pytest.raises(PipelineError, match=f"is in {scheme}, and only a mounted file system is supported here"):
            refused(given)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_is_refused() -> None:
    """An empty name, as from an unset shell variable, does not mean the current folder."""
    for refused in (local_path, TablePlace.of, LogSource.of_files):
        with pytest.raises(PipelineError, match="the name is empty: expected a path or a URI"):
            refused("")


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    """delta-rs and pyarrow cannot encode it."""
    for refused in (TablePlace.of, LogSource.of_files):
        for given in ("/data/t\udcff", "s3://bucket/t\udcff"):
            with pytest.raises(PipelineError, match=r"/t\\udcff is not UTF-8: expected a path or a URI that is$"):
                refused(given)


@pytest.mark.parametrize("given", ["s3://", "s3:///t", "s3a://", "gs:///t", "hdfs://"])
def test_a_uri_without_a_bucket_is_refused(given: str) -> None:
    with pytest.raises(
        PipelineError, match=f"^{given} names no bucket or host: expected {given[: given.find(':')]}://"
    ):
        TablePlace.of(given)


@pytest.mark.parametrize("given", ["ftp://host/t", "dbfs:/t", "hdfs:/t"])
def test_an_unknown_store_is_refused(given: str) -> None:
    """The error lists the supported file systems and stores."""
    for refused in (TablePlace.of, LogSource.of_files):
        with pytest.raises(
            PipelineError, match=f"{given} is in no file system .* begins with s3://, gs://, abfss://, hd"
        ):
            refused(given)


@pytest.mark.parametrize(
    ("given", "uri"),
    [("s3://bucket/a", "s3a://bucket/a"), ("hdfs://host:8020/a", "hdfs://host:8020/a"), ("/a", "file:///a")],
)
def test_what_spark_is_given_for_a_store(given: str, uri: str) -> None:
    assert TablePlace.of(given).spark_uri == uri


def test_folders_of_places() -> None:
    """The parent of a folder, names within it, and the root of a store, which has no parent, are returned."""
    place = TablePlace.of("s3://bucket/a/b")
    folder, name = place.above()
    assert (folder.uri, name, place.within("c").uri) == ("s3://bucket/a", "b", "s3://bucket/a/b/c")
    root, name = TablePlace.of("hdfs://host:1").above()
    assert (root.uri, name) == ("hdfs://host:1", "")
    assert TablePlace.of("/a").above()[0].uri == "/"


def test_another_machine_is_refused() -> None:
    with pytest.raises(PipelineError, match="names the machine host: expected a path, or file:///PATH"):
        local_path("file://host/t")


@pytest.mark.parametrize(
    "words",
    [
        ["ingest", "ftp://host/t", "a.log"],
        ["ingest", "t", "ftp://host/a.log"],
        ["ingest", "t", "a.log", "--checkpoint", "ftp://host/c"],
        ["archive", "ftp://host/t", "--topic", "t"],
        ["compact", "dbfs:/t"],
        ["usage", "ftp://host/t"],
        ["lag", "--checkpoint", "ftp://host/c"],
        ["replay", "ftp://host/t", "--quotas", "q.yaml"],
        ["recommend", "ftp://host/t"],
        ["report", "ftp://host/t", "-o", "page.html"],
        ["report", "t", "-o", "s3a://bucket/page.html"],
    ],
)
def test_commands_refuse_it_before_spark_starts(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is one line, and no folder with the name of the scheme is created."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["pipeline", *words])
    said = " ".join(done.output.split())
    assert "only a mounted file system is supported here" in said or "is in no file system that kbroker" in said
    assert done.output.count("\n") == 1
    assert done.exit_code in (1, 2)
    assert list(tmp_path.iterdir()) == []
