"""One log folder: its lock, owner, flusher, checkpoints, partition folders, and whether it is writable."""

import errno
import os
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log._flusher import Flusher
from kbroker.log.checkpoints import (
    PARTITION_METADATA,
    CheckpointFile,
    CorruptFileError,
    MetaProperties,
)
from kbroker.log.deletion_note import DeletionNote
from kbroker.log.folder_lock import FolderLock, FolderLockedError
from kbroker.log.segment._segment_recovery import has_content

logger = get_logger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
PARTITION_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})\Z")
FUTURE_FOLDER = re.compile(rf"(?P<partition>.+)\.[0-9a-f]{{32}}{FUTURE_SUFFIX}\Z")
MAX_NAME_BYTES = 255
DAMAGED_PROPERTIES_ADVICE = (
    "restore it from a backup, or remove it: the next start writes a new one, or says which values it must have"
)
#: The disk is full, not broken: reads continue, and writes succeed again when there is space.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: A temporary shortage of the process or the system; the disk has not failed.
TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: One file has reached a size limit of the process or of the file system; others may still grow.
ONE_FILE = frozenset({errno.EFBIG})


class LogDirError(RuntimeError):
    """A log folder that cannot be used; the message names the folder, the reason, and the remedy."""


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably; an existing one is unchanged. Raises: OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    checkpoints.sync_folder(path.parent)


def partition_folder_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_folder(name: str) -> TopicPartition | None:
    """Return topic and partition of a partition folder's name, None for any other name."""
    match = PARTITION_FOLDER.match(name)
    return (match["topic"], int(match["partition"])) if match else None


def future_folder_name(topic: str, partition: int) -> str:
    """Return a new name for the copy of a partition that will replace it."""
    return f"{topic}-{partition}.{uuid.uuid4().hex}{FUTURE_SUFFIX}"


def parse_future_folder(name: str) -> TopicPartition | None:
    """Return topic and partition of the name of a future replica's folder, None for any other name."""
    match = FUTURE_FOLDER.match(name)
    return parse_partition_folder(match["partition"]) if match else None


#: Files of a new partition's folder.
_CREATED = frozenset(
    {checkpoints.PARTITION_METADATA, *(f"{0:020}{end}" for end in (".log", ".index", ".timeindex", ".txnindex"))}
)


def never_had_records(folder: Path) -> bool:
    """Return whether a partition's folder has only files of a new partition, complete or not; False if unreadable."""
    try:
        with os.scandir(folder) as entries:
            return all(
                entry.name in _CREATED and not (entry.name.endswith(".log") and entry.stat().st_size)
                for entry in entries
            )
    except OSError:
        return False


def belongs_to(folder: str | Path, topic_id: uuid.UUID) -> bool:
    """Return whether the folder exists and belongs to this topic; False also if it cannot be read."""
    return has_content(os.path.join(folder, PARTITION_METADATA), checkpoints.partition_metadata_text(topic_id))


def partition_folders(folder: Path) -> list[Path]:
    """Return the partition folders of a log folder, sorted: those with records or a topic id."""
    found = []
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if parse_partition_folder(entry.name) is not None and entry.is_dir(follow_symlinks=False):
            names = os.listdir(entry.path)
            if checkpoints.PARTITION_METADATA in names or any(name.endswith(".log") for name in names):
                found.append(Path(entry.path))
    return sorted(found)


def is_data_folder(folder: Path) -> bool:
    """Return whether a folder has the files of a broker, and not only folders named like those of partitions."""
    names = (checkpoints.META_PROPERTIES, *checkpoints.OFFSET_CHECKPOINTS)
    return bool(partition_folders(folder)) or any((folder / name).exists() for name in names)


