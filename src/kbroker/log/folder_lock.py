"""Locks that restrict a log folder to one process and end with it.

They are a record lock on ``.lock``, which holds the process id for messages, and, where the system supports it, a lock
on the folder itself, which is harder to remove by mistake.
"""

import errno
import os
import sys
import threading
from pathlib import Path

from kbroker.common.errors import UserError

LOCK_FILE = ".lock"
HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})
WAYS_OUT = "stop it, or use another folder: log.dirs, `kbroker serve --data-dir FOLDER`"
LOCKED_BYTE = 1 << 30  # on Windows no other process may read a locked byte, so the lock is far after the pid

# A record lock does not exclude its own process, and closing any descriptor of the file releases it. This table lists
# the lock files of the process by inode. It belongs to the process, as the locks do.
_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()

# A forked child inherits a lock on a folder, which would then outlive the parent, so the child closes the descriptor.
_folder_fds: set[int] = set()

#: Errors of a file system without such locks (NFS needs a writable descriptor, which a folder cannot have).
NO_FOLDER_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class FolderLockedError(UserError, RuntimeError):
    """Folder that another broker uses; the message names its process."""


class FolderLock:
    """Exclusive use of a log folder by this process until ``release`` or the end of the process.

    A forked child does not hold the lock: ``release`` only closes the descriptor there.

    Args: ``folder``: an existing folder.
    Raises: FolderLockedError; OSError, when the lock file cannot be created (a read-only folder).
    Threads: any.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LOCK_FILE
        self._pid = os.getpid()
        self._fd = -1
        self._folder_fd = -1
        self._id = (0, 0)
        with _held_guard:
            self._acquire()

    def _acquire(self) -> None:
        try:
            found = self.path.stat()
            if (found.st_dev, found.st_ino) in _held:
                raise FolderLockedError(f"{self.path.parent} is in use by this process already; {WAYS_OUT}")
        except FileNotFoundError:
            pass
        folder_fd = self._lock_folder()
        try:
            self._lock_file()
        except BaseException:
            _close_folder(folder_fd)
            raise
        self._folder_fd = folder_fd

    def _lock_folder(self) -> int:
        """Return the descriptor that locks the folder, -1 if the system has no such lock. Raises: FolderLockedError."""
        if sys.platform == "win32":  # an open ``.lock`` cannot be removed there
            return -1
        import fcntl

        fd = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(fd)
            if e.errno in NO_FOLDER_LOCKS:
                return -1
            if e.errno not in HELD:
                raise
            raise self._in_use() from None
        except BaseException:
            os.close(fd)
            raise
        _folder_fds.add(fd)
        return fd

    def _lock_file(self) -> None:
        private = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | private, 0o644)
        try:
            try:
                _lock(fd)
            except OSError as e:
                if e.errno not in HELD:
                    raise
                raise self._in_use() from None
            pid = f"{self._pid}\n".encode()
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, pid)  # overwrites the old pid, which needs no space on a full disk
            os.ftruncate(fd, len(pid))
            found = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._id = fd, (found.st_dev, found.st_ino)
        _held.add(self._id)

    def _in_use(self) -> FolderLockedError:
        folder = self.path.parent
        try:
            owner = self.path.read_bytes()[:20].decode("ascii", "replace").strip()
        except FileNotFoundError:
            return FolderLockedError(
                f"{folder} is in use by another process (the folder is locked, {self.path} removed); {WAYS_OUT}"
            )
        who = f"process {owner}" if owner.isdigit() else "another process"
        return FolderLockedError(f"{folder} is in use by {who} ({self.path} is locked); {WAYS_OUT}")

    @property
    def is_held(self) -> bool:
        """True in the process that acquired the lock, until it is released."""
        return self._fd >= 0 and os.getpid() == self._pid

    def release(self) -> None:
        """Release the folder. The file stays: if it were removed, two processes could lock two files of this name."""
        with _held_guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                _held.discard(self._id)
                os.close(fd)
            folder_fd, self._folder_fd = self._folder_fd, -1
            if self._pid == os.getpid():
                _unlock_folder(folder_fd)
            _close_folder(folder_fd)


def _unlock_folder(fd: int) -> None:
    """End the lock at once, even if a forked child has not closed its copy of the descriptor yet."""
    if fd in _folder_fds:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


def _close_folder(fd: int) -> None:
    """Close the descriptor of a folder, unless this is a forked child that has closed it."""
    if fd in _folder_fds:
        _folder_fds.discard(fd)
        os.close(fd)


def _after_fork() -> None:
    for fd in list(_folder_fds):
        _close_folder(fd)
    _held_guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_held_guard.acquire, after_in_parent=_held_guard.release, after_in_child=_after_fork)


def _lock(fd: int) -> None:
    """Acquire the lock or raise OSError at once; the system releases it when the process ends, however it ends."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
