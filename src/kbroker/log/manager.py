"""All partitions of a broker: found at start, created, deleted, maintained on schedule, and closed in order.

Threads: every public method from any thread; ``PartitionRegistry.lock`` guards the table of partitions. Background
tasks (``LogTasks``) run on the scheduler's thread. Source: ``LogManager``, ``LogLoader``.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigValue
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.log import checkpoints
from kbroker.log._config import check_config
from kbroker.log._flusher import FlusherPool
from kbroker.log._partition_log import PartitionLog
from kbroker.log.checkpoints import TopicPartition
from kbroker.log.compaction.log_cleaner import CLEANER_KEYS, Compacted, LogCleaner
from kbroker.log.failed_io import repair_command
from kbroker.log.hosted_logs import PartitionEntry, PartitionRegistry
from kbroker.log.log_dir import DELETE_SUFFIX, LogDir, never_had_records, parse_partition_folder, remove_folder
from kbroker.log.log_tasks import LogTasks
from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

LOADS_AT_ONCE = 64  # of one recovery thread


class TopicLogs(NamedTuple):
    """A topic as the metadata knows it: what must be there after a start. ``config``: all topic keys with values."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    config: Mapping[str, ConfigValue]


class StartReport:
    """What a start found."""

    def __init__(self, was_clean: bool) -> None:
        self.was_clean = was_clean
        self.loaded = 0
        self.unknown_folders: list[Path] = []  # left as they are
        self.removed_folders: list[Path] = []  # deleted topics' leftovers
        self.failures: dict[TopicPartition, str] = {}  # offline partitions, with the reason
        self.damaged: dict[TopicPartition, str] = {}  # serve what lies before the damage only
        self.cut: dict[TopicPartition, str] = {}  # what an unclean stop left was cut, or is missing
        self.lost_offsets = 0  # of all partitions, that a checkpoint knew and the log has no more


class StartCancelled(RuntimeError):
    """The start was cancelled before every partition was open."""


