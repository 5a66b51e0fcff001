"""Tables on an object store: a local server of S3's protocol with conditional puts."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result

from kbroker._core.clock import VirtualClock
from kbroker.common.request_log import VERSION
from kbroker.spark.errors import PipelineError
from kbroker.spark.failures import unreadable_file
from kbroker.spark.tables.compaction import compact_table
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableError, TableInfo, describe_table
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.log_store import LogFile, exists, found_files
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TablePlace
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.replay import replay_rows, replay_table
from kbroker.spark.whatif.sum import by_client
from tests.spark.committing import BUCKETS, placed, two_hours, write
from tests.spark.day import START_US, make_day
from tests.spark.test_replay_core import SETS
from tests.support.object_store import ObjectStore, request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000
LATER_MS = START_US // 1000 + 48 * 3_600_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """Yield the options of a store that has the bucket `tables`."""
    store = ObjectStore()
    yield store.options
    store.close()


@pytest.fixture
def place(store: dict[str, str], tmp_path: Path) -> TablePlace:
    return TablePlace.of(f"s3a://tables/{tmp_path.name}", store)


def test_writers_at_once(place: TablePlace) -> None:
    """Each version is written once, by a conditional put: no version is lost or written again."""
    Table(place).open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    program = (
        "import sys, json; from tests.spark.committing import main; "
        "main(sys.argv[1], 'write', sys.argv[2], '6', 'wait', options=json.loads(sys.argv[3]))"
    )
    options = json.dumps(place.storage_options)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, place.uri, app, options],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for app in ("a", "b", "b")
    ]  # fmt: skip
    assert [one.stdout.readline() for one in running] == ["ready\n"] * 3
    for one in running:
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate(timeout=300)[0].split("\n")[:-1] for one in running]
    assert [one.returncode for one in running] == [0, 0, 0]
    assert said[0] == ["committed"] * 6
    assert all(sorted(pair) == ["committed", "left out"] for pair in zip(said[1], said[2], strict=True))
    assert describe_table(place)["rows"] == 12 * two_hours().num_rows
    assert compact_table(place, retention_ms=0, short_retention=True).hours == 2
    found = Table(place)
    assert sum(one.rows for one in found.files()) == 12 * two_hours().num_rows
    assert found.files() == [one for one in found.files() if "compacted-" in one.path]


def test_the_store_of_the_environment_is_sent_to_tasks(
    store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place with the options of the environment can be written without the environment, as in an executor."""
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")
    sent = pickle.dumps(TablePlace.of(f"s3://tables/{tmp_path.name}"))
    alone = TablePlace.of("s3://tables/t", {"access_key_id": "other", "aws_region": "eu-west-1"})
    for name in store:
        monkeypatch.delenv(name)
    place = pickle.loads(sent)
    place.write("a/b", b"content")
    assert place.read("a/b") == b"content"
    assert "secret" not in f"{place!r} {LogFile(place.file('a'), place.options)!r}"
    # credentials of options and environment are not mixed
    assert alone.storage_options == {
        "access_key_id": "other", "aws_region": "eu-west-1", "aws_conditional_put": "etag",
        "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": store["AWS_ENDPOINT_URL"],
    }  # fmt: skip


