"""One process per log folder: a record lock on ``.lock`` that dies with its process, and its pid for the message."""

import errno
import os
import sys
import threading
from pathlib import Path

LOCK_FILE = ".lock"
LOCKED_BYTE = 1 << 30  # on Windows nobody else may read what is locked, so the lock lies far behind the pid

# A record lock does not keep its own process out, and closing any descriptor of the file would drop it: so the process
# remembers which lock files it holds, by inode. This is process state by nature, as the lock itself is.
_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


class FolderLockedError(RuntimeError):
    """Another broker uses the folder; the message names its process."""


class FolderLock:
    """Holds a log folder for this process until ``release`` or the process's end.

    A child made by ``fork`` holds nothing: ``release`` there only closes the descriptor.

    Args: ``folder`` an existing folder.
    Raises: FolderLockedError; OSError, when the lock file cannot be made (a read-only folder).
    Threads: any.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LOCK_FILE
        self._pid = os.getpid()
        self._fd = -1
        self._id = (0, 0)
        with _held_guard:
            self._acquire()

    def _acquire(self) -> None:
        try:
            found = self.path.stat()
            if (found.st_dev, found.st_ino) in _held:
                raise FolderLockedError(f"{self.path.parent} is in use by this process already")
        except FileNotFoundError:
            pass
        private = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | private, 0o644)
        try:
            try:
                _lock(fd)
            except OSError as e:
                if e.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    raise
                os.lseek(fd, 0, os.SEEK_SET)
                owner = os.read(fd, 20).decode("ascii", "replace").strip()
                who = f"process {owner}" if owner.isdigit() else "another process"
                raise FolderLockedError(f"{self.path.parent} is in use by {who} ({self.path} is locked)") from None
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, f"{self._pid}\n".encode())
            found = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._id = fd, (found.st_dev, found.st_ino)
        _held.add(self._id)

    @property
    def is_held(self) -> bool:
        """True in the process that took the lock, until it is released."""
        return self._fd >= 0 and os.getpid() == self._pid

    def release(self) -> None:
        """Let others use the folder. The file stays: removing it would let two processes lock two files."""
        with _held_guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                _held.discard(self._id)
                os.close(fd)


def _lock(fd: int) -> None:
    """Take the lock or raise OSError at once; the system gives it back when the process ends, however it ends."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
