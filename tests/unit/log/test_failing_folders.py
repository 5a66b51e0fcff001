"""Log folders whose disk fails at the start, while partitions are created and deleted, and in the background."""

import errno
import logging
import os
import shutil
import threading
import uuid
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.log import checkpoints
from kbroker.log._partition_log import PartitionLog
from kbroker.log.deletion_note import DeletionNote
from kbroker.log.hosted_logs import FutureReplica, PartitionEntry
from kbroker.log.log_dir import LogDir, LogDirError
from kbroker.log.manager import LogManager
from tests.support.errors import raising
from tests.support.log_manager import ID, Brokers, append, batch, create, delete, pass_time

BROKEN = "[Errno 5] Input/output error"


def fail_in(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, number: int = errno.EIO) -> None:
    """Make an operation of one log folder fail."""
    real = getattr(LogDir, name)

    def fail(self: LogDir, *args: object, **options: object) -> object:
        if self.path == folder:
            raise OSError(number, os.strerror(number))
        return real(self, *args, **options)

    monkeypatch.setattr(LogDir, name, fail)


def refused_creation(manager: LogManager, topic: str, partition: int) -> tuple[Errors, str]:
    with pytest.raises(KafkaError) as refused:
        create(manager, topic, partition, ID, BrokerConfig().topic_configs({}))
    return refused.value.error, refused.value.message


