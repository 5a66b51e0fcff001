"""Moves of partitions between log folders that fail, or meet deletions and retention."""

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log.log_dir import LogDir
from kbroker.log.replica_mover import ReplicaMover
from tests.native.slow_read import SlowRead
from tests.support.broker import wait_for
from tests.support.errors import raising
from tests.support.log_manager import NOW_MS, Brokers, append, delete, kill, pass_time
from tests.support.log_moves import KEY, filled, finish, home, values


def moving_error(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = (line for line in caplog.messages if line.startswith("moving orders-0") and "failed" in line)
    return line


@pytest.mark.parametrize("suffix", [".log", ".txnindex"])
def test_a_source_that_cannot_be_read(
    brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    """The move ends with the reason, no folder is offline, and the partition can be moved later."""
    manager = filled(brokers)
    before = values(manager)
    file = folders[0] / "orders-0" / f"{0:020}{suffix}"
    kept = file.read_bytes() if file.exists() else None
    file.unlink(missing_ok=True)
    file.mkdir()
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert moving_error(caplog) == (
        f"moving orders-0 to {folders[1]} failed, and the partition stays in its folder: "
        f"[Errno 21] Is a directory: '{file}'"
    )
    assert (home(manager), manager.offline_dirs) == ("a", {})
    assert not list(folders[1].glob("orders*"))
    file.rmdir()
    if kept is not None:
        file.write_bytes(kept)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert (home(manager), values(manager)) == ("b", before)


def test_a_move_without_memory(
    brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move ends with the reason, and the partition can be moved and compacted later."""
    manager = filled(brokers)
    before = values(manager)
    with monkeypatch.context() as patch:
        patch.setattr(ReplicaMover, "_copy", raising(MemoryError("no memory")))
        manager.move_partition(*KEY, str(folders[1]))
        finish(manager)
    assert moving_error(caplog).endswith("and the partition stays in its folder: MemoryError('no memory')")
    assert manager.cleaner.hold(KEY)
    manager.cleaner.release(KEY)
    assert not list(folders[1].glob("orders*"))
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert (home(manager), values(manager)) == ("b", before)


def test_a_source_that_is_shorter_than_its_log(
    brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A segment that lost its tail is not moved, as the copy would lack acknowledged records."""
    manager = filled(brokers)
    file = folders[0] / "orders-0" / f"{0:020}.log"
    size = file.stat().st_size
    os.truncate(file, size - 1)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert moving_error(caplog).endswith(f": '{file}' ends before byte {size}")
    assert (home(manager), manager.offline_dirs) == ("a", {})


def test_a_segment_removed_by_hand(brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """A missing file of a segment that the log still has ends the move."""
    manager = filled(brokers)
    file = folders[0] / "orders-0" / f"{3:020}.log"
    file.unlink()
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert moving_error(caplog).endswith(f"[Errno 2] No such file or directory: '{file}'")
    assert home(manager) == "a"


def test_segments_removed_by_retention_during_a_move(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """Segments removed before and after their copy are in neither folder, and the move is completed."""
    monkeypatch.setattr("kbroker.log.replica_mover.STEP_BYTES", 200)
    monkeypatch.setattr("kbroker.log.replica_mover.TAIL_BYTES", 0)
    manager = filled(brokers, file_delete_delay_ms=0)
    log = manager.partition(*KEY)
    copy = ReplicaMover._copy_segment
    steps: list[int] = []

    def copy_late(self: ReplicaMover, folder: Path, future: Any, segment: Any, *rest: Any) -> int:
        steps.append(segment.base_offset)
        if segment.base_offset == 3:
            log.delete_records(6)
            log.apply_retention(clock.wall_ms())
            pass_time(manager, clock, 1)
            assert not (folder / f"{3:020}.log").exists()
        return copy(self, folder, future, segment, *rest)

    monkeypatch.setattr(ReplicaMover, "_copy_segment", copy_late)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert (steps[:2], home(manager)) == ([0, 3], "b")
    assert sorted(path.name for path in (folders[1] / "orders-0").glob("*.log")) == [f"{6:020}.log"]
    assert (log.log_start_offset, log.log_end_offset) == (6, 12)
    before = values(manager)
    kill(manager)
    manager, report = brokers.start((("orders", 1),), segment_ms=1000)
    assert (report.failures, report.damaged, values(manager)) == ({}, {}, before)


@pytest.mark.parametrize("which", [0, 1])
def test_a_folder_that_fails_before_a_step(
    brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture, which: int
) -> None:
    """A move from or to a folder that went offline ends with its failure."""
    manager = filled(brokers)
    manager.move_partition(*KEY, str(folders[1]))
    manager._dirs[which].note_failure("reading", OSError(errno.EIO, "broken"))
    finish(manager)
    assert moving_error(caplog).endswith(f": log folder {folders[which]} is offline: reading: [Errno 5] broken")
    assert home(manager) == "a"


def test_log_starts_that_cannot_be_written(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition is not moved without its log start offset: deleted records would be back after a restart."""
    manager = filled(brokers)
    monkeypatch.setattr(manager.tasks, "write_log_starts", lambda *folders: {KEY})
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert moving_error(caplog).endswith(": the log start offsets could not be written")
    assert (home(manager), manager.offline_dirs) == ("a", {})


def test_a_former_folder_that_cannot_be_removed(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is complete, and the next start removes the former folder by the note in the new one."""
    manager = filled(brokers)
    before = values(manager)
    with monkeypatch.context() as patch:
        patch.setattr(LogDir, "rename_for_delete", raising(OSError(errno.ENOSPC, "full")))
        manager.move_partition(*KEY, str(folders[1]))
        finish(manager)
    assert home(manager) == "b"
    assert [(folder / "orders-0").exists() for folder in folders] == [True, True]
    append(manager, time=NOW_MS + 900_000)
    kill(manager)
    manager, report = brokers.start((("orders", 1),), segment_ms=1000)
    assert (report.failures, home(manager)) == ({}, "b")
    assert values(manager)[: len(before)] == before
    assert manager.partition(*KEY).log_end_offset == 13
    assert not (folders[0] / "orders-0").exists()


def test_a_partition_deleted_in_the_last_step(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is removed."""
    manager = filled(brokers)
    write = manager.cleaner.write_offsets

    def delete_too(keys: list[tuple[str, int]]) -> None:
        delete(manager, *KEY)
        write(keys)

    monkeypatch.setattr(manager.cleaner, "write_offsets", delete_too)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert not list(folders[1].glob("orders*"))
    assert manager.cleaner.hold(KEY)


def test_a_partition_deleted_during_the_copy(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is removed, and the log names no failure: the partition does not stay in its folder."""
    manager = filled(brokers)
    copy = ReplicaMover._copy_segment

    def delete_first(*args: Any) -> int:
        delete(manager, *KEY)
        return copy(*args)

    monkeypatch.setattr(ReplicaMover, "_copy_segment", delete_first)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert not list(folders[1].glob("orders*"))
    assert [line for line in caplog.messages if "failed" in line] == []
    assert manager.cleaner.hold(KEY)


def test_a_second_request_for_a_move_and_a_stop(brokers: Brokers, folders: list[Path]) -> None:
    """A repeated request for a move is one move; after a stop no step runs, and the next start begins it again."""
    manager = filled(brokers)
    before = values(manager)
    manager.move_partition(*KEY, str(folders[1]))
    future = manager._hosted[KEY].future
    manager.move_partition(*KEY, str(folders[1]))
    assert manager._hosted[KEY].future is future
    assert future is not None
    future.folder.mkdir()
    manager.close()
    manager.mover._step(KEY, future)
    assert not list(future.folder.iterdir())
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    finish(manager)
    assert (home(manager), values(manager)) == ("b", before)


@pytest.mark.skipif(sys.platform != "linux", reason="the states of threads are in /proc")
def test_a_move_sleeps_while_a_read_of_the_former_folder_hangs(brokers: Brokers, folders: list[Path]) -> None:
    """The read may take minutes on a failing disk; a move that waits for the read's end uses no CPU meanwhile."""
    manager = filled(brokers)
    log = manager.partition(*KEY)
    assert log is not None
    read = SlowRead(log)
    manager.move_partition(*KEY, str(folders[1]))
    moving = threading.Thread(target=finish, args=(manager,))
    moving.start()
    stat = Path(f"/proc/self/task/{moving.native_id}/stat")

    def sleeps() -> bool:
        return all(stat.read_text().rpartition(")")[2].split()[0] == "S" for _ in range(100))

    try:
        wait_for("the log continues in the new folder", lambda: log.directory == str(folders[1] / "orders-0"))
        wait_for("the move sleeps", sleeps, 10)
        assert (folders[0] / "orders-0").exists()
    finally:
        read.end()
        moving.join(20)
    assert not (folders[0] / "orders-0").exists()
    assert home(manager) == "b"
