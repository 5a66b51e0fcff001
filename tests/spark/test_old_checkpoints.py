"""Checkpoints that are incomplete, older copies, or another table's, which are rejected before the first batch.

A table identifies a batch by its number, so records of a new batch with an old number would be left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.request_log import VERSION
from kbroker.spark import formatting as jobs
from kbroker.spark.tables import table_place
from kbroker.spark.tables.checkpoint import VERIFIES_EMPTY, verifies_empty
from kbroker.spark.tables.delta_table import REQUEST_LOG, Stream, Table, TableError, TableInfo
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_place import TablePlace
from kbroker.spark.tables.table_stream import StreamOptions, TableStream
from tests.spark.committing import BUCKETS, placed, two_hours, write
from tests.spark.day import make_day
from tests.spark.watching import put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = "b5a2ff80-9a52-4a0b-8b3b-8a1c2a7d0b11"
INFO = TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue())
READS = Stream(paths=("/logs",))


def checkpoint_of(folder: Path, planned: int, committed: int) -> Path:
    """Create a checkpoint in Spark's form, with the checksums of Hadoop's local file system."""
    for name, last in (("offsets", planned), ("commits", committed)):
        (folder / name).mkdir(parents=True)
        for number in range(last + 1):
            (folder / name / str(number)).write_text("v1\n{}")
            (folder / name / f".{number}.crc").write_bytes(b"crc")
    (folder / "metadata").write_text(json.dumps({"id": ID}))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with batches 0 to 2 of a stream, whose checkpoint is inside."""
    found = Table(tmp_path / "table")
    found.open(INFO)
    found.add_stream(ID, READS)
    rows = placed(two_hours())
    for number in range(3):
        write(found, ID, number, rows)
    checkpoint_of(tmp_path / "table" / "_checkpoint", 2, 2)
    return found


def opened(table: Path, reads: Stream = READS, **options: Any) -> TableStream:
    """Do the part of a run before Spark's stream, which needs no Spark."""
    chosen = StreamOptions(buckets=BUCKETS, **options)
    nothing: Any = None
    found = TableStream(nothing, table, chosen, INFO, reads, VirtualClock(), jobs.silent, None)
    found._open()
    return found


def test_a_checkpoint_that_knows_the_last_batch(table: Table, tmp_path: Path) -> None:
    """A committed batch, a planned one after it, and missing commits are accepted."""
    checkpoint = tmp_path / "table" / "_checkpoint"
    opened(tmp_path / "table")
    (checkpoint / "commits" / "2").unlink()
    opened(tmp_path / "table")
    (checkpoint / "offsets" / "3").write_text("v1\n{}")
    opened(tmp_path / "table")
    shutil.rmtree(checkpoint / "commits")
    opened(tmp_path / "table")


def test_a_checkpoint_without_its_last_batch(table: Table, tmp_path: Path) -> None:
    """The checkpoint is refused: the next batch would have the number of a batch in the table."""
    checkpoint = tmp_path / "table" / "_checkpoint"
    (checkpoint / "offsets" / "2").unlink()
    with pytest.raises(TableError, match=r"_checkpoint ends with batch 1 and .*/table has batch 2 of its stream: the"):
        opened(tmp_path / "table")
    shutil.rmtree(checkpoint / "offsets")
    with pytest.raises(TableError, match=r"_checkpoint has no batch and .*/table has batch 2"):
        opened(tmp_path / "table")


def test_a_checkpoint_of_another_table(table: Table, tmp_path: Path) -> None:
    """The checkpoint was named by mistake, or the table was deleted without it."""
    kept = tmp_path / "table" / "_checkpoint"
    said = "is the checkpoint of a stream into another table than .*/new, or this one was deleted since"
    with pytest.raises(TableError, match=said):
        opened(tmp_path / "new", checkpoint=str(kept))
    assert not (tmp_path / "new").exists()
    opened(tmp_path / "new", checkpoint=str(checkpoint_of(tmp_path / "begun", 0, -1)))  # it ended in its first batch


def test_another_log_with_the_same_checkpoint(table: Table, tmp_path: Path) -> None:
    """A run must name all logs of its checkpoint, which would otherwise lose their offsets.

    A log may be added to the earlier logs; from then on all of them must be named.
    """
    said = "is filled from /logs with the checkpoint .*/_checkpoint, which would forget how far that was read: name it"
    with pytest.raises(TableError, match=said):
        opened(tmp_path / "table", Stream(paths=("/more",)))
    both = Stream(paths=("/logs", "/more"))
    opened(tmp_path / "table", both)._known()
    assert table.streams() == {ID: both}
    with pytest.raises(TableError, match="is filled from /more"):
        opened(tmp_path / "table")


def test_a_plan_is_on_the_disk_before_its_batch(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is synced before the batch: otherwise, after a power cut, a batch could exist without a plan."""
    synced: list[str] = []
    monkeypatch.setattr(table_place, "_sync", lambda path: synced.append(path.relative_to(tmp_path).as_posix()))
    opened(tmp_path / "table")._keep_offsets(2)
    inside = "table/_checkpoint"
    assert synced == [f"{inside}/metadata", inside, f"{inside}/offsets/2", f"{inside}/offsets", inside]


@pytest.mark.parametrize(
    ("files", "verifies"),
    [
        ([], None),
        (["offsets/.0.1b2c.tmp", "offsets/..0.1b2c.tmp.crc"], "false"),
        (["offsets/0"], None),
        (["commits/.0.crc"], "false"),
        (["offsets/.0.1b2c.tmp", "state/0/0/1.delta"], None),
    ],
    ids=["new", "killed", "planned", "removed in part", "with state"],
)
def test_what_a_killed_start_leaves(tmp_path: Path, files: list[str], verifies: str | None) -> None:
    """A folder with only temporary files is not the checkpoint of another query."""
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert verifies_empty(TablePlace.of(tmp_path)) == verifies


def test_a_start_after_a_killed_one(spark: SparkSession, tmp_path: Path) -> None:
    """A process was killed while Spark wrote the offsets of its first batch."""
    put(tmp_path / "logs", 0, list(make_day(1_000).lines()))
    offsets = tmp_path / "table" / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.4f1c7b1e-9d3c-4a54-8f0a-6a1d2b3c4d5e.tmp").write_text("v1\n")
    done = ingest(spark, LogSource.of_files(tmp_path / "logs"), tmp_path / "table", StreamOptions(buckets=1))
    assert done.rows > 900
    assert spark.conf.get(VERIFIES_EMPTY, None) in (None, "true")
