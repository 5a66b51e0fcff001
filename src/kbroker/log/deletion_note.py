"""Note of the topics to be deleted, written to the log folder before the metadata deletes them.

A crash between the two steps would leave folders of an unknown topic. The next start removes folders whose topic id is
in the note and not in the metadata; a topic that is still in the metadata was not deleted and keeps its folders.

Source: none; Kafka's controller keeps a deleted topic in its metadata log.
"""

import binascii
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from kbroker.common.loggers import get_logger
from kbroker.log import checkpoints

logger = get_logger(__name__)

FILE_NAME = "kbroker-deleted-topics"
BLOCK_BYTES = 4096  # 170 ids; one block is overwritten in place, which needs no space on a full disk


class DeletionNote:
    """Deletion note of one log folder. Threads: one at a time (the manager's)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def prepare(self) -> None:
        """Create the file, so that later writes need no disk space. Raises: OSError."""
        if not self.path.exists():
            checkpoints.write_atomically(self.path, _content(()))

    def read(self) -> frozenset[uuid.UUID]:
        """Return the ids; none if the file is absent, incomplete after a crash, or unreadable."""
        try:
            text = self.path.read_bytes().decode("ascii")
        except FileNotFoundError:
            return frozenset()
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("%s cannot be read and is ignored: %s", self.path, error)
            return frozenset()
        check, *lines = text.split("\n")
        try:
            if check != _check("\n".join(lines)):
                raise ValueError("its checksum does not match")
            return frozenset(checkpoints.uuid_from_text(line) for line in lines if line)
        except ValueError as error:
            logger.warning("%s is ignored: %s", self.path, error)
            return frozenset()

    def write(self, ids: Iterable[uuid.UUID], *, is_synced: bool = True) -> None:
        """Replace the ids; with ``is_synced`` they are on disk when this returns. Raises: OSError."""
        content = _content(ids)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.ftruncate(fd, len(content))
            if is_synced:
                checkpoints.sync_descriptor(fd)
        finally:
            os.close(fd)


def _check(text: str) -> str:
    return f"version: 0 crc32: {binascii.crc32(text.encode('ascii')):08x}"


def _content(ids: Iterable[uuid.UUID]) -> bytes:
    text = "".join(f"{checkpoints.uuid_to_text(one)}\n" for one in sorted(ids))
    size = len(_check("")) + 1 + len(text)
    text += "\n" * (-size % BLOCK_BYTES)
    return f"{_check(text)}\n{text}".encode("ascii")
