"""Writers, compactions and repeated batches at the same time in separate processes: rows are exact."""

import errno
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake.exceptions import DeltaError

from kbroker.cli import cli
from kbroker.common.request_log import VERSION
from kbroker.spark import shared_folder
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables import compaction, file_writer, table_place
from kbroker.spark.tables.compaction import MAX_FILES, SHORTEST_RETENTION_MS, compact, compact_table, due_places, vacuum
from kbroker.spark.tables.delta_table import (
    HOUR_US,
    REQUEST_LOG,
    DataFile,
    Stream,
    Table,
    TableError,
    TableInfo,
    bucket_of,
)
from kbroker.spark.tables.file_reader import read_columns
from kbroker.spark.tables.file_writer import PREFIX, ZSTD_ROWS, statistics
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_layout import ORDER
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.committing import BUCKETS, ROWS, day_of_batches, placed, two_hours, write

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 8
DATE = "2026-01-02"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    Table(tmp_path / "table").open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    return tmp_path / "table"


def at_once(table: Path, *several: Sequence[object]) -> list[list[str]]:
    """Return the output of several processes that start to write and to compact at the same time."""
    running = []
    for words in several:
        command = [sys.executable, "-m", "tests.spark.committing", str(table), *map(str, words), "wait"]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    done = [one.communicate(timeout=600) for one in running]
    assert [one.returncode for one in running] == [0] * len(running), done
    return [out.split("\n")[:-1] for out, _ in done]


def sequences(table: Path) -> Counter[int | None]:
    """Count the occurrences of each row in the table."""
    found: Counter[int | None] = Counter()
    for one in Table(table).files():
        rows = pq.ParquetFile(table / one.path).read(["correlation_id"])
        assert rows.num_rows == one.rows
        found.update(rows["correlation_id"].to_pylist())
    return found


def times(count: int) -> Counter[int | None]:
    once = Counter(two_hours()["correlation_id"].to_pylist())
    return Counter({key: number * count for key, number in once.items()})


@pytest.mark.slow
def test_two_writers_and_two_compactions_at_once(table: Path) -> None:
    """Each batch of both writers is in the table once, although compactions rewrite its files."""
    first, second, *_ = at_once(table, *(("write", app, BATCHES) for app in "ab"), *(("compact", 6) for _ in "cd"))
    assert first == second == ["committed"] * BATCHES
    assert sequences(table) == times(2 * BATCHES)
    compact(Table(table), 0, 1, everything=True)
    assert sequences(table) == times(2 * BATCHES)
    places = [(one.date, one.hour, one.bucket) for one in Table(table).files()]
    assert len(places) == len(set(places))
    assert [Table(table).committed(app) for app in "abc"] == [BATCHES - 1, BATCHES - 1, -1]


@pytest.mark.slow
def test_a_stream_that_runs_twice_adds_no_row_twice(table: Path) -> None:
    """Two processes write the same batches, as after a restart whose first process is still alive."""
    both = at_once(table, *[("write", "a", BATCHES)] * 2)
    for number in range(BATCHES):
        assert sorted([both[0][number], both[1][number]]) in (["committed", "left out"],)
    assert sequences(table) == times(BATCHES)
    found = Table(table)
    found.delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert {one.path for one in found.files()} == {
        one.relative_to(table).as_posix() for one in table.rglob("*.parquet")
    }


