"""Note of the topics to be deleted, written to the log folder before the metadata deletes them.

A crash between the two steps would leave folders of an unknown topic. The next start removes folders whose topic id is
in the note and not in the metadata; a topic that is still in the metadata was not deleted and keeps its folders. The id
stays in the note until no committed offset names it any more: a full disk or a crash may have kept the offsets.

Source: none; Kafka's controller keeps a deleted topic in its metadata log.
"""

from __future__ import annotations

import binascii
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.common.loggers import get_logger
from kbroker.log import checkpoints

if TYPE_CHECKING:
    from kbroker.log.log_dir import LogDir

logger = get_logger(__name__)

FILE_NAME = "kbroker-deleted-topics"
BLOCK_BYTES = 4096  # one block is overwritten in place, which needs no space on a full disk
IDS_IN_BLOCK = 170


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


class DeletionNotes:
    """The notes of all log folders, which have the same topics.

    Args: ``note_failure`` gets the folder, the operation and the error of a failed write, after which a deletion
    continues.
    Threads: any. Locks: ``_writing`` is held while the files are written and synced, so that only other deletions wait
    for a disk; ``_lock``, a leaf, guards the ids.
    """

    def __init__(self, log_dirs: Sequence[LogDir], note_failure: Callable[[LogDir, str, OSError], None]) -> None:
        self._dirs = log_dirs
        self._note_failure = note_failure
        self._writing, self._lock = threading.Lock(), threading.Lock()
        self._is_outdated = False  # the notes have ids that were removed
        self._planned: Counter[uuid.UUID] = Counter()  # number of deletions of each topic that have begun
        self._kept: set[uuid.UUID] = set()  # deleted topics that have a folder which could not be renamed
        self._remembered: set[uuid.UUID] = set()  # topics with committed offsets, unless they were not deleted

    def begin(self, known: Collection[uuid.UUID]) -> None:
        """Write the notes without the topics that exist, so that deleting works on a full disk; a start calls this."""
        for log_dir in self._dirs:
            try:
                log_dir.deletion_note.prepare()
                found = log_dir.deletion_note.read()
                self._remembered.update(found.difference(known))
                if found:
                    log_dir.sync()  # make earlier removals durable first
                    log_dir.deletion_note.write(found.difference(known))
            except OSError as error:
                log_dir.note_failure("noting that no topic is being deleted", error)

    def __contains__(self, topic_id: uuid.UUID) -> bool:
        """Return whether a deletion of the topic has begun."""
        return self._planned[topic_id] > 0

    def remembered(self) -> set[uuid.UUID]:
        """Return the topics of which committed offsets may be left; some may not be deleted yet, or never."""
        with self._lock:
            return set(self._remembered)

    def add(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Note topics that the metadata is about to delete; the ids are on disk when this returns."""
        added = list(topic_ids)
        if not added:
            return
        with self._lock:
            self._planned.update(added)
            self._remembered.update(added)
        with self._writing:
            self._write(is_synced=True)
        self._write_if_outdated()

    def keep(self, topic_id: uuid.UUID) -> None:
        """Keep a deleted topic in the notes, for the next start: a folder of it could not be renamed."""
        with self._lock:
            self._kept.add(topic_id)

    def withdraw(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove topics that were not deleted; the notes are on disk when this returns."""
        withdrawn = Counter(topic_ids)
        if not withdrawn:
            return
        with self._lock:
            self._planned -= withdrawn
            self._remembered.difference_update(one for one in withdrawn if not self._planned[one])
        with self._writing:
            self._write(is_synced=True)
        self._write_if_outdated()

    def finish(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove topics whose folders are renamed, unless they have committed offsets."""
        with self._lock:
            finished = Counter(one for one in set(topic_ids) if self._planned[one])
            self._planned -= finished
        self._write_soon(finished)

    def forget(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove topics whose committed offsets are deleted, unless folders of them are left."""
        with self._lock:
            forgotten = self._remembered.intersection(topic_ids)
            self._remembered -= forgotten
        self._write_soon(forgotten)

    def _write_soon(self, removed: Collection[uuid.UUID]) -> None:
        """Write the notes without waiting for a disk. An extra id, also after a power cut, does no harm."""
        if removed:
            self._is_outdated = True
            self._write_if_outdated()

    def _write_if_outdated(self) -> None:
        """Write the notes after a removal, unless another thread writes now: it calls this at its end."""
        while self._is_outdated and self._writing.acquire(blocking=False):
            try:
                self._is_outdated = False
                self._write(is_synced=False)
            finally:
                self._writing.release()

    def _write(self, *, is_synced: bool) -> None:
        with self._lock:
            ids = {*(one for one, count in self._planned.items() if count > 0), *self._kept}
            # those with folders come first; offsets of the others are deleted by this process, or they expire
            ids.update(islice(self._remembered - ids, max(IDS_IN_BLOCK - len(ids), 0)))
        for log_dir in self._dirs:
            try:
                log_dir.deletion_note.write(ids, is_synced=is_synced)
            except OSError as error:
                self._note_failure(log_dir, "noting which topics are deleted", error)


def _check(text: str) -> str:
    return f"version: 0 crc32: {binascii.crc32(text.encode('ascii')):08x}"


def _content(ids: Iterable[uuid.UUID]) -> bytes:
    text = "".join(f"{checkpoints.uuid_to_text(one)}\n" for one in sorted(ids))
    size = len(_check("")) + 1 + len(text)
    text += "\n" * (-size % BLOCK_BYTES)
    return f"{_check(text)}\n{text}".encode("ascii")