@pytest.mark.soak
def test_ingest_read_replay(spark: SparkSession, place: TablePlace, tmp_path: Path) -> None:
    """A table on the store is filled in two runs with rejected lines, read, read as of a version, and replayed."""
    day = make_day(ROWS)
    lines = [*day.lines()]
    log = tmp_path / "requests-1.jsonl"
    log.write_text("\n".join([*lines[:600], "{no record"]) + "\n")
    source = LogSource.of_files(log, format="json")
    with pytest.raises(TableError, match="for its offsets with --checkpoint"):
        ingest(spark, source, place)
    on_s3 = StreamOptions(checkpoint=f"{place.uri}/_checkpoint")
    with pytest.raises(PipelineError, match=r"has none for that store: give it the jars .*:hadoop-aws:\d"):
        ingest(spark, source, place, on_s3)
    assert not Table(place).exists()
    options = StreamOptions(buckets=2, checkpoint=tmp_path / "checkpoint")
    clock = VirtualClock(LATER_MS)
    assert ingest(spark, source, place, options, clock=clock).rows == 600
    first = describe_table(place)["version"]
    with log.open("a") as opened:
        opened.write("\n".join(lines[600:]) + "\n")
    done = ingest(spark, source, place, options, clock=clock)
    assert (done.rows, done.compacted.hours > 0) == (400, True)
    (rejected,) = place.listed("_rejected")
    assert b"invalid JSON" in place.read(rejected[0])

    names = day.rows.column_names
    rows = read_table(spark, place)
    assert sorted(rows.select(*names).toArrow().to_pylist(), key=str) == sorted(day.rows.to_pylist(), key=str)
    assert read_table(spark, place, ["hour", "bucket"], dates=["2026-01-02"]).distinct().count() == 48
    assert read_table(spark, place, dates=["1999-12-31"]).count() == 0
    before = TablePlace.of(place.uri, place.storage_options, as_of=first)
    assert (read_table(spark, before).count(), describe_table(before)["rows"]) == (600, 600)
    quotas = QuotaSet(SETS["mixed"])
    replayed = by_client(replay_table(spark, place, quotas)).collect()
    assert sum(row.requests for row in replayed) > ROWS / 2
    assert replayed == by_client(replay_rows(rows, quotas)).collect()


def test_the_commands(command: Callable[..., Result], place: TablePlace) -> None:
    """TABLE may be a URI, with the store's options as options of the command."""
    Table(place).open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    write(Table(place), "a", 0, placed(two_hours()))
    more = [word for pair in place.options for word in ("--storage-option", "=".join(pair))]
    used = command("pipeline", "usage", place.uri.replace("s3:", "s3a:"), "--top", "1", *more)
    assert f"reading {two_hours().num_rows} rows of 2 hours in 4 files" in used.stderr
    assert used.stdout.splitlines()[1].split()[:2] == ["User:team-0", "app-00"]
    assert (
        "ROWS" not in command("pipeline", "compact", place.uri, "--retention", "0", "--short-retention", *more).stdout
    )


def test_the_mark_of_a_folder_is_no_file(store: dict[str, str], tmp_path: Path) -> None:
    """The empty object of a folder's name, which Hadoop's client and consoles create on S3, is not a file."""
    folder = TablePlace.of(f"s3://tables/{tmp_path.name}", store)
    folder.write("logs/requests-1.jsonl", b"{}\n")
    url = f"{store['AWS_ENDPOINT_URL']}/tables/{tmp_path.name}/logs/"
    request("PUT", url, b"")
    assert [name for name, _ in folder.listed("logs")] == ["logs/requests-1.jsonl"]
    logs = folder.within("logs").uri
    found = [file.name for file in found_files([logs], store)]
    assert found == [file.name for file in found_files([f"{logs}/*.jsonl"], store)] == ["requests-1.jsonl"]
    names = ("", "/requests-1.jsonl", "/*.jsonl", "/other", "-2")
    assert [exists(TablePlace.of(f"{logs}{name}", store)) for name in names] == [True, True, True, False, False]


def test_a_file_that_is_missing_is_named(spark: SparkSession, place: TablePlace) -> None:
    Table(place).open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    found = Table(place)
    write(found, "a", 0, placed(two_hours()))
    lost = found.files()[0]
    place.delete(lost.path)
    with pytest.raises(Exception, match="UnreadableFileError") as failed:
        read_table(spark, place).count()
    assert f"cannot read {place.uri}/{lost.path}: it is missing" in str(unreadable_file(failed.value))
    with pytest.raises(PipelineError, match="but is missing or has another size"):
        found.commit([lost], ("b", 0))