class LogDir:
    """A locked log folder.

    Args: ``path``: created if absent; ``cluster_id`` (None: the folder's) and ``node_id`` of the broker; ``clock``:
    None for the system clock.
    Raises: LogDirError, when it is not a folder or cannot be written; FolderLockedError; MetaPropertiesMismatch;
    CorruptFileError for a damaged ``meta.properties``.
    Threads: reading attributes from any; the rest by one thread at a time (the manager's).
    """

    def __init__(
        self, path: str | Path, cluster_id: str | None = None, node_id: int = 1, clock: BaseClock | None = None
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._failures = RepeatedFailures(clock if clock is not None else SystemClock())
        try:
            make_folder(self.path)
            self._lock = FolderLock(self.path)
        except FolderLockedError:
            raise
        except FileExistsError:
            if self.path.is_symlink() and not self.path.exists():
                found = f"is a link to {os.readlink(self.path)}, which does not exist: mount its disk, or create it"
            else:
                found = "is a file"
            raise LogDirError(f"log.dirs: expected a folder, {self.path} {found}") from None
        except OSError as e:
            raise self._not_writable(e) from None
        try:
            self.owner = self._claim(cluster_id, node_id)
            marked_epoch = clean_shutdown.take_mark(self.path)
            self.was_clean = marked_epoch is not None
            #: Broker epoch of the last clean stop, -1: not stopped cleanly, or unknown.
            self.marked_epoch = -1 if marked_epoch is None else marked_epoch
            self.recovery_points = self._read(checkpoints.RECOVERY_POINT_CHECKPOINT)
            self.log_starts = self._read(checkpoints.LOG_START_CHECKPOINT)
            self.cleaner_offsets = self._read(checkpoints.CLEANER_OFFSET_CHECKPOINT)
            #: Readable end of each log at the last checkpoint; only for log messages, so its loss does no harm.
            self.high_watermarks = self._read(checkpoints.HIGH_WATERMARK_CHECKPOINT)
        except OSError as e:
            self._lock.release()
            if isinstance(e, CorruptFileError):
                raise
            raise self._not_writable(e) from None
        except BaseException:
            self._lock.release()
            raise
        self.failure = ""
        self.on_offline: Callable[[], object] = lambda: None  # called once, when the folder goes offline
        self.flusher = Flusher()
        #: Held while a checkpoint of the folder is written, so that older offsets never replace newer ones.
        self.checkpoints_lock = threading.Lock()
        self._has_new_names = False  # not synced yet
        self.deletion_note = DeletionNote(self.path)

    def _not_writable(self, error: OSError) -> LogDirError:
        file = error.filename
        what = f" ({os.fsdecode(file)})" if file is not None and os.fsdecode(file) != str(self.path) else ""
        return LogDirError(f"the log folder {self.path} cannot be written: {error.strerror}{what}")

    def _claim(self, cluster_id: str | None, node_id: int) -> MetaProperties:
        try:
            owner = checkpoints.read_meta_properties(self.path)
        except checkpoints.CorruptFileError as error:
            raise checkpoints.CorruptFileError(f"{error}; {DAMAGED_PROPERTIES_ADVICE}") from None
        if owner is None:
            owner = MetaProperties(cluster_id or checkpoints.random_uuid_text(), node_id)
            if partition_folders(self.path):
                logger.warning(
                    "%s has partitions but no meta.properties: it gets new ids, in cluster %s; to keep the former "
                    "ones, stop the broker and restore the file from a backup",
                    self.path,
                    owner.cluster_id,
                )
        owner.check(cluster_id, node_id, self.path)
        if owner.directory_id is None:
            owner = owner._replace(directory_id=uuid.uuid4())
            checkpoints.write_meta_properties(self.path, owner)
        return owner

    @property
    def directory_id(self) -> uuid.UUID:
        """Id of the folder; it never changes."""
        assert self.owner.directory_id is not None
        return self.owner.directory_id

    def _read(self, name: str) -> CheckpointFile[TopicPartition]:
        """Read a checkpoint; if it is unreadable, all logs are checked as after an unclean stop."""
        checkpoint = checkpoints.offset_checkpoint(self.path / name)
        try:
            checkpoint.read()
        except OSError as e:
            logger.error("%s: ignored, all logs of the folder are checked instead", e)
            self.was_clean = False
        return checkpoint

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def is_offline(self) -> bool:
        return bool(self.failure)

    @property
    def is_still_clean(self) -> bool:
        """Return whether a folder whose logs were not opened is clean: it was marked so, or it has no log."""
        names = (path.name for path in partition_folders(self.path))
        return self.was_clean or all(name == f"{CLUSTER_METADATA_TOPIC}-0" for name in names)

    @property
    def is_removed(self) -> bool:
        """Return whether the folder went offline because it no longer exists under its path."""
        return self.is_offline and not os.path.lexists(self.path)

    @staticmethod
    def ends_with(error: OSError) -> bool:
        """Return whether an error takes the folder offline: a full disk, shortages and a limit of file sizes do not."""
        return error.errno not in FULL | TRANSIENT | ONE_FILE

    def note_failure(self, what: str, error: OSError, kind: str = "") -> bool:
        """Log a failed operation; return True if the failure takes the folder offline.

        Repeated failures are logged once a minute for each ``kind`` of operation (default: ``what``).
        """
        if self.ends_with(error):
            if not self.failure:
                self.failure = f"{what}: {error}"
                logger.critical("log folder %s is offline: %s", self.path, self.failure)
                self.on_offline()
            return True
        if error.errno in TRANSIENT:
            outcome = " and will be tried again"
        else:
            outcome = ", the disk is full" if error.errno in FULL else ""
        cause = kind or what, error.errno
        self._failures.log(cause, logger.error, "%s: %s failed%s: %s", self.path, what, outcome, error)
        return False

    def write_late_failures(self) -> None:
        """Log the failures that were counted since their last line, a minute ago."""
        self._failures.write_late()

    def holds(self, key: TopicPartition) -> bool:
        """Return whether a partition has a folder here; the folder of a deleted partition has another name."""
        return self.partition_path(*key).is_dir()

    def has_offsets(self, keys: Collection[TopicPartition]) -> bool:
        """Return whether a checkpoint that a start reads has an offset of one of these partitions."""
        return any(key in self.log_starts.offsets or key in self.recovery_points.offsets for key in keys)

    def forget_offsets(self, keys: Collection[TopicPartition]) -> None:
        """Remove partitions from the checkpoints that a start reads; checkpoints without them are not written.

        Raises: OSError; a checkpoint that was not written still has the partitions.
        """
        for one in (self.log_starts, self.recovery_points):
            if any(key in one.offsets for key in keys):
                one.write({key: offset for key, offset in one.offsets.items() if key not in keys})

    def close(self, clean: bool, broker_epoch: int = -1) -> None:
        """Release the folder, with the clean-shutdown mark if ``clean``. Args: ``broker_epoch``: see `mark_clean`."""
        if clean:
            self.mark_clean(broker_epoch)
        self._lock.release()

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the clean-shutdown mark: everything in the folder is on disk.

        Args: ``broker_epoch``: a controller of Kafka recognizes the stopped broker by it. -1: that of the mark
        before this start.
        """
        try:
            if not self.is_offline:
                clean_shutdown.write_mark(self.path, broker_epoch if broker_epoch >= 0 else self.marked_epoch)
        except OSError as e:
            self.note_failure("writing the clean-shutdown mark", e)

    # -- partition folders -------------------------------------------------------------------------------------------

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.path / partition_folder_name(topic, partition)

    def folders(self) -> Iterator[Path]:
        for entry in sorted(os.scandir(self.path), key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)

    def create_partition_folder(
        self, topic: str, partition: int, topic_id: uuid.UUID, *, is_known: bool = True
    ) -> Path:
        """Create or adopt the folder of a partition; one of another topic of this name is renamed.

        The name is durable after the next ``sync``, which costs the same for one folder and for thousands.

        Args: ``is_known``: the partition was acknowledged before, so a folder without a topic id belongs to it: power
        was lost before the id was on disk. Otherwise such a folder has the records of a deleted topic.
        Raises: OSError.
        """
        path = self.partition_path(topic, partition)
        if belongs_to(path, topic_id):
            return path
        if path.exists():
            if not path.is_dir():
                raise CorruptFileError(f"{path}: expected the folder of a partition, found a file: move it away")
            found = checkpoints.read_partition_metadata(path)
            if found == topic_id:
                return path
            if found is None and (is_known or never_had_records(path)):
                checkpoints.write_partition_metadata(path, topic_id, is_synced=not never_had_records(path))
                return path
            self.rename_stray(topic, partition)
        path.mkdir()
        self._has_new_names = True
        try:
            checkpoints.write_partition_metadata(path, topic_id)
        except OSError:
            remove_folder(path)  # it would belong to no topic
            raise
        return path

    def claim_partition_folder(self, topic: str, partition: int, topic_id: uuid.UUID, is_known: bool) -> Path:
        """Call ``create_partition_folder``, and note its failure. Raises: OSError.

        A folder of the partition that belongs to another user, or is damaged, concerns only the partition.
        """
        try:
            return self.create_partition_folder(topic, partition, topic_id, is_known=is_known)
        except OSError as e:
            is_denied = isinstance(e, PermissionError) and self.partition_path(topic, partition).exists()
            if not is_denied and not isinstance(e, CorruptFileError):
                self.note_failure(f"making the folder of {topic}-{partition}", e, "making a folder")
            raise

    def rename_stray(self, topic: str, partition: int) -> None:
        """Rename a folder that has a partition's name and belongs to another topic of this name. Raises: OSError."""
        path, stray = self.partition_path(topic, partition), self._other_name(topic, partition, STRAY_SUFFIX)
        logger.warning("%s belongs to another topic of this name: renamed to %s", path, stray.name)
        self._rename(path, stray)

    def rename_for_delete(self, topic: str, partition: int) -> Path:
        """Rename a partition's folder for deletion, durably after the next ``sync``; return the path to remove later.

        Raises: OSError.
        """
        return self.put_aside_for_delete(self.partition_path(topic, partition))

    def put_aside_for_delete(self, path: Path) -> Path:
        """Rename a deleted topic's folder that a start has found, like ``rename_for_delete``. Raises: OSError."""
        key = parse_partition_folder(path.name)
        renamed = self._other_name(*(key or (path.name, 0)), DELETE_SUFFIX)
        self._rename(path, renamed)
        return renamed

    def _rename(self, path: Path, target: Path) -> None:
        path.rename(target)
        self._has_new_names = True  # set last: a sync before the rename must not clear it

    def sync(self) -> None:
        """Make all created and renamed folders durable. Raises: OSError; the next call retries."""
        if self._has_new_names:
            self._has_new_names = False
            try:
                checkpoints.sync_folder(self.path)
            except OSError:
                self._has_new_names = True
                raise

    def promote(self, future: Path, topic: str, partition: int) -> None:
        """Give a complete future replica the partition's name, durably. Raises: OSError."""
        self._rename(future, self.partition_path(topic, partition))
        self.sync()

    def _other_name(self, topic: str, partition: int, suffix: str) -> Path:
        unique = f"-{partition}.{uuid.uuid4().hex}{suffix}"
        return self.path / (topic[: MAX_NAME_BYTES - len(unique)] + unique)


def remove_folder(path: Path) -> None:
    """Remove a folder that was renamed for deletion; entries that cannot be removed are logged and left."""

    def report(_: object, failed: str, error: BaseException | tuple[object, BaseException, object]) -> None:
        cause = error[1] if isinstance(error, tuple) else error
        if not isinstance(cause, FileNotFoundError):
            logger.error("cannot remove %s: %s", failed, cause)

    import shutil  # imports bz2 and lzma, which a start does not need

    shutil.rmtree(path, onerror=report)
