"""Manifests of a table: which files are live, over repeated batches, compactions and late records."""

import json
from pathlib import Path

import pytest

from kbroker.spark.tables.compaction import due_buckets
from kbroker.spark.tables.manifest import (
    HOUR_US,
    DataFile,
    Hour,
    Retired,
    Table,
    TableError,
    TableInfo,
    bucket_of,
    file_name,
    live_files,
)

DATE = "2026-01-02"


def data_file(bucket: int, batch: int, generation: int = 0, rows: int = 10) -> DataFile:
    path = f"date={DATE}/hour=05/bucket={bucket:02d}/{file_name(batch, generation)}"
    return DataFile(path, bucket, batch, generation, rows, 100, 1, 2)


def test_a_batch_that_is_repeated_replaces_its_own_files() -> None:
    """After a crash between the manifest and Spark's commit a batch is written twice; its rows count once."""
    hour = Hour(DATE, 5).with_batch(0, [data_file(1, 0)]).with_batch(1, [data_file(1, 1)])
    again = hour.with_batch(1, [data_file(1, 1)])
    assert again.files == hour.files
    assert again.rows == 20
    assert hour.generation_for(1) == 0


def test_late_rows_get_a_generation_above_a_compacted_hours() -> None:
    """A batch after a compaction stands beside the compacted file, and repeats under its own generation."""
    compacted = Hour(DATE, 5, generation=1, compacted_through=7, files=(data_file(1, 7, 1, 80),))
    assert compacted.generation_for(8) == 2
    late = compacted.with_batch(8, [data_file(1, 8, 2)])
    assert (late.generation, late.rows) == (2, 90)
    assert late.generation_for(8) == 2
    assert late.generation_for(9) == 3


def test_a_compacted_batch_number_does_not_replace_the_compacted_file() -> None:
    """The file that holds batches 0 to 7 is called 7; batch 7 itself, repeated, must not push it out."""
    compacted = Hour(DATE, 5, generation=1, compacted_through=7, files=(data_file(1, 7, 1, 80),))
    assert compacted.with_batch(7, []).rows == 80


def test_live_files_are_those_of_manifests(tmp_path: Path) -> None:
    """A file in the folder that no manifest names is no part of the table, and is removed as an orphan."""
    table = Table(tmp_path)
    table.store_info(TableInfo())
    hour = Hour(DATE, 5).with_batch(0, [data_file(1, 0), data_file(3, 0)])
    table.store(hour)
    for name in (*(file.path for file in hour.files), f"date={DATE}/hour=05/bucket=01/batch-00000001-g0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert live_files(tmp_path) == {
        (DATE, 5, 1): [tmp_path / hour.files[0].path],
        (DATE, 5, 3): [tmp_path / hour.files[1].path],
    }
    assert live_files(tmp_path, dates=["2026-01-03"]) == {}
    assert (table.drop_orphans(), table.drop_orphans()) == (1, 0)
    assert all((tmp_path / file.path).exists() for file in hour.files)
    assert (table.next_batch(), table.max_time_us()) == (1, 2)


def test_replaced_files_stay_for_the_grace_time(tmp_path: Path) -> None:
    """A reader that opened the old generation can finish."""
    table = Table(tmp_path)
    old = data_file(1, 0).path
    (tmp_path / old).parent.mkdir(parents=True)
    (tmp_path / old).touch()
    hour = Hour(DATE, 5, 1, 0, (data_file(1, 0, 1),), (Retired(old, since_ms=1_000),))
    table.store(hour)
    assert table.drop_retired(hour, now_ms=1_999, grace_ms=1_000) == hour
    assert (tmp_path / old).exists()
    assert table.drop_retired(hour, now_ms=2_000, grace_ms=1_000).retired == ()
    assert not (tmp_path / old).exists()
    assert table.hour(DATE, 5).retired == ()


def test_a_folder_that_is_no_table_is_named() -> None:
    with pytest.raises(TableError, match="/nowhere is no table"):
        live_files("/nowhere")


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "\0", '{"layout_version": 1, "wool": 2}', '{"layout_version": null}']
)
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    """The table's and an hour's: the sentence says which file, and what to do."""
    table = Table(tmp_path)
    table.store_info(TableInfo())
    table.store(Hour(DATE, 5))
    (hour,) = tmp_path.glob("_manifest/date=*.json")
    hour.write_text(text)
    with pytest.raises(TableError, match=r"hour=05\.json is damaged: restore it"):
        list(table.hours())
    (tmp_path / "_manifest/table.json").write_text(text)
    with pytest.raises(TableError, match=r"table\.json is damaged: restore it"):
        table.info()


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.store_info(TableInfo(layout_version=2))
    with pytest.raises(TableError, match="layout 2; this kbroker knows 1"):
        table.info()


def test_a_manifest_is_never_half_written(tmp_path: Path) -> None:
    """It is replaced by a rename: a leftover of a crash beside it changes nothing."""
    table = Table(tmp_path)
    table.store(Hour(DATE, 5).with_batch(0, [data_file(1, 0)]))
    (tmp_path / "_manifest" / f".date={DATE}-hour=05.json.new").write_text('{"half": ')
    assert [hour.rows for hour in table.hours()] == [10]
    assert json.loads((tmp_path / "_manifest" / f"date={DATE}-hour=05.json").read_text())["files"][0]["rows"] == 10


def test_an_hour_ends_where_the_next_begins() -> None:
    assert Hour("1970-01-02", 1).end_us == 26 * HOUR_US


@pytest.mark.parametrize(
    ("hour", "closed_before", "due"),
    [
        (Hour(DATE, 5, files=(data_file(1, 0), data_file(1, 1), data_file(2, 1))), 0, set()),
        (Hour(DATE, 5, files=(data_file(1, 0), data_file(1, 1), data_file(2, 1))), Hour(DATE, 5).end_us, {1}),
        (Hour(DATE, 5, files=(data_file(1, 0), data_file(1, 1), data_file(2, 1))), Hour(DATE, 5).end_us - 1, set()),
        (Hour(DATE, 5, files=tuple(data_file(1, n) for n in range(65))), 0, {1}),
        (Hour(DATE, 5, 1, 0, tuple(data_file(1, n) for n in range(4))), Hour(DATE, 5).end_us, set()),
        (Hour(DATE, 5, 1, 0, tuple(data_file(1, n) for n in range(5))), Hour(DATE, 5).end_us, {1}),
    ],
    ids=["open", "closed", "closes at its end", "too many files", "few late files", "many late files"],
)
def test_what_is_due_to_be_compacted(hour: Hour, closed_before: int, due: set[int]) -> None:
    assert due_buckets(hour, closed_before) == due


def test_buckets_are_stable() -> None:
    """They are part of the layout: a change would put an entity's rows into two buckets."""
    assert [bucket_of("User:team-0", "app-00", 8), bucket_of(None, None, 8), bucket_of("User:é", "ü", 8)] == [5, 5, 2]
