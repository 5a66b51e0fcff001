"""Former folders after moves: a removal or another step fails, or an offline log folder returns."""

import errno
import os
import shutil
import threading
import uuid
from pathlib import Path

import pytest

from kbroker.common.errors import Errors
from kbroker.log import checkpoints
from kbroker.log.log_dir import LogDir
from kbroker.log.scheduler import Scheduler
from tests.support.errors import raising
from tests.support.log_manager import NOW_MS, Brokers, append, batch, kill
from tests.support.log_moves import KEY, filled, finish, home, homes, values


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("times", [1, 2])
def test_a_promotion_whose_sync_fails(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, number: int, times: int
) -> None:
    """The copy is renamed back, or the next start would remove the folder in use.

    If that fails too, the partition takes no appends.
    """
    manager = filled(brokers)
    sync_folder = checkpoints.sync_folder
    left = [times]

    def fail(folder: Path) -> None:
        if folder == folders[1] and (folder / "orders-0").exists() | (left[0] < times) and left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        sync_folder(folder)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "sync_folder", fail)
        manager.move_partition(*KEY, str(folders[1]))
        finish(manager)
    assert left == [0]
    assert home(manager) == "a"
    log = manager.partition(*KEY)
    assert log is not None
    assert log.append(batch(time=NOW_MS + 900_000)).error == (0 if times == 1 else Errors.KAFKA_STORAGE_ERROR)
    before = values(manager)
    kill(manager)
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    assert home(manager) == "a"
    assert values(manager) == before


@pytest.mark.parametrize("metadata", ["as written", "with Kafka's line break", "empty after a power cut"])
def test_a_former_folder_that_stays_is_removed_before_the_next_move(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    """A move back does not end with two folders that each replace the other."""
    manager = filled(brokers)
    with monkeypatch.context() as patch:
        patch.setattr(LogDir, "rename_for_delete", raising(OSError(errno.ENOSPC, "full")))
        manager.move_partition(*KEY, str(folders[1]))
        finish(manager)
    assert homes(folders) == {"a": 1, "b": 1}
    path = folders[0] / "orders-0" / checkpoints.PARTITION_METADATA
    path.write_bytes({"a": path.read_bytes(), "w": path.read_bytes() + b"\n", "e": b""}[metadata[0]])
    append(manager, time=NOW_MS + 900_000)
    before = values(manager)
    manager.move_partition(*KEY, str(folders[0]))
    finish(manager)
    assert homes(folders) == {"a": 1}
    assert values(manager) == before
    kill(manager)
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    assert (home(manager), values(manager)) == ("a", before)


def test_a_folder_of_another_topic_in_the_way(brokers: Brokers, folders: list[Path]) -> None:
    """A folder of another topic is renamed, as for a new topic; the move succeeds, and the log folder stays online."""
    filled(brokers).close()
    stray = folders[1] / "orders-0"
    stray.mkdir()
    checkpoints.write_partition_metadata(stray, uuid.uuid4())
    (stray / f"{0:020}.log").write_bytes(b"records")
    manager, report = brokers.start((("orders", 1),), segment_ms=1000)
    assert report.unknown_folders == [stray]
    before = values(manager)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert (home(manager), manager.offline_dirs, values(manager)) == ("b", {}, before)
    (kept,) = folders[1].glob("orders-0.*-stray")
    assert (kept / f"{0:020}.log").read_bytes() == b"records"


def test_the_note_of_an_earlier_move_is_gone_from_the_disk_before_the_next_move(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut that brings back the note of the former folder would make a start remove the later one."""
    manager = filled(brokers)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    synced: list[Path] = []
    sync_folder = checkpoints.sync_folder

    def note(folder: Path) -> None:
        synced.append(folder)
        sync_folder(folder)

    monkeypatch.setattr(checkpoints, "sync_folder", note)
    manager.move_partition(*KEY, str(folders[0]))
    finish(manager)
    assert synced.index(folders[1] / "orders-0") < synced.index(folders[0])


def test_a_folder_that_comes_back_after_two_moves(brokers: Brokers, folders: list[Path], tmp_path: Path) -> None:
    """A former folder in a log folder that is offline is removed when it returns, even after another move."""
    folders.append(tmp_path / "c")
    manager = filled(brokers)
    manager.move_partition(*KEY, str(folders[1]))
    shutil.copytree(folders[0] / "orders-0", tmp_path / "kept")
    finish(manager)
    manager.close()
    shutil.move(tmp_path / "kept", folders[0] / "orders-0")  # as if the process had ended before the removal
    source = checkpoints.read_meta_properties(folders[0])
    assert source is not None
    assert source.directory_id is not None
    checkpoints.write_moved_from(folders[1] / "orders-0", [source.directory_id])
    os.rename(folders[0], tmp_path / "away")
    folders[0].write_text("a failed disk")
    brokers.folders = [folders[1], folders[0], folders[2]]
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    append(manager, time=NOW_MS + 900_000)
    before = values(manager)
    manager.move_partition(*KEY, str(folders[2]))
    finish(manager)
    assert home(manager) == "c"
    manager.close()
    folders[0].unlink()
    os.rename(tmp_path / "away", folders[0])
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    assert (home(manager), values(manager)) == ("c", before)
    assert homes(folders) == {"c": 1}
    assert not (folders[2] / "orders-0" / checkpoints.MOVED_FROM).exists()


def test_a_stop_while_a_move_ends(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop waits until the move has scheduled the removal of the former folder; no traceback is logged."""
    manager = filled(brokers)
    is_copied, is_stopping = threading.Event(), threading.Event()
    write_log_starts, close = manager.tasks.write_log_starts, Scheduler.close

    def write_late(*folders: LogDir) -> set[tuple[str, int]]:
        is_copied.set()
        assert is_stopping.wait(10)
        return write_log_starts(*folders)

    def note_close(self: Scheduler, timeout_s: float = 10.0) -> bool:
        if self is manager.mover.scheduler:
            is_stopping.set()
            stepping.join(10)  # as the close waits for the scheduler's own thread
        return close(self, timeout_s)

    monkeypatch.setattr(manager.tasks, "write_log_starts", write_late)
    monkeypatch.setattr(Scheduler, "close", note_close)
    manager.mover.start()
    manager.move_partition(*KEY, str(folders[1]))
    stepping = threading.Thread(target=manager.mover.scheduler.run_due)
    stepping.start()
    assert is_copied.wait(10)
    manager.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert homes(folders) == {"b": 1}
