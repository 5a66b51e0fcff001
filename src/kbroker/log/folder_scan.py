"""Sorting of the folders that a start finds in the log folders, before any log is opened.

Leftovers are removed, folders of unknown topics are reported, and afterwards each partition is in one folder.
Source: ``LogManager.loadLogs``.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.common.configs.config_def import ConfigValue
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition
from kbroker.log import checkpoints
from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_dir import (
    DELETE_SUFFIX,
    LogDir,
    LogDirError,
    never_had_records,
    parse_future_folder,
    parse_partition_folder,
    partition_folder_name,
    remove_folder,
)
from kbroker.log.segment._segment_recovery import prefetch_folders

logger = get_logger(__name__)


class TopicLogs(NamedTuple):
    """A topic of the metadata whose logs a start opens. ``config``: every topic key with its value."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    config: Mapping[str, ConfigValue]


class StartReport:
    """Findings of a start."""

    def __init__(self, was_clean: bool) -> None:
        self.was_clean = was_clean
        self.loaded = 0
        self.unknown_folders: list[Path] = []  # left as they are
        self.removed_folders: list[Path] = []  # leftovers of deleted topics and of partitions that were moved
        self.failures: dict[TopicPartition, str] = {}  # offline partitions, with the reason
        self.damaged: dict[TopicPartition, str] = {}  # these serve only the records before the damage
        self.cut: dict[TopicPartition, str] = {}  # lost by an unclean stop: bytes that were cut, or missing offsets
        self.lost_offsets = 0  # in all partitions: offsets below a checkpoint that the log lacks

    def note_lost(self, key: TopicPartition, log: PartitionLog, known: int) -> None:
        """Note and log the losses of an unclean stop: cut bytes, and offsets that were readable before.

        A high watermark is checkpointed after its records were written, so a kill never leaves the checkpoint ahead of
        the log; a power cut may, where records are not flushed before they are acknowledged.
        Args: ``known``: the high watermark in the checkpoint, -1 without any.
        """
        lost = [] if log.cut is None else [log.cut]
        end = log.log_end_offset
        if end < known and log.damage is None:  # records after damage are not served, and not lost
            self.lost_offsets += known - end
            lost.append(
                f"the log ends at offset {end}, and its high watermark in the last checkpoint is {known}: offsets "
                f"{end} to {known - 1} are lost, and may have been acknowledged. A power cut loses unflushed records; "
                "after any other stop a segment was removed, emptied or cut"
            )
        if lost:
            self.cut[key] = "; ".join(lost)
            logger.warning("partition %s-%d: %s", *key, self.cut[key])