def test_of_two_compactions_of_the_same_files_one_gives_up(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both start from one version; the first compaction is kept, and no row is duplicated."""
    rows = placed(two_hours())
    mine, other = Table(table), Table(table)
    for number in range(2):
        write(mine, "a", number, rows)
    before = mine.files()
    done = compact(mine, 0, 1, everything=True)
    assert (done.hours, done.files_before) == (2, len(before))
    monkeypatch.setattr(other, "files", lambda: before)  # it began before the first one had committed
    assert compact(other, 0, 1, everything=True).hours == 0
    assert Table(table).version == mine.version
    assert sequences(table) == times(2)


def test_files_that_are_too_large_for_one_are_merged_in_parts(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow cannot sort texts of 2 GiB at once, and the driver's memory is limited."""
    rows = placed(two_hours())
    mine = Table(table)
    for number in range(5):
        write(mine, "a", number, rows)
    sizes = {one.path: read_columns(mine.place, [one.path], None).nbytes for one in mine.files()}
    monkeypatch.setattr(compaction, "MAX_BYTES", int(2.5 * min(sizes.values())))
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", min(sizes.values()) // 4)
    done = compact(mine, 0, 1, everything=True)
    assert (done.files_before, done.hours) == (len(sizes), 2)
    assert sequences(table) == times(5)
    places = Counter((one.date, one.hour, one.bucket) for one in mine.files())
    assert set(places.values()) <= {3, 5}
    assert 3 in places.values()
    merged = [one for one in mine.files() if places[one.date, one.hour, one.bucket] == 3]
    largest = max(merged, key=lambda one: one.rows)  # made of two files
    found = read_columns(mine.place, [largest.path], ORDER[REQUEST_LOG])
    assert found.equals(found.sort_by([(name, "ascending") for name in ORDER[REQUEST_LOG]]))
    assert pq.ParquetFile(table / largest.path).num_row_groups > 1
    assert compact(mine, 0, 1, everything=True).hours == 0


def test_a_commit_starts_from_the_version_that_was_looked_at(table: Path) -> None:
    """A version committed between the read and the commit makes the job read again."""
    rows = placed(two_hours())
    mine, other = Table(table), Table(table)
    looks = []

    def look() -> None:
        mine.delta.update_incremental()
        looks.append(mine.version)
        if len(looks) < 4:
            write(other, "b", len(looks), rows)

    mine.refresh = look  # type: ignore[method-assign]
    assert write(mine, "a", 0, rows)
    assert len(looks) > 4
    assert sequences(table) == times(4)


def test_a_commit_that_could_not_be_flushed_is_flushed_again(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose first attempt wrote the version and then failed is on disk when it returns."""
    rows, found = placed(two_hours()), Table(table)
    entry = f"_delta_log/{found.version + 1:020}.json"
    flushed: list[str] = []

    def sync(place: TablePlace, path: str) -> None:
        if path.startswith("_delta_log/"):
            flushed.append(path)
            if len(flushed) != 2:
                raise OSError(5, "Input/output error")

    monkeypatch.setattr(TablePlace, "sync", sync)
    assert write(found, "a", 0, rows)
    assert flushed == [entry] * 2
    with pytest.raises(TableError, match=r"cannot be written: .*Input/output error"):
        write(found, "a", 1, rows)


def test_files_of_another_size_are_not_committed(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of a truncated or replaced file is not committed, and the error names the file."""
    monkeypatch.setattr(shared_folder, "SETTLE_SECONDS", 0.2)
    found = Table(table)
    name = f"date={DATE}/hour=1/bucket=0/{PREFIX}x.parquet"
    (table / name).parent.mkdir(parents=True)
    (table / name).write_bytes(b"half of it")
    for path, size in ((name, 11), (name.replace("x.", "y."), 10)):
        one = DataFile(path, DATE, 1, 0, 5, size)
        with pytest.raises(
            PipelineError, match=f"{path} was written by an executor, but is missing or has another size"
        ):
            found.commit([one], ("a", 1))
    assert (found.committed("a"), found.files()) == (-1, [])


def test_what_is_never_part_of_the_table_is_deleted_in_time(table: Path) -> None:
    """Files of a killed writer are kept for the retention, since the writer may be alive; checkpoints are kept."""
    found = Table(table)
    write(found, "a", 0, placed(two_hours()))
    orphan = table / f"date={DATE}/hour=1/bucket=0/{PREFIX}orphan.parquet"
    kept = [table / "_checkpoint/offsets/0", table / "_rejected/batch-0.jsonl", table / "_streams/a.json"]
    for file in (orphan, *kept):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    assert vacuum(found, 3_600_000, everything=True) == 0
    assert vacuum(found, 0, everything=True) == 1
    assert [file.exists() for file in (orphan, *kept)] == [False, True, True, True]
    assert sequences(table) == times(1)


def test_a_short_retention_is_refused(table: Path) -> None:
    """A short retention could delete the files of a batch in progress, unless no other job runs."""
    found = Table(table)
    write(found, "a", 0, placed(two_hours()))
    orphan = table / f"date={DATE}/hour=1/bucket=0/{PREFIX}orphan.parquet"
    orphan.write_text("of another job")
    for short_ms in (0, SHORTEST_RETENTION_MS - 1):
        with pytest.raises(PipelineError, match=r"expected at least 24 hours, or --short-retention while no other job"):
            compact_table(table, retention_ms=short_ms)
    done = CliRunner().invoke(cli, ["pipeline", "compact", str(table), "--retention", "23"])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "a retention of 23 hours could delete files" in done.stderr
    compact_table(table, retention_ms=SHORTEST_RETENTION_MS)
    assert orphan.exists()
    assert compact_table(table, retention_ms=0, short_retention=True).deleted == 1
    assert not orphan.exists()


def test_an_error_of_delta_is_one_line(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of delta-rs during a change of a table is reported in one sentence."""

    def fail(*_: object, **__: object) -> None:
        raise DeltaError("Generic error\n  the disk is on fire")

    monkeypatch.setattr(compaction, "vacuum", fail)
    done = CliRunner().invoke(cli, ["pipeline", "compact", str(table)])
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    assert done.stderr.endswith("kbroker: the table's store or log: Generic error the disk is on fire\n")


def test_a_damaged_table_is_named(table: Path) -> None:
    write(Table(table), "a", 0, placed(two_hours()))
    (table / "_delta_log" / f"{1:020}.json").write_text("{")
    with pytest.raises(TableError, match=r"table cannot be read: "):
        Table(table).files()
    with pytest.raises(TableError, match="/nowhere is not a table: it has no _delta_log"):
        Table("/nowhere").info()


def data_files(bucket: int, new: int, old: int = 0) -> list[DataFile]:
    names = [f"{PREFIX}{number}.parquet" for number in range(new)] + [f"part-{number}.parquet" for number in range(old)]
    return [DataFile(f"date={DATE}/hour=5/bucket={bucket}/{name}", DATE, 5, bucket, 1, 1) for name in names]


END_US = data_files(0, 1)[0].end_us


@pytest.mark.parametrize(
    ("files", "closed_before", "due"),
    [
        ([*data_files(1, 2), *data_files(2, 1)], 0, set()),
        ([*data_files(1, 2), *data_files(2, 1)], END_US, {1}),
        ([*data_files(1, 2), *data_files(2, 1)], END_US - 1, set()),
        (data_files(1, MAX_FILES + 1), 0, {1}),
        (data_files(1, 4, 1), END_US, set()),
        (data_files(1, 5, 1), END_US, {1}),
        (data_files(1, 0, 3), END_US, set()),
    ],
    ids=["open", "closed", "closes at its end", "too many", "few late ones", "many late ones", "large, compacted"],
)
def test_what_is_due_to_be_compacted(files: list[DataFile], closed_before: int, due: set[int]) -> None:
    places: dict[tuple[str, int, int], list[DataFile]] = {}
    for file in files:
        places.setdefault((file.date, file.hour, file.bucket), []).append(file)
    assert {bucket for _, _, bucket in due_places(places, closed_before)} == due
    assert END_US % HOUR_US == 0


def test_buckets_are_stable() -> None:
    """A change of the hash would put an entity's rows into two buckets."""
    assert [bucket_of("User:team-0", "app-00", 8), bucket_of(None, None, 8), bucket_of("User:é", "ü", 8)] == [5, 5, 2]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (Stream("t", "a:1,b:1"), Stream("t", "b:1"), True),
        (Stream("t", "a:1"), Stream("t", "b:1"), False),
        (Stream("t", "a:1"), Stream("t", ""), True),
        (Stream("t", "a:1"), Stream("u", "a:1"), False),
        (Stream("t", "a:1"), Stream(paths=("/a",)), False),
        (Stream(paths=("/a",)), Stream(paths=("/a/b.log",)), True),
        (Stream(paths=("/a",)), Stream(paths=("/ab",)), False),
        (Stream(paths=("/a",)), Stream(), True),
        (Stream("t", "a:1, b:1"), Stream("t", "B:1"), True),
        (Stream("t", "localhost:1"), Stream("t", "127.0.0.1:1"), True),
        (Stream("t", "localhost:1"), Stream("t", "localhost:11"), False),
        (Stream(paths=("/a/*.jsonl",)), Stream(paths=("/a/b.jsonl",)), True),
        (Stream(paths=("/a/*.jsonl",)), Stream(paths=("/a/b.log",)), False),
        (Stream(paths=("/a/*.jsonl",)), Stream(paths=("/a",)), True),
        (Stream(paths=("/a/*.jsonl",)), Stream(paths=("/b/*.jsonl",)), False),
        (Stream(paths=("/a/x-*.jsonl",)), Stream(paths=("/a/x-1*",)), True),
        (Stream(paths=("/a/x-*.jsonl",)), Stream(paths=("/a/y-*.jsonl",)), False),
        (Stream(paths=("/a/*.log",)), Stream(paths=("/a/*.jsonl",)), False),
        (Stream(paths=("/a/*/c",)), Stream(paths=("/a/b",)), True),
        (Stream(paths=("s3://a/b/*",)), Stream(paths=("s3://a/b/c",)), True),
    ],
)
def test_streams_that_may_read_the_same(one: Stream, other: Stream, overlap: bool) -> None:
    assert (one.overlaps(other), other.overlaps(one)) == (overlap, overlap)


def test_a_full_disk_leaves_the_known_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partly written description of a stream would make every later run fail, or lose the record of its inputs."""
    table, known = Table(tmp_path), Stream("t", "h:1")
    table.add_stream("a", known)

    def fill(stream: Any, content: bytes) -> None:
        stream.write(content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table_place, "write_bytes", fill)
        for name in ("a", "b"):
            with pytest.raises(OSError, match="No space left"):
                table.add_stream(name, Stream("t", "h:2"))
    assert table.streams() == {"a": known}


@pytest.mark.parametrize(
    ("before", "now", "left_out"),
    [
        (("/a",), ("/a",), None),
        (("/a",), ("/b", "/a"), None),
        (("/a", "/b"), ("/b",), "/a"),
        (("/a/x.jsonl",), ("/a",), None),
        (("/a/x.jsonl",), ("/a/*.jsonl",), None),
        (("/a/*.jsonl",), ("/a",), None),
        (("/a",), ("/a/*.jsonl",), "/a"),
        (("/a/b/x.jsonl",), ("/a",), "/a/b/x.jsonl"),
        ((), ("/a",), None),  # unknown for a converted table
    ],
)
def test_what_a_run_leaves_out(before: tuple[str, ...], now: tuple[str, ...], left_out: str | None) -> None:
    assert Stream(paths=now).leaves_out(Stream(paths=before)) == left_out


def test_a_log_of_a_table_that_is_damaged(tmp_path: Path) -> None:
    """The error has the message of delta-rs, without the frames of its stack."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("{bad")
    with pytest.raises(TableError) as caught:
        Table(tmp_path).info()
    assert str(caught.value).startswith(f"{tmp_path} cannot be read: Kernel error: Json error: ")
    assert "unknown>" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "uri"),
    [
        ("/a/b", "/a/b"),
        ("/a/../b/", "/b"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("hdfs://name:8020/a", "hdfs://name:8020/a"),
    ],
)
def test_places_of_tables(table: str, uri: str) -> None:
    place = TablePlace.of(table)
    assert (place.uri, place.is_local) == (uri, uri.startswith("/"))
    assert ("aws_conditional_put", "etag") in place.options or not uri.startswith("s3")
    assert TablePlace.of(place) is place


@pytest.mark.parametrize(("rows", "codec"), [(ZSTD_ROWS - 1, "SNAPPY"), (ZSTD_ROWS, "ZSTD")])
def test_small_files_are_made_quickly(table: Path, rows: int, codec: str) -> None:
    """A small file's columns have few values, for which zstd takes longer to start than to compress."""
    row = placed(two_hours()).slice(0, 1)
    batch = pa.Table.from_batches([row] * rows).combine_chunks().to_batches()[0]
    found = Table(table)
    write(found, "a", 0, batch)
    (file,) = found.files()
    footer = pq.read_metadata(table / file.path)
    assert {footer.row_group(0).column(at).compression for at in range(footer.num_columns)} == {codec}


def test_statistics_of_files(tmp_path: Path) -> None:
    """Statistics have row counts and the range of readers' columns, without long or unknown values."""
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("principal", pa.string()), ("sequence", pa.int64())])
    rows = pa.table([[1_500_000, 2_000_000, None], ["b", "a" * 500, None], [None, None, None]], schema=schema)
    pq.write_table(rows, tmp_path / "f.parquet")
    known = json.loads(statistics(pq.read_metadata(tmp_path / "f.parquet"), REQUEST_LOG))
    assert known == {
        "numRecords": 3,
        "minValues": {"time": "1970-01-01T00:00:01.500000Z"},
        "maxValues": {"time": "1970-01-01T00:00:02.000000Z"},
        "nullCount": {"time": 1, "principal": 1, "sequence": 3},
    }
    assert day_of_batches().rows.num_rows == ROWS
