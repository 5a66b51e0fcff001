"""The writer and its files: each record is written or counted as dropped, and the oldest files are deleted."""

import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.request_log_names import file_name, is_file_name
from kbroker.common.rolling_files import RollingFiles
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import columns
from kbroker.request_log._json_lines import JsonLines
from kbroker.request_log.arrow_form import ArrowForm
from kbroker.request_log.writer import RequestLogWriter
from tests.native.request_log_samples import longest_line
from tests.support.closing import close_at_end
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.log_files import memory_log
from tests.support.request_log import NAMES, START_MS, Bench


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def rolling(folder: Path, clock: VirtualClock | None = None, **limits: Any) -> RollingFiles:
    limits = {"file_bytes": 1 << 20, "file_count": 10, **limits}
    return close_at_end(RollingFiles(str(folder), ".jsonl", clock or VirtualClock(START_MS), **limits))


def make_writer(bench: Bench, files: Any = None, logs: Any = None, partitions: int = 0) -> RequestLogWriter:
    form = JsonLines(7, NAMES, partitions=partitions, wants_lines=files is not None)
    return RequestLogWriter(bench.core, form, form, bench.clock, files, logs)


def rows(log: PartitionLog) -> list[tuple[bytes, dict[str, Any]]]:
    table = columns(log.read(0, 1 << 26).records)
    return [(key, json.loads(value)) for key, value in zip(table.keys, table.values, strict=True)]  # type: ignore[call-overload]


bench = fixture_of(Bench)


