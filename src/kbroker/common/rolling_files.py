"""Rolling files of a log: a full file is followed by a new one, and the oldest is deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.loggers import get_logger
from kbroker.common.request_log_names import REQUESTS, file_name, is_file_name

logger = get_logger(__name__)


class RollingFiles:
    """Files ``<prefix>-<UTC>-<n><suffix>`` in a folder.

    Each start begins a new file, so that an incomplete line stays at the end of its file.

    Args: ``folder``: created if absent; ``suffix``: such as ``.jsonl``; a file with ``file_bytes`` is followed by
    another, and ``file_count`` of them are kept; ``begin`` and ``end``: first and last bytes of a file.
    Raises: OSError, from all methods that write. Threads: one at a time.
    """

    def __init__(
        self,
        folder: str,
        suffix: str,
        clock: BaseClock,
        *,
        file_bytes: int,
        file_count: int,
        prefix: str = REQUESTS,
        begin: bytes = b"",
        end: bytes = b"",
    ) -> None:
        self._folder = Path(folder)
        self._suffix = suffix
        self._prefix = prefix
        self._clock = clock
        self._file_bytes = file_bytes
        self._file_count = file_count
        self._begin = begin
        self._end = end
        self._fd = -1
        self._size = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        self._number = max((self._number_of(name) for name in os.listdir(self._folder)), default=0)

    def write(self, data: bytes) -> None:
        """Write whole records: all of them, or none (OSError). A deleted file or folder is created again.

        A file that cannot be ended, and an old one that cannot be deleted, are logged, since the records are written.
        """
        if not data:
            return
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
            self._close_file()
        if self._fd < 0:
            self._open()
        whole = self._size
        try:
            if whole == 0:
                self._write_all(self._begin)
            self._write_all(data)
        except OSError:
            self._take_back(whole)
            raise
        try:
            if self._size >= self._file_bytes:
                self.close()
            if whole == 0:
                self._delete_oldest()  # only once the new one has content: a failing disk must not cost the old ones
        except OSError as error:
            logger.warning("%s: a full file cannot be ended, or an old one not be deleted: %s", self._folder, error)

    def close(self) -> None:
        """End the file; the next write begins another. Idempotent."""
        if self._fd < 0:
            return
        try:
            self._write_all(self._end)
        finally:
            self._close_file()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view.nbytes:
            done = os.write(self._fd, view)
            self._size += done
            view = view[done:]

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        name = file_name(self._clock.wall_ms(), self._number, self._suffix, self._prefix)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(self._folder / name, flags, 0o640)
        self._size = 0

    def _take_back(self, whole: int) -> None:
        """Cut off the rest of a failed write; a file that cannot be cut is ended with its incomplete line."""
        try:
            os.ftruncate(self._fd, whole)
            os.lseek(self._fd, whole, os.SEEK_SET)
            self._size = whole
        except OSError:
            self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _number_of(self, name: str) -> int:
        return int(name.removesuffix(self._suffix).rpartition("-")[2]) if self._is_own(name) else 0

    def _is_own(self, name: str) -> bool:
        return is_file_name(name, self._suffix, self._prefix)

    def _delete_oldest(self) -> None:
        found = sorted(filter(self._is_own, os.listdir(self._folder)), key=self._number_of)
        for name in found[: -self._file_count]:
            (self._folder / name).unlink(missing_ok=True)
