"""Source of log files that are still being written: its lines, and its end offsets."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from kbroker.spark.errors import PipelineError
from kbroker.spark.tables import log_files, log_reader
from kbroker.spark.tables.arrow_log import decode_messages
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_files import SCHEMA, Files, LogFiles, Piece, read_piece
from kbroker.spark.tables.log_reader import LogSource, read_log
from kbroker.spark.tables.log_store import LogFile, found_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files(*paths: Path) -> Files:
    return Files(json.dumps([str(path) for path in paths]))


def read(found: Files, start: dict[str, int], end: dict[str, int]) -> list[str]:
    return [
        line.decode().rstrip("\n")
        for piece in found.pieces(start, end)
        for batch in read_piece(piece)
        for line in batch["value"].to_pylist()
    ]


def test_what_is_appended_is_read_by_the_next_batch(tmp_path: Path) -> None:
    """Appended lines are read by the next batch, whereas Spark's own source reads a file once."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("a\nb\n")
    found = files(tmp_path)
    first = found.ends({}, None)
    assert read(found, {}, first) == ["a", "b"]
    with log.open("a") as opened:
        opened.write("c\n")
    second = found.ends(first, None)
    assert read(found, first, second) == ["c"]
    assert read(found, {}, first) == ["a", "b"]  # a repeated batch reads the same lines


def test_a_half_written_line_is_left_for_later(tmp_path: Path) -> None:
    log = tmp_path / "requests-1.jsonl"
    log.write_text('{"a": 1}\n{"b"')
    found = files(log)
    first = found.ends({}, None)
    assert read(found, {}, first) == ['{"a": 1}']
    with log.open("a") as opened:
        opened.write(": 2}\n")
    assert read(found, first, found.ends(first, None)) == ['{"b": 2}']


def test_a_kafka_log_is_known_again_after_it_was_renamed(tmp_path: Path) -> None:
    """log4j renames the full file and starts another with the old name: both are read once."""
    log = tmp_path / "kafka-request.log"
    log.write_text("one\ntwo\n")
    found = files(tmp_path)
    first = found.ends({}, None)
    log.rename(tmp_path / "kafka-request.log.2026-01-02-03")
    log.write_text("three\n")
    second = found.ends(first, None)
    assert read(found, first, second) == ["three"]


def test_a_kafka_log_that_is_renamed_while_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file renamed between the listing and its opening, or for a batch, is not read again from its start."""
    log, old = tmp_path / "kafka-request.log", tmp_path / "kafka-request.log.2026-01-02-03"
    log.write_text("one\ntwo\n")
    found = files(tmp_path)
    first = found.ends({}, None)
    look = found_files

    def renamed(*args: Any) -> list[LogFile]:
        known = look(*args)
        log.rename(old)
        return known

    monkeypatch.setattr(log_files, "found_files", renamed)
    second = found.ends(first, None)
    monkeypatch.setattr(log_files, "found_files", look)
    hidden = old.rename(tmp_path / ".moving")
    third = found.ends(second, None)
    hidden.rename(old)
    log.write_text("three\n")
    last = found.ends(third, None)
    assert [read(found, *pair) for pair in ((first, second), (second, third), (third, last))] == [[], [], ["three"]]


def test_a_kafka_log_that_is_renamed_before_it_is_read(tmp_path: Path) -> None:
    """The new file with the old name is longer than the plan, and the task finds the renamed file."""
    log = tmp_path / "kafka-request.log"
    log.write_text("one\ntwo\n")
    found = files(tmp_path)
    pieces = found.pieces({}, found.ends({}, None))
    log.rename(tmp_path / "kafka-request.log.1")
    log.write_text("another\nof that name\n")
    lines = [line for piece in pieces for batch in read_piece(piece) for line in batch["value"].to_pylist()]
    assert lines == [b"one\n", b"two\n"]
    (tmp_path / "kafka-request.log.1").unlink()
    with pytest.raises(PipelineError, match=r"kafka-request\.log was renamed or deleted on "):
        next(read_piece(pieces[0]))


def test_a_file_and_a_link_to_it_are_one(tmp_path: Path) -> None:
    """A link such as `current` and its file in the same folders are one file; a link to elsewhere is another file."""
    log, other = tmp_path / "logs" / "requests-1.jsonl", tmp_path / "other.jsonl"
    log.parent.mkdir()
    log.write_text("a\n")
    other.write_text("b\n")
    (log.parent / "current.jsonl").symlink_to(log)
    (log.parent / "more.jsonl").symlink_to(other)
    (tmp_path / "same").symlink_to(log.parent)
    found = files(log.parent, tmp_path / "same")
    end = found.ends({}, None)
    assert sorted(end) == [str(log.parent / "more.jsonl"), str(log)]
    assert sorted(read(found, {}, end)) == ["a", "b"]


def test_a_name_with_the_signs_of_a_pattern(tmp_path: Path) -> None:
    """A name of an existing file is not a pattern."""
    log = tmp_path / "requests[1].jsonl"
    log.write_text("a\n")
    found = files(log)
    assert read(found, {}, found.ends({}, None)) == ["a"]


def test_a_batch_takes_about_what_it_may(tmp_path: Path) -> None:
    """Bytes are counted over all files, lines are not split, and a line above the limit is a batch."""
    (tmp_path / "requests-1.jsonl").write_text("aaaa\nbbbb\ncccc\n")
    (tmp_path / "requests-2.jsonl").write_text("d" * 100 + "\n" + "e\n")
    found = files(tmp_path)
    start: dict[str, int] = {}
    seen: list[list[str]] = []
    for _ in range(5):
        end = found.ends(start, 12)
        seen.append(read(found, start, end))
        start = end
    assert seen == [["aaaa", "bbbb"], ["cccc"], ["d" * 100], ["e"], []]


def test_large_files_are_read_by_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.spark.tables.log_files.SPLIT_BYTES", 10)
    monkeypatch.setattr("kbroker.spark.tables.log_files.CHUNK_BYTES", 7)
    lines = [f"line-{number}" for number in range(20)]
    (tmp_path / "requests-1.jsonl").write_text("\n".join(lines) + "\n")
    found = files(tmp_path)
    end = found.ends({}, None)
    assert len(found.pieces({}, end)) == 20
    assert read(found, {}, end) == lines


def test_positions_are_bytes_of_the_file(tmp_path: Path) -> None:
    """The position of a rejected line is its byte in the file."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("ab\ncdé\nf\n")
    (batch,) = read_piece(Piece(str(log), 3, log.stat().st_size))
    assert batch["position"].to_pylist() == [3, 8]
    assert batch["source"].to_pylist() == ["requests-1.jsonl"] * 2


