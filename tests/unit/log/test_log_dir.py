"""One log folder: one process, one owner, and a precise error if the folder cannot be used."""

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log import checkpoints
from kbroker.log.folder_lock import FolderLock, FolderLockedError
from kbroker.log.log_dir import LogDir, LogDirError, parse_partition_folder
from tests.support.errors import raising

ID = uuid.UUID(int=77)
HOLD = (
    "import sys; from pathlib import Path; from kbroker.log.folder_lock import FolderLock;"
    "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that locks the folder until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def hold_in_another_process(folder: Path) -> str | None:
    """Return the error of a process that locks the folder now, None if it succeeds."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    return None if made.returncode == 0 else made.stderr


def test_second_process_is_refused_with_the_pid(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    """The error has the pid of the process that locks the folder; the folder is free when that process ends."""
    expected = f"{tmp_path} is in use by process {other_process.pid} .*; stop it, or use another folder: log.dirs"
    with pytest.raises(FolderLockedError, match=expected):
        FolderLock(tmp_path)
    with pytest.raises(FolderLockedError, match=str(other_process.pid)):
        LogDir(tmp_path)
    other_process.kill()
    other_process.wait(20)
    FolderLock(tmp_path).release()


def test_same_process_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    """A second lock in the process is refused without releasing the first, as closing the lock file would."""
    lock = FolderLock(tmp_path)
    for _ in range(3):
        with pytest.raises(FolderLockedError, match="this process"):
            FolderLock(tmp_path)
    assert f"in use by process {os.getpid()}" in str(hold_in_another_process(tmp_path))
    lock.release()
    again = FolderLock(tmp_path)
    assert again.is_held
    again.release()
    assert not again.is_held


def test_stale_pid_does_not_lock(tmp_path: Path) -> None:
    """A lock file left by a killed process does not lock, even with the pid of this process."""
    (tmp_path / ".lock").write_text(f"{os.getpid()}\n")
    FolderLock(tmp_path).release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_holds_no_lock_and_cannot_drop_it(tmp_path: Path) -> None:
    """A forked child does not own the lock, and a release in the child keeps the parent's lock."""
    lock = FolderLock(tmp_path)
    pid = os.fork()
    if pid == 0:
        held = lock.is_held
        lock.release()
        os._exit(1 if held else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert "in use by process" in str(hold_in_another_process(tmp_path))
    lock.release()


def test_folder_is_made_and_claimed(tmp_path: Path) -> None:
    """A new folder gets an owner, and later starts find the same ids of cluster, node and directory."""
    first = LogDir(tmp_path / "a" / "b", "cluster-1", 4)
    assert not first.was_clean
    assert (first.owner.cluster_id, first.owner.node_id) == ("cluster-1", 4)
    first.close(clean=True)
    again = LogDir(tmp_path / "a" / "b", None, 4)
    assert again.was_clean
    assert again.owner == first.owner
    again.close(clean=False)
    third = LogDir(tmp_path / "a" / "b", "cluster-1", 4)
    assert not third.was_clean
    third.close(clean=True)
    with pytest.raises(checkpoints.MetaPropertiesMismatch, match="cluster-1"):
        LogDir(tmp_path / "a" / "b", "cluster-2", 4)
    FolderLock(tmp_path / "a" / "b").release()  # the refused start released the lock


def test_a_damaged_owner_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """The error names the file and the way out, after which the folder is claimed again."""
    (tmp_path / "meta.properties").write_bytes(bytes(90))
    with pytest.raises(
        checkpoints.CorruptFileError, match=r"meta\.properties, line 1: .*; restore it .* or remove it: "
    ):
        LogDir(tmp_path, "cluster-1", 4)
    (tmp_path / "meta.properties").unlink()
    LogDir(tmp_path, "cluster-1", 4).close(clean=True)


def test_a_lost_owner_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder with partitions that has lost its ids gets new ids, with a log line; a new folder has no such line."""
    first = LogDir(tmp_path, None, 4)
    first.create_partition_folder("t", 0, uuid.uuid4())
    first.close(clean=True)
    assert caplog.text == ""
    (tmp_path / "meta.properties").unlink()
    again = LogDir(tmp_path, None, 4)
    again.close(clean=True)
    assert again.owner.cluster_id != first.owner.cluster_id
    assert f"no meta.properties: it gets new ids, in cluster {again.owner.cluster_id}" in caplog.text


def test_file_instead_of_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(LogDirError, match="data is a file"):
        LogDir(tmp_path / "data")


def test_a_link_to_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with pytest.raises(LogDirError, match=f"data is a link to {tmp_path / 'disk'}, which does not exist: mount its"):
        LogDir(tmp_path / "data")


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    """The error names the file, not only the log folder."""
    (tmp_path / ".lock").mkdir()
    with pytest.raises(LogDirError, match=rf"cannot be written: Is a directory \({tmp_path / '.lock'}\)"):
        LogDir(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user that a read-only folder stops")
def test_read_only_folder_as_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(LogDirError, match="cannot be written: Permission denied"):
        LogDir(tmp_path)


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the folder's name and the reason, and the lock is released."""

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", refuse)
        with pytest.raises(LogDirError, match=f"{tmp_path} cannot be written: Read-only file system"):
            LogDir(tmp_path)
    LogDir(tmp_path).close(clean=True)


def test_damaged_checkpoint_means_check_everything(tmp_path: Path) -> None:
    """A start with a damaged recovery point checkpoint counts as a start after an unclean shutdown."""
    LogDir(tmp_path).close(clean=True)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n7\n")
    folder = LogDir(tmp_path)
    assert not folder.was_clean
    assert folder.recovery_points.offsets == {}
    folder.close(clean=True)


def test_partition_folders(tmp_path: Path) -> None:
    """A partition's folder is created with its topic id, reused for this id, and put aside for another id."""
    folder = LogDir(tmp_path)
    path = folder.create_partition_folder("orders", 3, ID)
    assert (path.name, checkpoints.read_partition_metadata(path)) == ("orders-3", ID)
    (path / "x.log").write_text("kept")
    assert folder.create_partition_folder("orders", 3, ID) == path
    assert (path / "x.log").exists()
    folder.create_partition_folder("orders", 3, uuid.UUID(int=78))
    assert list(path.iterdir()) == [path / "partition.metadata"]
    (stray,) = tmp_path.glob("*-stray")
    assert (stray / "x.log").read_text() == "kept"
    deleted = folder.rename_for_delete("orders", 3)
    assert deleted.name.startswith("orders-3.")
    assert deleted.name.endswith("-delete")
    assert not path.exists()
    long_name = "t" * 249
    folder.create_partition_folder(long_name, 0, ID)
    assert len(folder.rename_for_delete(long_name, 0).name) == 255
    folder.close(clean=True)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [("a-0", ("a", 0)), ("a-b-12", ("a-b", 12)), ("a.-1", ("a.", 1)), ("a-01", None), ("-1", None), ("a", None),
     ("a-1.0123-delete", None), ("a-1.0123-stray", None), ("a b-1", None)],
)  # fmt: skip
def test_folder_names(name: str, parsed: tuple[str, int] | None) -> None:
    """Only a topic name, a hyphen and a number make a partition's folder."""
    assert parse_partition_folder(name) == parsed


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_want_of_descriptors_or_memory_is_no_broken_disk(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A shortage of descriptors or memory does not take the folder offline."""
    folder = LogDir(tmp_path)
    assert not folder.note_failure("flush", OSError(number, os.strerror(number)))
    assert not folder.is_offline
    assert "flush failed and will be tried again" in caplog.text
    folder.close(clean=True)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_full_disk_is_not_a_broken_one(tmp_path: Path) -> None:
    """A full disk keeps the folder online; an I/O error takes the folder offline and prevents the clean mark."""
    folder = LogDir(tmp_path)
    assert not folder.note_failure("flush", OSError(errno.ENOSPC, "No space left on device"))
    assert not folder.is_offline
    assert folder.note_failure("flush", OSError(errno.EIO, "Input/output error"))
    assert folder.is_offline
    assert "flush" in folder.failure
    folder.close(clean=True)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="an open lock file cannot be removed there")
def test_a_removed_lock_file_lets_no_process_in(tmp_path: Path) -> None:
    """The folder is locked too: without ``.lock`` neither this process nor another can lock it."""
    lock = FolderLock(tmp_path)
    lock.path.unlink()
    with pytest.raises(FolderLockedError, match=f"{tmp_path} is in use by another process"):
        FolderLock(tmp_path)
    assert f"{tmp_path} is in use by another process" in str(hold_in_another_process(tmp_path))
    assert not lock.path.exists(), "the refused process created a lock file"
    lock.release()
    assert hold_in_another_process(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_lives_on_holds_no_folder(tmp_path: Path) -> None:
    """A running child does not keep the locks that its parent has released."""
    lock = FolderLock(tmp_path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    lock.release()
    assert hold_in_another_process(tmp_path) is None
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no lock on a folder there")
def test_a_lock_ends_though_a_child_has_not_closed_its_copy(tmp_path: Path) -> None:
    """A copy of the descriptor in a forked child, which may close it late, does not keep the lock."""
    lock = FolderLock(tmp_path)
    copy = os.dup(lock._folder_fd)
    lock.release()
    assert hold_in_another_process(tmp_path) is None
    os.close(copy)


def test_a_file_system_without_locks_on_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system such as NFS, which cannot lock a folder, the lock file alone locks."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.EBADF, "Bad file descriptor")))
    lock = FolderLock(tmp_path)
    assert f"in use by process {os.getpid()}" in str(hold_in_another_process(tmp_path))
    lock.release()


def test_a_new_folder_and_those_above_it_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent folders are synced, so that acknowledged records survive a power cut."""
    synced = []
    monkeypatch.setattr(checkpoints, "sync_folder", lambda folder: synced.append(folder))
    LogDir(tmp_path / "a" / "b").close(clean=False)
    assert {tmp_path, tmp_path / "a"} <= set(synced)


@pytest.mark.parametrize("records", [b"", b"some"])
def test_topic_id_of_a_folder_with_records_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: bytes
) -> None:
    """The topic id of a folder with records is synced at once; without records the first flush syncs it."""
    log_dir = LogDir(tmp_path)
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020}.log").write_bytes(records)
    synced: list[int] = []
    monkeypatch.setattr(checkpoints, "sync_descriptor", lambda fd: synced.append(os.fstat(fd).st_size))
    assert log_dir.create_partition_folder("t", 0, ID) == path
    assert checkpoints.read_partition_metadata(path) == ID
    assert synced == ([(path / checkpoints.PARTITION_METADATA).stat().st_size] if records else [])
    log_dir.close(clean=False)