# -- start -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["folders", "sync"])
def test_one_of_two_folders_fails_at_the_start(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The folder is offline with the reason, and the partitions of the other are served."""
    brokers.start((("orders", 4),))[0].close()
    fail_in(monkeypatch, step, folders[1])
    manager, report = brokers.start((("orders", 4),))
    what = {"folders": "reading the log folder", "sync": "syncing the names of its folders"}[step]
    assert manager.offline_dirs == {folders[1]: f"{what}: {BROKEN}"}
    found = {key for key, _ in manager._hosted.items()}
    kept = {("orders", index) for index in range(4) if (folders[0] / f"orders-{index}").exists()}
    assert len(kept) == 2
    assert kept <= found
    for _, partition in kept:
        append(manager, partition)
    assert set(report.failures) == {("orders", index) for index in range(4)} - found


@pytest.mark.parametrize("step", ["folders", "sync"])
def test_the_only_folder_fails_at_the_start(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The start ends with the error, and the next start has all records."""
    manager, _ = brokers.start()
    append(manager)
    manager.close()
    with monkeypatch.context() as patch:
        fail_in(patch, step, tmp_path)
        with pytest.raises(OSError, match="Input/output error"):
            brokers.start()
        brokers.open[-1].close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    manager, report = brokers.start()
    assert report.failures == {}
    assert manager.partition("orders", 0).log_end_offset == 1


def test_a_note_of_deletions_that_cannot_be_written_at_the_start(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk the start continues without the file of the note."""
    monkeypatch.setattr(DeletionNote, "prepare", raising(OSError(errno.ENOSPC, "No space left on device")))
    manager, report = brokers.start()
    append(manager)
    assert (report.failures, manager.offline_dirs) == ({}, {})
    assert caplog.messages.count(
        f"{tmp_path}: noting that no topic is being deleted failed, the disk is full: "
        "[Errno 28] No space left on device"
    ) == 1  # fmt: skip


def test_a_note_of_deletions_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A note that cannot be read, or is not ASCII, has no topics, and a warning reports this."""
    note = DeletionNote(tmp_path)
    note.path.write_bytes(b"\xff")
    assert note.read() == frozenset()
    note.path.unlink()
    note.path.mkdir()
    assert note.read() == frozenset()
    reasons = [line.removeprefix(f"{note.path} cannot be read and is ignored: ") for line in caplog.messages]
    assert reasons == [
        "'ascii' codec can't decode byte 0xff in position 0: ordinal not in range(128)",
        f"[Errno 21] Is a directory: '{note.path}'",
    ]


def test_a_folder_whose_owner_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected failure releases the lock of the folder."""
    with monkeypatch.context() as patch:
        patch.setattr(LogDir, "_claim", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            LogDir(tmp_path)
        patch.setattr(LogDir, "_claim", lambda *args: os.close(-1))
        with pytest.raises(LogDirError, match=f"the log folder {tmp_path} cannot be written: Bad file descriptor"):
            LogDir(tmp_path)
    LogDir(tmp_path).close(clean=False)


def test_a_mark_of_a_clean_stop_that_cannot_be_written(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop continues, and the next start checks the records."""
    manager, _ = brokers.start()
    append(manager)
    (tmp_path / ".kafka_cleanshutdown").mkdir()
    manager.close()
    assert any("is offline: writing the clean-shutdown mark: [Errno 21]" in line for line in caplog.messages)
    (tmp_path / ".kafka_cleanshutdown").rmdir()
    manager, report = brokers.start()
    assert not report.was_clean
    assert manager.partition("orders", 0).log_end_offset == 1


def test_a_folder_of_another_topic_beside_the_one_that_is_served(brokers: Brokers, folders: list[Path]) -> None:
    """A folder of the partition's name with another topic id remains, and is reported."""
    manager, _ = brokers.start((("orders", 1),))
    append(manager)
    manager.close()
    other = folders[1] / "orders-0"
    other.mkdir()
    checkpoints.write_partition_metadata(other, uuid.UUID(int=99))
    manager, report = brokers.start((("orders", 1),))
    assert report.unknown_folders == [other]
    assert other.exists()
    assert manager.partition("orders", 0).log_end_offset == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version: 1\n", "expected the lines 'version: 0' and 'directory_id: ID'"),
        ("version: 0\ndirectory_id: short\n", "not an id of 22 base64 characters: 'short'"),
    ],
)
def test_a_damaged_note_of_a_move(
    brokers: Brokers, folders: list[Path], caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    """The partition is served, and a warning has the damage."""
    manager, _ = brokers.start((("orders", 1),))
    append(manager)
    manager.close()
    note = folders[0] / "orders-0" / checkpoints.MOVED_FROM
    note.write_text(text)
    manager, report = brokers.start((("orders", 1),))
    assert report.failures == {}
    assert manager.partition("orders", 0).log_end_offset == 1
    assert f"{note}: {note}: {reason}" in caplog.messages


def test_a_file_in_place_of_a_partition_folder(brokers: Brokers, tmp_path: Path) -> None:
    """Only this partition is offline, with the reason; the others of the folder take records."""
    brokers.start()[0].close()
    shutil.rmtree(tmp_path / "orders-0")
    (tmp_path / "orders-0").touch()
    manager, report = brokers.start()
    reason = f"{tmp_path / 'orders-0'}: expected the folder of a partition, found a file: move it away"
    assert report.failures == {("orders", 0): reason}
    assert manager.offline_dirs == {}
    append(manager, 1)


def test_a_partition_folder_of_another_user(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this partition is offline; a log folder in which none can be made is offline as a whole."""
    brokers.start()[0].close()
    (tmp_path / "orders-0" / checkpoints.PARTITION_METADATA).unlink()
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(checkpoints, "write_partition_metadata", raising(denied))
    manager, report = brokers.start()
    assert report.failures == {("orders", 0): "[Errno 13] Permission denied"}
    assert manager.offline_dirs == {}
    append(manager, 1)
    monkeypatch.setattr(Path, "mkdir", raising(denied))
    assert refused_creation(manager, "more", 0) == (Errors.KAFKA_STORAGE_ERROR, "[Errno 13] Permission denied")
    assert manager.offline_dirs == {tmp_path: "making the folder of more-0: [Errno 13] Permission denied"}


# -- partitions --------------------------------------------------------------------------------------------------------


def test_names_that_cannot_be_synced(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation is refused with the reason, and the folder is offline."""
    manager, _ = brokers.start()
    fail_in(monkeypatch, "sync", tmp_path)
    assert refused_creation(manager, "more", 0) == (Errors.KAFKA_STORAGE_ERROR, BROKEN)
    assert manager.offline_dirs == {tmp_path: f"syncing the names of its folders: {BROKEN}"}


def test_a_partition_of_an_offline_folder_is_not_created_elsewhere(brokers: Brokers, folders: list[Path]) -> None:
    """The creation of a partition whose folder is on an offline disk is refused, as its records are there."""
    manager, _ = brokers.start((("orders", 2),))
    lost = next(log_dir for log_dir in manager._dirs if log_dir.path == folders[1])
    (lost.path / "more-0").mkdir()
    lost.note_failure("reading", OSError(errno.EIO, "broken"))
    assert refused_creation(manager, "more", 0) == (
        Errors.KAFKA_STORAGE_ERROR,
        f"log folder {folders[1]} is offline: reading: [Errno 5] broken",
    )
    manager.sync_folders()  # that of the online folder
    create(manager, "more", 1, ID, BrokerConfig().topic_configs({}))
    assert (folders[0] / "more-1").exists()


def test_a_topic_name_that_no_folder_can_have(brokers: Brokers) -> None:
    manager, _ = brokers.start()
    with pytest.raises(ValueError, match=r"not a valid partition: topic '\.\./up', partition 0"):
        create(manager, "../up", 0, ID, BrokerConfig().topic_configs({}))


def test_an_unopened_partition_that_cannot_be_deleted(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic of a folder that is neither opened nor renamed remains in the note, and a later start deletes it."""
    manager, _ = brokers.start()
    append(manager, 1)
    manager.close()
    (tmp_path / "orders-1" / f"{0:020}.log").unlink()
    (tmp_path / "orders-1" / f"{0:020}.log").mkdir()
    manager, report = brokers.start()
    assert set(report.failures) == {("orders", 1)}
    manager.deletions.add([ID])
    with monkeypatch.context() as patch:
        patch.setattr(LogDir, "rename_for_delete", raising(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(KafkaError, match="No space left"):
            manager.delete_topics({"orders": [0, 1]}, [ID])
    line = f"{tmp_path}: deleting orders-0 failed, the disk is full: [Errno 28] No space left"
    assert [one for one in caplog.messages if "deleting" in one] == [line]  # that of orders-1 is of the same minute
    assert DeletionNote(tmp_path).read() == {ID}
    manager.close()
    manager, report = brokers.start(())
    assert not list(tmp_path.glob("orders*"))
    assert manager.deletions.remembered() == {ID}
    manager.deletions.forget([ID])
    assert DeletionNote(tmp_path).read() == frozenset()


# -- background --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_background_work_that_fails(brokers: Brokers, caplog: pytest.LogCaptureFixture, in_memory: bool) -> None:
    """A failed task of a partition is logged, even in memory, unless the partition is closed or deleted."""
    manager, _ = brokers.start(in_memory=in_memory)
    hosted = manager._hosted["orders", 0]
    caplog.set_level(logging.INFO)
    full, closed = raising(OSError(errno.ENOSPC, "full")), raising(ValueError("the log is closed"))
    assert manager._hosted.guarded(hosted, "rolling", ("orders", 0), full) == (False, None)
    manager._hosted.note_failed(("orders", 0), "compaction", OSError(errno.ENOSPC, "full"))
    assert manager._hosted.guarded(hosted, "rolling", ("orders", 0), closed) == (False, None)
    delete(manager, "orders", 1)
    manager._hosted.note_failed(("orders", 1), "compaction", OSError(errno.ENOSPC, "full"))
    prefix = "" if in_memory else f"{brokers.folder}: "
    suffix = "" if in_memory else ", the disk is full"
    wanted = [
        (logging.ERROR, f"{prefix}rolling of orders-0 failed{suffix}: [Errno 28] full"),
        (logging.ERROR, f"{prefix}compaction of orders-0 failed{suffix}: [Errno 28] full"),
        (logging.INFO, "rolling of orders-0: the log is closed"),
        (logging.INFO, "compaction of orders-1: [Errno 28] full"),
    ]
    assert [(row.levelno, row.getMessage()) for row in caplog.records if "orders" in row.getMessage()] == wanted
    assert manager.offline_dirs == {}


def test_a_sync_without_descriptors_is_repeated(
    brokers: Brokers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends that wait for a sync are not lost if it could not be tried: the flusher gets the partition again."""
    manager, _ = brokers.start()
    log = manager.partition("orders", 0)
    marked: list[object] = []
    flusher = type("Flusher", (), {"mark": lambda self, log: marked.append(log)})()
    monkeypatch.setattr(manager._dirs[0], "flusher", flusher)
    append(manager)
    log._inject_fault(sync_errno=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        log.flush()
    pass_time(manager, clock, 1000)
    assert marked == [log]
    assert manager.offline_dirs == {}
    log._inject_fault()
    log.flush()
    assert log.append(batch()).error == 0


# -- one folder while another changes or hangs -------------------------------------------------------------------------


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_partition_that_arrives_in_a_folder_that_has_failed(
    brokers: Brokers, folders: list[Path], is_moved: bool
) -> None:
    """Appends are refused, although the partition was not yet in the folder when the folder failed."""
    manager, _ = brokers.start((("orders", 2),))
    hosted = next(one for _, one in manager._hosted.items() if one.log_dir is manager._dirs[0])
    source, target = manager._dirs
    manager._hosted.note_failure(target if is_moved else source, "reading", OSError(errno.EIO, "broken"))
    if is_moved:
        assert not hosted.log.is_failed
        manager._hosted.set_folder(hosted, source, target)
    else:
        hosted = PartitionEntry(PartitionLog(None, "new", 0, ID, {}, VirtualClock(), in_memory=True), source, 0)
        manager._hosted.add(("new", 0), hosted)
    assert hosted.log.is_failed


def test_the_ends_of_compactions_are_written_while_another_folder_hangs(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, folders: list[Path]
) -> None:
    """A write in one folder delays neither a write in another nor its close, even if a partition was to move there."""
    manager, _ = brokers.start((("orders", 2),))
    slow, other = manager._dirs
    entries = {hosted.log_dir: (key, hosted) for key, hosted in manager._hosted.items()}
    (slow_key, _), (key, hosted) = entries[slow], entries[other]
    manager.cleaner._cleaned.update({slow_key: 0, key: 0})
    begun, over = threading.Event(), threading.Event()

    def hang(offsets: object) -> None:
        begun.set()
        over.wait(30)

    monkeypatch.setattr(slow.cleaner_offsets, "write", hang)
    hanging = threading.Thread(target=manager.cleaner.write_offsets, args=([slow_key],))
    hanging.start()
    try:
        assert begun.wait(30)
        written: list[object] = []
        second = threading.Thread(target=lambda: written.append(manager.cleaner.write_offsets([key])))
        second.start()
        second.join(10)
        assert written == [{key}]
        manager._hosted.set_future(hosted, FutureReplica(slow, slow.path / "copy"))
        third = threading.Thread(target=manager._close_folder, args=(other,))
        third.start()
        third.join(10)
        assert not third.is_alive()
    finally:
        over.set()
        hanging.join()


def test_an_offline_partition_without_its_topic_id_is_opened_again(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are served, even if the start found no topic id in the folder and could not write it."""
    manager, _ = brokers.start()
    append(manager, count=3)
    manager.partition("orders", 0).delete_records(2)
    manager.close()
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"")
    with monkeypatch.context() as disk:
        fail_in(disk, "create_partition_folder", tmp_path, errno.ENOSPC)
        manager, report = brokers.start()
    assert list(report.failures) == [("orders", 0)]
    (log,) = manager.create_partitions("orders", [0], ID, BrokerConfig().topic_configs({}), is_known=True)
    assert (log.log_start_offset, log.log_end_offset) == (2, 3)
    assert list(tmp_path.glob("*-stray")) == []