def test_an_arrow_file_is_read_up_to_its_last_whole_batch(tmp_path: Path) -> None:
    """An incomplete batch, which the broker is writing, is left for later."""
    log = tmp_path / "requests-1.arrows"
    batches = [pa.record_batch({"sequence": [n, n + 1]}) for n in (1, 3, 5)]
    with pa.OSFile(str(log), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    whole = log.read_bytes()
    log.write_bytes(whole[:-40])  # cut within the last batch
    found = files(tmp_path)
    first = found.ends({}, None)
    assert list(first.values()) == [2]
    log.write_bytes(whole)
    second = found.ends(first, None)
    (piece,) = found.pieces(first, second)
    (message,) = read_piece(piece)
    assert message["arrow"].to_pylist() == [True]
    assert pa.ipc.open_stream(message["value"][0].as_buffer()).read_all()["sequence"].to_pylist() == [5, 6]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_damaged_batch_in_an_arrow_file_is_one_rejected_record(tmp_path: Path, is_packed: bool) -> None:
    """Offsets of a list far behind its elements, with which Arrow ends the process; other batches are read."""
    log = tmp_path / "requests-1.arrows"
    update = {"quota_type": "Produce", "user": "", "client_id": "a", "value": 1.0}
    batches = [
        pa.RecordBatch.from_pylist([{"sequence": n, "updates": [update] * (77 + n)}] * 2) for n in (1, 2, 3)
    ]  # fmt: skip
    options = pa.ipc.IpcWriteOptions(compression="lz4" if is_packed else None)
    with pa.OSFile(str(log), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    whole = log.read_bytes()
    offsets = struct.pack("<iii", 0, 79, 158)
    damaged = struct.pack("<iii", 1 << 30, 1 << 30, 1 << 30)
    assert whole.count(offsets) == 1
    log.write_bytes(whole.replace(offsets, damaged))
    found = files(tmp_path)
    end = found.ends({}, None)
    assert list(end.values()) == [3]
    (piece,) = found.pieces({}, end)
    rows = [row for batch in decode_messages(read_piece(piece)) for row in batch.to_pylist()]
    assert [(row["sequence"], row["position"]) for row in rows] == [(1, 0), (1, 0), (None, 1), (3, 2), (3, 2)]
    assert [row["reason"] is None for row in rows] == [True, True, False, True, True]


def test_a_deleted_file_with_unread_records_is_no_silent_loss(tmp_path: Path) -> None:
    log = tmp_path / "requests-1.jsonl"
    log.write_text("a\nb\n")
    found = files(tmp_path)
    end = found.ends({}, None)
    log.unlink()
    with pytest.raises(PipelineError, match=r"requests-1.jsonl.* was deleted with records in it"):
        found.pieces({}, end)
    assert found.pieces(end, end) == []


def test_a_file_that_is_deleted_during_a_limited_run_is_an_error(tmp_path: Path) -> None:
    """A file deleted with records that the run has found but not read is an error; a file that was read is not."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("a\nb\n")
    reader: Any = LogFiles({"paths": json.dumps([str(tmp_path)]), "maxBytesPerTrigger": "2"}).streamReader(SCHEMA)
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset({}, limit)
    assert first == {str(log): 2}
    log.unlink()
    with pytest.raises(PipelineError, match=r"requests-1.jsonl.* was deleted with records in it"):
        reader.latestOffset(first, limit)
    assert reader.latestOffset({str(log): 4}, limit) == {str(log): 4}


@pytest.mark.timeout(30)
def test_a_file_that_is_shorter_than_planned_is_an_error(tmp_path: Path) -> None:
    """A truncated file, or another machine's file of that name, causes no endless loop and no batch without rows."""
    lines, arrow = tmp_path / "requests-1.jsonl", tmp_path / "requests-1.arrows"
    lines.write_text("a\nb\n")
    with pytest.raises(PipelineError, match=r"requests-1.jsonl ends at byte 4 on .*, expected byte 6 as the driver"):
        list(read_piece(Piece(str(lines), 0, 6)))
    lines.write_text("")
    with pytest.raises(PipelineError, match="ends at byte 2"):
        list(read_piece(Piece(str(lines), 2, 4)))
    with arrow.open("wb") as sink, pa.ipc.new_stream(sink, pa.schema([("sequence", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"sequence": [1]}))
    with pytest.raises(PipelineError, match=r"requests-1.arrows ends at batch 1 on .*, expected batch 3"):
        list(read_piece(Piece(str(arrow), 1, 3)))


def test_hidden_and_empty_files_are_left_alone(tmp_path: Path) -> None:
    for name in (".hidden.jsonl", "_checkpoint", "empty.log", "empty.arrows"):
        (tmp_path / name).touch()
    assert set(files(tmp_path).ends({}, None).values()) <= {0}


def test_a_folder_without_records(spark: SparkSession, tmp_path: Path) -> None:
    """A log without records has no rows, in a batch and as a stream; a path without a log is an error."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "empty.jsonl").touch()
    assert read_log(spark, LogSource.of_files(tmp_path / "log")).count() == 0
    done = ingest(spark, LogSource.of_files(tmp_path / "log"), tmp_path / "table")
    assert (done.rows, done.rejected) == (0, 0)
    for path in (tmp_path / "none", tmp_path / "log" / "*.arrows"):
        with pytest.raises(PipelineError, match="expected a log at"):
            read_log(spark, LogSource.of_files(path))


def test_a_file_that_has_shrunk_is_an_error(tmp_path: Path) -> None:
    """A truncated or replaced file is an error, since new lines up to the old length would be skipped."""
    log, arrow = tmp_path / "requests-1.jsonl", tmp_path / "requests-1.arrows"
    log.write_text("a\nb\nc\n")
    batch = pa.record_batch({"sequence": [1]})
    with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    start = files(tmp_path).ends({}, None)
    assert sorted(start.values()) == [2, 6]
    log.write_text("d\n")
    with pytest.raises(PipelineError, match=r"requests-1\.jsonl has 2 bytes and was read up to byte 6: it was cut"):
        files(log).ends(start, None)
    arrow.write_bytes(b"")
    with pytest.raises(PipelineError, match=r"requests-1\.arrows has 0 Arrow batches and was read up to batch 2"):
        files(arrow).ends(start, 10)


def test_executors_are_asked_for_a_log_that_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ingest, executors are checked first: otherwise a task fails with a file that exists on the driver."""
    (tmp_path / "requests-1.jsonl").write_text("a\n")
    asked: list[object] = []

    def refuse(spark: object, folder: object, files: list[str]) -> None:
        asked.extend([folder, *files])
        raise PipelineError("not shared")

    monkeypatch.setattr(log_reader, "require_shared", refuse, raising=False)
    with pytest.raises(PipelineError, match="not shared"):
        read_log(MagicMock(), LogSource.of_files(tmp_path))
    assert asked == [None, str(tmp_path / "requests-1.jsonl")]