def test_forgotten_offsets_are_removed_from_each_checkpoint_that_has_one(tmp_path: Path) -> None:
    """Offsets of a partition are removed from each checkpoint that has them."""
    log_dir = LogDir(tmp_path)
    log_dir.recovery_points.write({("a", 0): 5, ("b", 0): 6})
    log_dir.log_starts.write({("b", 0): 2, ("c", 0): 3})
    log_dir.forget_offsets([("a", 0), ("c", 0)])
    names = (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.LOG_START_CHECKPOINT)
    found = [checkpoints.offset_checkpoint(tmp_path / name).read() for name in names]
    assert found == [{("b", 0): 6}, {("b", 0): 2}]
    assert [log_dir.recovery_points.offsets, log_dir.log_starts.offsets] == found
    log_dir.close(clean=False)


def test_failed_sync_of_names_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync repeats a failed one, and a further sync has nothing to do."""
    log_dir = LogDir(tmp_path)
    log_dir.create_partition_folder("t", 0, ID)
    errors = [OSError(errno.ENOSPC, "No space left on device")]
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        synced.append(folder)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(checkpoints, "sync_folder", sync)
    with pytest.raises(OSError, match="No space left"):
        log_dir.sync()
    log_dir.sync()
    log_dir.sync()
    assert synced == [tmp_path, tmp_path]
    log_dir.close(clean=False)