class LogManager:
    """Owns the log folders and the partitions in them.

    Args:
        log_dirs: folders of the data; none with ``in_memory``.
        clock: drives every task; None: the system clock.
        config: the broker's configuration.
        in_memory: keep nothing on disk.
        cluster_id: refuse folders of another cluster; None: take the first folder's, or a new one.
    Raises: LogDirError, FolderLockedError, MetaPropertiesMismatch, CorruptFileError: a folder cannot be used.
    """

    def __init__(
        self,
        log_dirs: Sequence[str | Path],
        clock: BaseClock | None,
        config: BrokerConfig,
        in_memory: bool = False,
        *,
        cluster_id: str | None = None,
    ) -> None:
        if in_memory == bool(log_dirs):
            raise ValueError("log_dirs must name a folder, or be empty with in_memory")
        self._clock = clock if clock is not None else SystemClock()
        self._config = config
        self._in_memory = in_memory
        self._pid = os.getpid()
        self._closed = False
        self._dirs: list[LogDir] = []
        self._is_starting = self._is_started = False
        self._all_sound = False
        self.lost_offsets = 0  # as the latest start found
        self._noted: frozenset[uuid.UUID] = frozenset()  # topics that are being deleted
        self._undeleted: set[uuid.UUID] = set()  # deleted topics that have a folder which could not be renamed
        #: Asked before each partition is opened; True ends the start. Any thread of the start asks.
        self.is_cancelled: Callable[[], bool] = lambda: False
        self.cluster_id = cluster_id
        try:
            for path in log_dirs:
                log_dir = LogDir(path, self.cluster_id, config.node_id, self._clock)
                self._dirs.append(log_dir)
                self.cluster_id = log_dir.owner.cluster_id
        except BaseException:
            for log_dir in self._dirs:
                log_dir.close(clean=False)
            raise
        if self.cluster_id is None:
            self.cluster_id = checkpoints.random_uuid_text()
        self.scheduler = Scheduler(clock, "log-scheduler")
        self.flusher = FlusherPool(1)
        self._hosted = PartitionRegistry(self.flusher)
        self.tasks = LogTasks(self._hosted, self._dirs, self.scheduler, config, self._clock)
        known = {key: offset for d in self._dirs for key, offset in d.cleaner_offsets.items()}
        self.cleaner = LogCleaner(
            self._clock, config, self._compacted, known, self._write_cleaner_offsets, self._cleaner_failed
        )
        _disarm_in_child(self)

    # -- start and stop ----------------------------------------------------------------------------------------------

    def start(self, topics: Iterable[TopicLogs], *, run_threads: bool = True) -> StartReport:
        """Load every partition of ``topics``, creating what is missing, then begin the background tasks.

        A partition that cannot be read is offline (KAFKA_STORAGE_ERROR), the others serve. Unknown folders are
        left and reported; those of deleted topics are removed.
        ``run_threads=False`` is for tests that run tasks themselves.
        Raises: StartCancelled where ``is_cancelled`` says so.
        """
        self._check_open()
        self._is_starting = True
        report = StartReport(was_clean=all(d.was_clean for d in self._dirs))
        topics = list(topics)
        wanted = {(t.name, p): t for t in topics for p in range(t.partitions)}
        by_name = {topic.name: topic for topic in topics}
        known = {topic.topic_id for topic in topics}
        for log_dir in self._dirs:
            deleted = log_dir.deletion_note.read() - known
            self._sort_folders(log_dir, by_name, deleted, report)
        self._begin_note()
        todo = [(key, topic) for key, topic in wanted.items() if key not in self._hosted]
        parts = [todo[at : at + LOADS_AT_ONCE] for at in range(0, len(todo), LOADS_AT_ONCE)]
        workers = max(1, self._config.integer("num.recovery.threads.per.data.dir") * max(1, len(self._dirs)))
        if workers == 1 or len(parts) <= 1:
            for part in parts:
                report.failures.update(self._load(part))
        else:
            from concurrent.futures import ThreadPoolExecutor  # not loaded where there is little to load

            with ThreadPoolExecutor(workers, thread_name_prefix="log-recovery") as pool:
                for failures in pool.map(self._load, parts):
                    report.failures.update(failures)
        if self.is_cancelled():
            raise StartCancelled("the start was cancelled")
        self._is_started = True
        for key, failure in report.failures.items():
            logger.error("partition %s-%d is offline: %s", *key, failure)
        for log_dir in self._dirs:
            log_dir.sync()
        for key, hosted in self._hosted.items():
            damage = hosted.log.damage
            if damage is not None:
                report.damaged[key] = damage
                command = repair_command(hosted.log_dir)
                logger.error("partition %s-%d is damaged and takes no appends: %s; %s", *key, damage, command)
            self._report_lost(key, hosted, report)
        self.lost_offsets = report.lost_offsets
        for key in self.tasks.forget_missing():
            self.cleaner.forget(key)
        # a clean stop must not cover what this start could not read: the next start checks again
        self._all_sound = not report.failures and not report.damaged
        self.tasks.schedule()
        if run_threads:
            self.flusher.start()
            self.scheduler.start()
            self.cleaner.start()
        report.loaded = len(self._hosted)
        return report

    def close(self) -> None:
        """Stop the tasks, then flush, snapshot and close every partition, write the checkpoints and the clean mark.

        Where the start did not open every partition, the checkpoints stay as they are: those of the partitions that
        are not open would be missing from new ones, deleted records would be back. Idempotent.
        In a child made by fork nothing is written.
        """
        with self._hosted.lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        self.scheduler.close()
        self.cleaner.close()
        self.flusher.close()
        clean = self._all_sound
        for key, hosted in self._hosted.items():
            done, _ = self._hosted.guarded(hosted, "closing", key, hosted.log.close)
            clean = clean and done
            self.flusher.detach(hosted.log)
        if self._is_started:
            self.tasks.write_checkpoints()
        for log_dir in self._dirs:
            log_dir.close(clean=clean if self._is_starting else log_dir.was_clean)
        self._hosted.clear()

    def _disarm(self) -> None:
        """After fork, in the child: it owns neither threads nor lock, so it must never write."""
        self._closed = True
        for log_dir in self._dirs:
            log_dir.abandon()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the log manager is closed")

    # -- loading -----------------------------------------------------------------------------------------------------

    def _sort_folders(
        self,
        log_dir: LogDir,
        topics: Mapping[str, TopicLogs],
        deleted: Collection[uuid.UUID],
        report: StartReport,
    ) -> None:
        for folder in log_dir.folders():
            if folder.name.endswith(DELETE_SUFFIX):
                remove_folder(folder)
                report.removed_folders.append(folder)
                continue
            key = parse_partition_folder(folder.name)
            topic = topics.get(key[0]) if key is not None else None
            if deleted and _topic_of(folder) in deleted:
                logger.info("%s removed: its topic was deleted before the last stop", folder)
                remove_folder(log_dir.put_aside_for_delete(folder))
                report.removed_folders.append(folder)
            elif key is not None and topic is not None and key[1] < topic.partitions:
                continue
            elif topic is not None and _topic_of(folder) in (topic.topic_id, None):
                self._sort_surplus(log_dir, folder, topic, report)
            else:
                logger.warning("%s belongs to no topic and is not touched", folder)
                report.unknown_folders.append(folder)

    @staticmethod
    def _sort_surplus(log_dir: LogDir, folder: Path, topic: TopicLogs, report: StartReport) -> None:
        """A folder behind the last partition of its topic: a crash came before its partition was acknowledged, or the
        metadata is an older copy. Only one that never had a record is removed."""
        if never_had_records(folder):
            logger.info(
                "%s removed: topic %s has %d partition(s), and the folder has no records: adding the partition was "
                "not completed",
                *(folder, topic.name, topic.partitions),
            )
            remove_folder(log_dir.put_aside_for_delete(folder))
            report.removed_folders.append(folder)
            return
        logger.warning(
            "%s is not served: topic %s has %d partition(s). The folder has records and is not touched; add the "
            "partitions again to serve it, or move it away",
            *(folder, topic.name, topic.partitions),
        )
        report.unknown_folders.append(folder)

    def _begin_note(self) -> None:
        """Nothing is being deleted now; the file is there, so that deleting needs no room on a full disk."""
        for log_dir in self._dirs:
            try:
                log_dir.deletion_note.prepare()
                if log_dir.deletion_note.read():
                    log_dir.sync()  # what was removed first
                    log_dir.deletion_note.write(())
            except OSError as error:
                log_dir.note_failure("noting that no topic is being deleted", error)

    def _load(self, todo: Iterable[tuple[TopicPartition, TopicLogs]]) -> dict[TopicPartition, str]:
        """Open partitions one after the other; return why some cannot be."""
        failures = {}
        for key, topic in todo:
            if self.is_cancelled():
                break
            try:
                self._open(*key, topic.topic_id, topic.config, is_known=True)
            except (OSError, ValueError, KafkaError) as error:
                failures[key] = str(error)
        return failures

    @staticmethod
    def _report_lost(key: TopicPartition, hosted: PartitionEntry, report: StartReport) -> None:
        """Report what an unclean stop lost: cut bytes, and offsets that were readable before.

        A high watermark is checkpointed after its records were written, so a kill never leaves the checkpoint ahead of
        the log; a power cut may, where records are not flushed before they are acknowledged.
        """
        log, log_dir = hosted.log, hosted.log_dir
        lost = [] if log.cut is None else [log.cut]
        end = log.log_end_offset
        known = -1 if log_dir is None else log_dir.high_watermarks.get(key, -1)
        if end < known and log.damage is None:  # what lies behind damage is not served, and is still there
            report.lost_offsets += known - end
            lost.append(
                f"the log ends at offset {end}, and the last checkpoint knew it up to {known}: offsets {end} to "
                f"{known - 1} are lost, and may have been acknowledged. A power cut loses what was not flushed; "
                "after any other stop a segment was removed, emptied or cut"
            )
        if lost:
            report.cut[key] = "; ".join(lost)
            logger.warning("partition %s-%d: %s", *key, report.cut[key])

    def _open(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: Mapping[str, ConfigValue], *, is_known: bool
    ) -> PartitionLog:
        key = (topic, partition)
        log_dir = self._dir_of(key)
        folder: Path | None = None
        is_new = False
        recovery_point = log_start = 0
        if log_dir is not None:
            path = log_dir.partition_path(topic, partition)
            is_new = not path.exists()
            if is_known or checkpoints.belongs_to(path, topic_id):  # else they are another's of this name
                recovery_point = max(0, log_dir.recovery_points.get(key, 0))
                log_start = max(0, log_dir.log_starts.get(key, 0))
            try:
                folder = log_dir.create_partition_folder(topic, partition, topic_id, is_known=is_known)
            except OSError as e:
                if not isinstance(e, checkpoints.CorruptFileError):
                    log_dir.note_failure(f"making the folder of {topic}-{partition}", e, "making a folder")
                raise
        try:
            log = PartitionLog(
                folder,
                topic,
                partition,
                topic_id,
                self._with_broker_keys(key, config),
                self._clock,
                in_memory=self._in_memory,
                clean=log_dir.was_clean if log_dir else True,
                recovery_point=recovery_point,
                log_start_offset=log_start,
                is_prepared=True,
            )
        except BaseException:
            if folder is not None and is_new:  # nothing was ever in it, and no table names it
                remove_folder(folder)
            raise
        hosted = PartitionEntry(log, log_dir, self._clock.now_ms())
        hosted.note_config(config)
        self._hosted.add(key, hosted)
        return log

    def _with_broker_keys(self, key: TopicPartition, config: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
        """The log looks up what the broker, not the topic, decides under the broker's name.

        ``was.compacted``: gaps between offsets are no damage, whatever the policy is now.
        """
        return {
            **config,
            "producer.id.expiration.ms": self._config.integer("producer.id.expiration.ms"),
            "was.compacted": self.cleaner.cleaned_offset(key) is not None,
        }

    def _dir_of(self, key: TopicPartition) -> LogDir | None:
        """The folder that has the partition, else the one with the fewest."""
        if self._in_memory:
            return None
        if len(self._dirs) == 1 and not self._dirs[0].is_offline:
            return self._dirs[0]
        for log_dir in self._dirs:
            if log_dir.partition_path(*key).exists():
                return log_dir
        usable = [d for d in self._dirs if not d.is_offline]
        if not usable:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"no log folder is online: {self._dirs[0].failure}")
        if len(usable) == 1:
            return usable[0]
        counts = self._hosted.counts(usable)
        return usable[counts.index(min(counts))]

    # -- partitions --------------------------------------------------------------------------------------------------

    def create_partition(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: Mapping[str, ConfigValue]
    ) -> PartitionLog:
        """Make a partition, its folder durable when this returns; one that exists is returned as it is.

        Raises: KafkaError(KAFKA_STORAGE_ERROR), when its folder cannot be made.
        """
        (log,) = self.create_partitions(topic, [partition], topic_id, config)
        self.sync_folders()
        return log

    def create_partitions(
        self, topic: str, partitions: Iterable[int], topic_id: uuid.UUID, config: Mapping[str, ConfigValue]
    ) -> list[PartitionLog]:
        """Make partitions of a topic, durable after the next ``sync_folders``; those that exist are left as they are.

        Raises: KafkaError(KAFKA_STORAGE_ERROR), when a folder cannot be made; those before it are made then.
        """
        self._check_open()
        return [self._create(topic, partition, topic_id, config) for partition in partitions]

    def _create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: Mapping[str, ConfigValue]
    ) -> PartitionLog:
        if parse_partition_folder(f"{topic}-{partition}") != (topic, partition):
            raise ValueError(f"not a valid partition: topic {topic!r}, partition {partition!r}")
        log_dir = self._dir_of((topic, partition))
        if log_dir is not None and not checkpoints.belongs_to(log_dir.partition_path(topic, partition), topic_id):
            self.tasks.forget_offsets([(topic, partition)])  # of a deleted one of this name: the disk was full
            self.tasks.forget_high_watermark((topic, partition))
        with self._hosted.lock:
            found = self._hosted.find((topic, partition))
            if found is not None:
                return found.log
            try:
                return self._open(topic, partition, topic_id, config, is_known=False)
            except OSError as e:
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e

    def sync_folders(self) -> None:
        """Make durable which partitions there are. Raises: KafkaError(KAFKA_STORAGE_ERROR)."""
        for log_dir in self._dirs:
            try:
                log_dir.sync()
            except OSError as e:
                self._hosted.note_failure(log_dir, "syncing the names of its folders", e)
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e

    def write_log_starts(self) -> bool:
        """Make durable where each log starts; False, with a line in the log, if a folder could not take it."""
        return self.tasks.write_log_starts()

    def note_deletions(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Note the topics that the metadata is about to delete: the next start removes what a crash leaves of them.
        Call it again with the topics that were deleted, if those are not all.

        A note that cannot be written is logged, and does not fail the deletion.
        """
        self._write_note(frozenset(topic_ids))

    def _write_note(self, topic_ids: frozenset[uuid.UUID], *, is_synced: bool = True) -> None:
        self._noted = topic_ids
        for log_dir in self._dirs:
            try:
                log_dir.deletion_note.write(self._undeleted | topic_ids, is_synced=is_synced)
            except OSError as error:
                self._hosted.note_failure(log_dir, "noting which topics are deleted", error)

    def delete_partition(self, topic: str, partition: int) -> None:
        """As ``delete_partitions``. Raises: KeyError too, when there is none."""
        if self.partition(topic, partition) is None:
            raise KeyError((topic, partition))
        self.delete_partitions(topic, [partition])

    def delete_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        """As ``delete_topics``, of one topic."""
        self.delete_topics({topic: partitions})

    def delete_topics(self, topics: Mapping[str, Iterable[int]]) -> None:
        """Take partitions by topic out of service; folders are renamed at once and removed after file.delete.delay.ms.

        Partitions that do not exist are skipped. Raises: KafkaError(KAFKA_STORAGE_ERROR), when a folder cannot be
        renamed; the others are deleted then.
        """
        self._check_open()
        failure: KafkaError | None = None
        keys = [(topic, partition) for topic, partitions in topics.items() for partition in partitions]
        for key in keys:
            try:
                self._take_out(key)
            except KafkaError as e:
                failure = e
            self.cleaner.forget(key)
        self.tasks.forget_offsets([key for key in keys if key not in self._hosted])
        self.sync_folders()
        if self._noted:  # no sync: an extra id matters only if its folder is put back
            self._write_note(frozenset(), is_synced=False)
        if failure is not None:
            raise failure

    def _take_out(self, key: TopicPartition) -> None:
        with self._hosted.lock:
            if key not in self._hosted:
                self._put_aside_unopened(key)
                return
            hosted = self._hosted.remove(key)
            if hosted.log_dir is None:
                hosted.log.delete()
                return
            try:
                renamed = hosted.log_dir.rename_for_delete(*key)
            except OSError as e:
                self._undeleted.add(uuid.UUID(bytes=hosted.log.topic_id))
                hosted.log_dir.note_failure(f"deleting {key[0]}-{key[1]}", e, "deleting")
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e
            delay_ms = hosted.delete_delay_ms if hosted.log.log_end_offset > 0 else 0  # an empty log has no readers
        self._remove_later(renamed, delay_ms)

    def _remove_later(self, folder: Path, delay_ms: int) -> None:
        self.scheduler.schedule(f"remove {folder.name}", lambda: remove_folder(folder), delay_ms=delay_ms)

    def _put_aside_unopened(self, key: TopicPartition) -> None:
        """The folder of a partition that is offline, when its topic is one of those being deleted."""
        for log_dir in self._dirs:
            topic_id = _topic_of(log_dir.partition_path(*key))
            if topic_id is not None and topic_id in self._noted:
                try:
                    self._remove_later(log_dir.rename_for_delete(*key), 0)
                except OSError as e:
                    self._undeleted.add(topic_id)
                    log_dir.note_failure(f"deleting {key[0]}-{key[1]}", e, "deleting")

    def partition(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the partition, None when there is none (deleted, never made, or its folder could not be read)."""
        hosted = self._hosted.find((topic, partition))
        return hosted.log if hosted is not None else None

    @staticmethod
    def check_config(config: Mapping[str, ConfigValue]) -> None:
        """Refuse a configuration that no partition could be opened with. Raises: ValueError."""
        check_config(config)

    def update_config(self, topic: str, config: Mapping[str, ConfigValue]) -> None:
        """Give the partitions of a topic its new configuration."""
        self.update_configs({topic: config})

    def update_configs(self, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
        """Give the partitions of each of these topics its new configuration."""
        for key, hosted in self._hosted.items():
            config = configs.get(key[0])
            if config is not None:
                hosted.note_config(config)
                hosted.log.update_config(self._with_broker_keys(key, config))

    def reconfigure(self, changed: frozenset[str]) -> None:
        """Follow broker configs that changed while the tasks run."""
        if changed & {"log.flush.interval.ms", "log.flush.scheduler.interval.ms"}:
            self.tasks.schedule_flusher()
        if changed & CLEANER_KEYS:
            self.cleaner.reconfigure()

    @property
    def offline_dirs(self) -> dict[Path, str]:
        """Folders that can no longer be written, with the reason."""
        return {d.path: d.failure for d in self._dirs if d.is_offline}

    # -- compaction --------------------------------------------------------------------------------------------------

    def _compacted(self) -> list[Compacted]:
        return [
            Compacted(key, hosted.log, hosted.compaction)
            for key, hosted in self._hosted.items()
            if hosted.compaction is not None and not (hosted.log_dir is not None and hosted.log_dir.is_offline)
        ]

    def _write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        for log_dir in self._dirs:
            mine = {key: offset for key, offset in offsets.items() if log_dir.partition_path(*key).exists()}
            try:
                log_dir.write_cleaner_offsets(mine)
            except OSError as e:
                self._hosted.note_failure(log_dir, "writing cleaner offsets", e)

    def _cleaner_failed(self, key: TopicPartition, what: str, error: OSError) -> None:
        hosted = self._hosted.find(key)
        if hosted is None:
            logger.info("%s of %s-%d: %s", what, *key, error)
        elif hosted.log_dir is None:
            logger.error("%s of %s-%d failed: %s", what, *key, error)
        else:
            self._hosted.note_failure(hosted.log_dir, f"{what} of {key[0]}-{key[1]}", error, what)


def _topic_of(folder: Path) -> uuid.UUID | None:
    """The topic that a folder belongs to, None when it says none, or nothing that can be read."""
    try:
        return checkpoints.read_partition_metadata(folder)
    except OSError:
        return None


def _disarm_in_child(manager: LogManager) -> None:
    reference = weakref.ref(manager)

    def disarm() -> None:
        found = reference()
        if found is not None:
            found._disarm()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=disarm)