class FolderScan:
    """The folders of partitions in all log folders.

    Args: ``topics``: those of the metadata; ``report``: receives the findings.
    """

    def __init__(self, log_dirs: Sequence[LogDir], topics: Collection[TopicLogs], report: StartReport) -> None:
        self._dirs = log_dirs
        self._topics = {topic.name: topic for topic in topics}
        self._known = {topic.topic_id for topic in topics}
        self._report = report
        #: The log folder of each partition that has one; filled if there are several.
        self.homes: dict[TopicPartition, LogDir] = {}
        #: Moves that were not complete: the partition, and the folder it is moved to.
        self.moves: list[tuple[TopicPartition, LogDir]] = []

    def run(self) -> None:
        """Sort the folders of every online log folder.

        Raises: LogDirError, when a partition is in two folders; OSError, when the only log folder cannot be read.
        """
        for log_dir in self._dirs:
            try:
                self._sort(log_dir)
            except OSError as e:
                if not log_dir.note_failure("reading the log folder", e) or len(self._dirs) == 1:
                    raise
        for key, log_dir in self.homes.items():
            self._forget_former(log_dir.partition_path(*key))

    def prefetch(self, keys: Iterable[TopicPartition]) -> None:
        """Make the system read the folders of partitions into its cache."""
        for log_dir in self._dirs:
            mine = [key for key in keys if self.homes.get(key, log_dir) is log_dir]
            prefetch_folders([str(log_dir.path / partition_folder_name(*key)) for key in mine])

    def _sort(self, log_dir: LogDir) -> None:
        deleted = log_dir.deletion_note.read() - self._known
        for folder in log_dir.folders():
            if folder.name.endswith(DELETE_SUFFIX):
                self._remove(folder)
                continue
            future = parse_future_folder(folder.name)
            key = future or parse_partition_folder(folder.name)
            topic = self._topics.get(key[0]) if key is not None else None
            if deleted and topic_of(folder) in deleted:
                logger.info("%s removed: its topic was deleted before the last stop", folder)
                self._remove(folder, log_dir.put_aside_for_delete(folder))
            elif key is not None and topic is not None and key[1] < topic.partitions:
                if future is not None:
                    self._sort_future(log_dir, folder, key, topic)
                elif len(self._dirs) > 1:
                    self._settle(log_dir, folder, key, topic)
            elif topic is not None and topic_of(folder) in (topic.topic_id, None):
                self._sort_surplus(log_dir, folder, topic)
            else:
                self._leave(folder)

    def _leave(self, folder: Path) -> None:
        if parse_partition_folder(folder.name) == (CLUSTER_METADATA_TOPIC, 0):  # the broker's own
            return
        logger.warning("%s belongs to no topic and is not touched", folder)
        self._report.unknown_folders.append(folder)

    def _remove(self, folder: Path, renamed: Path | None = None) -> None:
        """Remove a leftover folder. Args: ``renamed``: its new path, None if it still has its name."""
        remove_folder(renamed or folder)
        self._report.removed_folders.append(folder)

    def _sort_surplus(self, log_dir: LogDir, folder: Path, topic: TopicLogs) -> None:
        """Remove the folder of a partition that the topic lacks if it never had records; otherwise keep and report it.

        Either a crash occurred before the addition of the partition was acknowledged, or the metadata is an older
        copy.
        """
        if never_had_records(folder):
            logger.info(
                "%s removed: topic %s has %d partition(s), and the folder has no records: adding the partition was "
                "not completed",
                *(folder, topic.name, topic.partitions),
            )
            self._remove(folder, log_dir.put_aside_for_delete(folder))
            return
        logger.warning(
            "%s is not served: topic %s has %d partition(s). The folder has records and is not touched; add the "
            "partitions again to serve it, or move it away",
            *(folder, topic.name, topic.partitions),
        )
        self._report.unknown_folders.append(folder)

    def _sort_future(self, log_dir: LogDir, folder: Path, key: TopicPartition, topic: TopicLogs) -> None:
        """Remove a copy that was not complete; its move begins again."""
        if topic_of(folder) in (topic.topic_id, None):
            self.moves.append((key, log_dir))
        self._remove(folder)

    def _settle(self, log_dir: LogDir, folder: Path, key: TopicPartition, topic: TopicLogs) -> None:
        """Find the log folder of a partition. Of two, the replacement is used. Raises: LogDirError if neither is."""
        if topic_of(folder) not in (topic.topic_id, None):
            if key in self.homes:
                self._leave(folder)
            return
        other = self.homes.setdefault(key, log_dir)
        if other is log_dir:
            return
        for moved, former in ((log_dir, other), (other, log_dir)):
            if former.directory_id in checkpoints.read_moved_from(moved.partition_path(*key)):
                path = former.partition_path(*key)
                logger.info("%s removed: the partition was moved to %s before the last stop", path, moved.path)
                self._remove(path, former.put_aside_for_delete(path))
                former.sync()
                self.homes[key] = moved
                return
        raise LogDirError(
            f"Duplicate log directories for {key[0]}-{key[1]} are found in both {folder} and "
            f"{other.partition_path(*key)}. It is likely because log directory failure happened while broker was "
            "replacing current replica with future replica. Recover broker from this failure by manually deleting one "
            "of the two directories for this partition. It is recommended to delete the partition in the log directory "
            "that is known to have failed recently."
        )

    def _forget_former(self, folder: Path) -> None:
        """Remove the note of a move if the former folders are online, and so no longer have the partition."""
        try:
            formers = set(checkpoints.read_moved_from(folder))
            if formers and formers <= {log_dir.directory_id for log_dir in self._dirs if not log_dir.is_offline}:
                (folder / checkpoints.MOVED_FROM).unlink()
        except OSError as e:
            logger.warning("%s: %s", folder / checkpoints.MOVED_FROM, e)


def topic_of(folder: Path) -> uuid.UUID | None:
    """Return the topic id of a partition's folder, None if there is none or it cannot be read."""
    try:
        return checkpoints.read_partition_metadata(folder)
    except OSError:
        return None