def test_a_file_is_followed_by_another_and_the_oldest_goes(tmp_path: Path) -> None:
    """Files are ordered by their number, including files of an earlier process."""
    files = rolling(tmp_path, file_bytes=10, file_count=2)
    for part in (b"one\n", b"two\ntwo\n", b"three\n", b"four.four.four\n", b"five\n"):
        files.write(part)
    assert files_in(tmp_path) == [file_name(START_MS, 2, ".jsonl"), file_name(START_MS, 3, ".jsonl")]
    assert (tmp_path / file_name(START_MS, 2, ".jsonl")).read_bytes() == b"three\nfour.four.four\n"
    files.close()
    again = rolling(tmp_path, VirtualClock(0), file_count=2)
    again.write(b"six\n")
    assert files_in(tmp_path) == [file_name(0, 4, ".jsonl"), file_name(START_MS, 3, ".jsonl")]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Only files with names of the log are counted and deleted."""
    (tmp_path / "requests-mine.jsonl").write_text("x")
    (tmp_path / "notes.txt").write_text("x")
    files = rolling(tmp_path, file_count=1)
    for _ in range(3):
        files.write(b"x\n")
        files.close()
    assert files_in(tmp_path) == ["notes.txt", file_name(START_MS, 3, ".jsonl"), "requests-mine.jsonl"]
    assert is_file_name(file_name(START_MS, 3, ".jsonl"), ".jsonl")
    assert file_name(START_MS, 3, ".jsonl") == "requests-20260102T030405Z-000003.jsonl"


def test_records_are_in_files_and_topic(bench: Bench, tmp_path: Path) -> None:
    """Files and topic have the same objects. The key names the client, whose records are all in one partition."""
    logs = [memory_log("log", number, bench.clock) for number in range(4)]
    writer = make_writer(bench, rolling(tmp_path), lambda: logs, 4)
    for number in range(40):
        bench.connect(b"User:u%d" % (number % 8)).record(client_id=b"c", correlation_id=number)
    writer.flush()
    (name,) = files_in(tmp_path)
    in_file = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    found = [rows(log) for log in logs]
    in_topic = [(key, record) for one in found for key, record in one]
    assert len(in_topic) == 40
    assert sorted(in_file, key=lambda r: r["sequence"]) == sorted(
        (record for _, record in in_topic), key=lambda r: r["sequence"]
    )
    assert {key for key, _ in in_topic} == {b"User:u%d\0c" % number for number in range(8)}
    assert all(key == f"{r['principal']}\0{r['requestHeader']['clientId']}".encode() for key, r in in_topic)
    for user in range(8):
        assert sum(any(key == b"User:u%d\0c" % user for key, _ in one) for one in found) == 1
    assert (writer.written, writer.dropped) == (40, 0)
    assert writer.written_bytes > len((tmp_path / name).read_bytes())


def test_a_close_while_the_topic_cannot_be_created(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are in the file, which is ended, and the stop of the broker continues."""
    files = rolling(tmp_path)
    writer = make_writer(bench, files, raising(KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full")), 1)
    bench.connect().record(client_id=b"c")
    writer.stop()
    writer.run()
    writer.close()
    (name,) = files_in(tmp_path)
    assert (tmp_path / name).read_bytes().count(b"\n") == 1
    assert files._fd == -1
    assert "the disk is full" in caplog.text


def test_a_topic_that_cannot_be_created_is_one_line_a_minute(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The writer retries the creation every 100 ms."""
    writer = make_writer(bench, None, raising(KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full")), 1)
    writer.stop()
    writer.run()
    writer.close()
    assert caplog.text.count("the request log cannot be written") == 1


@pytest.mark.parametrize("event_kind", range(5))
def test_the_longest_line_has_room(event_kind: int) -> None:
    """The memory for a line suffices for the longest text of each field and event, without an event exactly."""
    line, most = longest_line(JsonLines(-(2**31), {127: "X" * 64}), event_kind)
    assert json.loads(line)["requestHeader"]["requestApiKeyName"] == "X" * 64
    assert len(line) <= most
    assert event_kind != 0 or len(line) == most


def test_many_records_make_batches_of_a_bounded_size() -> None:
    """Two thousand records of a kilobyte are written in several batches, in order, with their timestamps."""
    bench = Bench(buffer_bytes=1 << 23)
    log = memory_log("log", 0, bench.clock)
    writer = make_writer(bench, None, lambda: [log], 1)
    one = bench.connect()
    at = bench.now_ns()
    for number in range(2000):
        one.record(client_id=b"x" * 500, correlation_id=number, response_sent_ns=at + number * 10**6)
    writer.flush()
    table = columns(log.read(0, 1 << 26).records)
    assert [json.loads(value)["requestHeader"]["correlationId"] for value in table.values] == list(range(2000))  # type: ignore[attr-defined]
    assert list(memoryview(table.timestamps_ms)) == [START_MS + number for number in range(2000)]
    assert log.log_end_offset == 2000


class FullDisk:
    """Files that cannot be written while ``is_full`` is true."""

    def __init__(self, is_full: bool = True) -> None:
        self.is_full = is_full
        self.data = b""

    def write(self, data: bytes) -> None:
        if self.is_full and data:
            raise OSError(28, "No space left on device")
        self.data += data

    def close(self) -> None:
        pass


def test_what_a_disk_refuses_is_counted_and_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """At most one warning a minute is logged, and later records are written."""
    disk = FullDisk()
    writer = make_writer(bench, disk)
    one = bench.connect()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.record(count=5)
            writer.flush()
        assert [r.getMessage() for r in caplog.records] == [
            "the request log has dropped 5 records: [Errno 28] No space left on device"
        ]
        assert (writer.written, writer.dropped) == (0, 15)
        disk.is_full = False
        bench.clock.advance_ms(60_000)
        one.record()
        writer.flush()
    assert len(caplog.records) == 2
    assert json.loads(disk.data)["sequence"] == 16
    assert (writer.written, writer.dropped) == (1, 15)


def test_a_partition_that_is_not_there_is_a_drop_and_no_end(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The topic may be deleted while records are appended."""
    logs: list[Any] = [None]
    writer = make_writer(bench, None, lambda: logs, 1)
    one = bench.connect()
    one.record(count=3)
    writer.flush()
    assert (writer.written, writer.dropped) == (0, 3)
    logs = [memory_log("log", 0, bench.clock)]
    one.record()
    writer.flush()
    assert [record["sequence"] for _, record in rows(logs[0])] == [4]
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("form", [JsonLines, ArrowForm])
def test_a_topic_that_was_created_again_with_fewer_partitions(bench: Bench, form: Any) -> None:
    """The records of the missing partitions are in the others, those of a client in one."""
    more = {"compression": "none"} if form is ArrowForm else {}
    made = form(7, NAMES, partitions=5, wants_lines=False, **more)
    logs = [memory_log("log", number, bench.clock) for number in range(2)]
    writer = RequestLogWriter(bench.core, getattr(made, "columns", made), made, bench.clock, None, lambda: logs)
    for number in range(40):
        bench.connect(b"User:u%d" % number).record()
    writer.flush()
    assert (writer.written, writer.dropped) == (40, 0)
    assert all(log.log_end_offset > 0 for log in logs)


def test_a_full_buffer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(buffer_bytes=4096)
    disk = FullDisk(is_full=False)
    writer = make_writer(bench, disk)
    bench.connect().record(count=100)
    writer.flush()
    assert writer.dropped == bench.core.dropped > 0
    assert writer.written == 100 - writer.dropped
    assert "the buffer was full (kbroker.request.log.buffer.bytes)" in caplog.text


def tear_the_next_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the next write store three bytes and fail; return a function that repairs the disk."""
    real = os.write
    calls = []

    def torn(fd: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[:3])

    monkeypatch.setattr(os, "write", torn)
    return lambda: monkeypatch.setattr(os, "write", real)


def test_a_write_that_failed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is counted as dropped is not in the file, and the file remains in use."""
    files = rolling(tmp_path)
    files.write(b"whole\n")
    mend = tear_the_next_write(monkeypatch)
    with pytest.raises(OSError, match="No space"):
        files.write(b"torn line\n")
    mend()
    files.write(b"next\n")
    assert [(tmp_path / name).read_bytes() for name in files_in(tmp_path)] == [b"whole\nnext\n"]


def test_a_write_that_tore_a_line_is_followed_by_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file cannot be truncated, nothing is written after the incomplete line, which readers drop."""
    files = rolling(tmp_path)
    files.write(b"whole\n")
    mend = tear_the_next_write(monkeypatch)
    monkeypatch.setattr(os, "ftruncate", raising(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="No space"):
        files.write(b"torn line\n")
    mend()
    files.write(b"next\n")
    contents = [(tmp_path / name).read_bytes() for name in files_in(tmp_path)]
    assert contents == [b"whole\ntor", b"next\n"]


def test_a_disk_that_fails_costs_no_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated failures create one new file and delete no older file; the next successful write deletes the oldest."""
    for number in range(3):
        earlier = rolling(tmp_path)
        earlier.write(b"history %d\n" % number)
        earlier.close()
    before = files_in(tmp_path)
    files = rolling(tmp_path, file_count=len(before))
    real = os.write
    monkeypatch.setattr(os, "write", raising(OSError(28, "No space left on device")))
    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            files.write(b"record\n")
    assert files_in(tmp_path)[:-1] == before
    monkeypatch.setattr(os, "write", real)
    files.write(b"record\n")
    assert [(tmp_path / name).read_bytes() for name in files_in(tmp_path)] == [
        b"history 1\n", b"history 2\n", b"record\n",
    ]  # fmt: skip


def test_old_files_that_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are written, so the write does not fail; the next new file deletes the old ones."""
    files = rolling(tmp_path, file_count=1, file_bytes=1)
    files.write(b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", raising(OSError(30, "Read-only file system")))
        files.write(b"two\n")
    assert "cannot be ended, or an old one not be deleted: [Errno 30] Read-only file system" in caplog.text
    assert len(files_in(tmp_path)) == 2
    files.write(b"three\n")
    assert [(tmp_path / name).read_bytes() for name in files_in(tmp_path)] == [b"three\n"]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
def test_a_deleted_folder_is_made_again(tmp_path: Path) -> None:
    """Records do not go to a deleted file."""
    files = rolling(tmp_path / "log")
    files.write(b"lost\n")
    shutil.rmtree(tmp_path / "log")
    files.write(b"kept\n")
    assert [(tmp_path / "log" / name).read_bytes() for name in files_in(tmp_path / "log")] == [b"kept\n"]


def test_a_stop_writes_what_is_there(bench: Bench) -> None:
    """A stop also writes folded polls whose second has not passed."""
    disk = FullDisk(is_full=False)
    writer = make_writer(bench, disk)
    one = bench.connect()
    one.record()
    one.record(api_key=1, brought_nothing=True)
    writer.stop()
    writer.run()
    assert [json.loads(line)["sequence"] for line in disk.data.splitlines()] == [1, 2]


def test_the_thread_writes_when_time_passes(bench: Bench) -> None:
    """The writer writes every 100 ms of the broker's clock."""
    disk = FullDisk(is_full=False)
    wrote = threading.Event()
    disk_write = disk.write

    def write(data: bytes) -> None:
        disk_write(data)
        if data:
            wrote.set()

    disk.write = write  # type: ignore[method-assign]
    writer = make_writer(bench, disk)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        bench.connect().record()
        while not wrote.wait(0.001):
            bench.clock.advance_ms(50)
    finally:
        writer.stop()
        thread.join()
    assert json.loads(disk.data)["sequence"] == 1


def test_a_stop_during_a_write_is_followed_by_a_last_one() -> None:
    """The last write, after a stop, includes the idle polls of the current second."""
    writes: list[bool] = []
    writer: Any = RequestLogWriter.__new__(RequestLogWriter)
    writer._stopping = False
    writer._core = SimpleNamespace(wait=lambda ms: None, wake=lambda: None)

    def write(unfold: bool) -> None:
        writes.append(unfold)
        writer.stop()

    writer._try_flush = write
    writer.run()
    assert writes == [False, True]
