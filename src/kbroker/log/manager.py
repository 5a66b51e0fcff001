"""All partitions of a broker: opened at start, created, deleted, moved between folders, and closed in order.

Threads: every public method from any thread; ``PartitionRegistry.lock`` guards the table of partitions. Background
tasks (``LogTasks``) run on schedulers. Source: ``LogManager``, ``LogLoader``.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kbroker._core import process_memory
from kbroker._core.clock import BaseClock, SystemClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT64_MAX, ConfigValue
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.forked_child import call_in_child
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log import checkpoints
from kbroker.log._partition import check_config
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction.log_cleaner import CLEANER_KEYS, Compacted, LogCleaner
from kbroker.log.deletion_note import DeletionNotes
from kbroker.log.failed_io import repair_command
from kbroker.log.folder_scan import FolderScan, StartReport, TopicLogs, topic_of
from kbroker.log.hosted_logs import PartitionEntry, PartitionRegistry
from kbroker.log.log_dir import (
    MAX_NAME_BYTES,
    LogDir,
    belongs_to,
    future_folder_name,
    parse_partition_folder,
    remove_folder,
)
from kbroker.log.log_dirs import IN_MEMORY, LogDirs, LogDirView, Replica, open_log_dirs
from kbroker.log.log_tasks import LogTasks
from kbroker.log.replica_mover import RATE, ReplicaMover
from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

LOADS_AT_ONCE = 64  # per recovery thread


class StartCancelled(RuntimeError):
    """Cancellation of a start before every partition was open."""


class LogManager:
    """Owner of the log folders and the partitions in them.

    Args:
        log_dirs: the log folders; empty: all logs are in memory. The folder of the metadata log must be usable:
            that of metadata.log.dir, which need not be among ``log_dirs``, or else the first.
        clock: drives every task; None: the system clock.
        config: the broker's configuration.
    Raises: LogDirError, FolderLockedError, MetaPropertiesMismatch, CorruptFileError: a folder cannot be used.
    """

    def __init__(self, log_dirs: Sequence[str | Path], clock: BaseClock | None, config: BrokerConfig) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._config = config
        self._in_memory = not log_dirs
        self._pid = os.getpid()
        self._closed = False
        self._is_starting = self._is_started = False
        self._unsound: set[LogDir | None] = set()
        self.lost_offsets = 0  # number that the latest start found
        self.broker_epoch = -1  # epoch of this start, for the clean-shutdown mark
        #: Returns the leader epoch of a partition, which its new batches get.
        self.leader_epoch_of: Callable[[str, int], int] = lambda topic, partition: 0
        self._unforgotten: set[TopicPartition] = set()  # deleted partitions that checkpoints may still have
        #: Called before each partition is opened, on any thread of the start; True ends the start.
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._paths = [Path(os.path.abspath(path)) for path in log_dirs]
        self.opened: LogDirs | None = None  # None in memory
        self.cluster_id = checkpoints.random_uuid_text()
        if log_dirs:
            metadata = config.text("metadata.log.dir") or self._paths[0]
            self.opened = open_log_dirs(self._paths, metadata, config.node_id, self._clock)
            self.cluster_id = self.opened.metadata.owner.cluster_id
        self._dirs = [] if self.opened is None else self.opened.usable
        self._unusable = {} if self.opened is None else self.opened.unusable
        self.hosts = True
        self._homes: dict[TopicPartition, LogDir] = {}  # folders found by the start
        self._away: set[TopicPartition] = set()  # partitions that the start did not find: perhaps in an offline folder
        self.scheduler = Scheduler(clock, "log-scheduler")
        self._creation_lock = threading.Lock()  # one partition is created, or its unopened folder renamed, at a time
        self._hosted = PartitionRegistry()
        self.deletions = DeletionNotes(self._dirs, self._hosted.note_failure)
        self.tasks = LogTasks(self._hosted, self._dirs, self.scheduler, config, self._clock)
        known = {
            key: offset
            for one in self._dirs
            for key, offset in one.cleaner_offsets.offsets.items()
            if len(self._dirs) == 1 or one.holds(key)
        }
        self.cleaner = LogCleaner(
            self._clock, config, self._compacted, known, self.tasks.write_cleaner_offsets, self._hosted.note_failed
        )
        self.mover = ReplicaMover(self._hosted, self._dirs, self.cleaner, self.tasks, self._clock, config)
        call_in_child(self._disarm)

    # -- start and stop ----------------------------------------------------------------------------------------------

    def start(self, topics: Iterable[TopicLogs], *, run_threads: bool = True) -> StartReport:
        """Open every partition of ``topics``, creating missing ones, then start the background tasks.

        A partition that cannot be read is offline (KAFKA_STORAGE_ERROR); the others are served. Unknown folders are
        left and reported; those of deleted topics are removed.
        ``run_threads=False`` is for tests that run tasks themselves.
        Raises: StartCancelled, when ``is_cancelled`` returns true; LogDirError, when a partition is in two folders.
        """
        self._check_open()
        self._is_starting = True
        report = StartReport(was_clean=all(d.was_clean for d in self._dirs))
        topics = list(topics)
        wanted = {(t.name, p): t for t in topics for p in range(t.partitions)}
        scan = FolderScan(self._dirs, topics, report)
        scan.run()
        self._homes = scan.homes
        self.deletions.begin({topic.topic_id for topic in topics})
        todo = [(key, topic) for key, topic in wanted.items() if key not in self._hosted]
        for failures in self._load_all(todo, scan):
            report.failures.update(failures)
        if self.is_cancelled():
            raise StartCancelled("the start was cancelled")
        self._is_started = True
        for key, failure in report.failures.items():
            logger.error("partition %s-%d is offline: %s", *key, failure)
        self._homes = {}
        self._sync_at_start()
        for key, hosted in self._hosted.items():
            damage = hosted.log.damage
            if damage is not None:
                report.damaged[key] = damage
                command = repair_command(hosted.log_dir)
                logger.error("partition %s-%d is damaged and takes no appends: %s; %s", *key, damage, command)
            log_dir = hosted.log_dir
            report.note_lost(key, hosted.log, -1 if log_dir is None else log_dir.high_watermarks.offsets.get(key, -1))
        self.lost_offsets = report.lost_offsets
        self.cleaner.forget(self.tasks.forget_missing())
        # a clean stop must not hide partitions that this start could not read: the next start checks again
        self._unsound = {self._hosted[key].log_dir for key in report.damaged}
        self._unsound |= {d for d in self._dirs for key in report.failures if len(self._paths) == 1 or d.holds(key)}
        self.tasks.schedule()
        if run_threads:
            for number, log_dir in enumerate(self._dirs):
                log_dir.flusher.start(f"log-flusher-{number}")
            for scheduler in self.tasks.schedulers:
                scheduler.start()
            self.cleaner.start()
            self.mover.start()
        for key, log_dir in scan.moves:
            entry = self._hosted.find(key)
            if entry is not None:
                self.mover.move(key, entry, log_dir)
        report.loaded = len(self._hosted)
        return report

    def close(self) -> None:
        """Stop the tasks, then flush, snapshot and close every partition, write the checkpoints and the clean mark.

        After a start that did not open every partition the checkpoints stay as they are: new ones would lack the
        partitions that are not open, and deleted records would reappear. Idempotent. A child made by fork writes
        nothing.
        """
        with self._hosted.lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        self.mover.close()  # first: the end of a move schedules the removal of a folder
        for scheduler in self.tasks.schedulers:
            scheduler.close()
        self.cleaner.close()
        for log_dir in self._flushed_dirs():
            self._close_folder(log_dir)
        self._hosted.clear()

    def _flushed_dirs(self) -> Sequence[LogDir | None]:
        """Flush the folders, each on its own thread; return them, those whose flusher did not end in time last.

        A disk that does not respond thus does not delay the close of the other folders. In memory: [None].
        """
        if self.opened is None:
            return [None]
        for _, hosted in self._hosted.items():
            if hosted.log_dir is not None:
                hosted.log_dir.flusher.mark(hosted.log)
        return sorted(self.opened.all, key=lambda log_dir: not log_dir.flusher.close())

    def _close_folder(self, log_dir: LogDir | None) -> None:
        """Close the partitions of a folder, then write its checkpoints and mark. None: those in memory."""
        if log_dir is not None:
            self.tasks.failed_io.look(log_dir)  # failures of the flusher since the last look
        closed, is_flushed = self._hosted.close(log_dir)
        if log_dir is None:
            return
        is_clean = is_flushed and self._is_started and log_dir not in self._unsound
        if self._is_started:
            self.tasks.write_checkpoints(log_dir)
            cleaned = self.cleaner.cleaned_offsets
            if not cleaned().keys().isdisjoint(closed):
                # again: the file may be lost or damaged, or a write may have failed
                self.tasks.write_cleaner_offsets_in(log_dir, cleaned)
        if not self._is_starting:
            is_clean = log_dir.is_still_clean
        log_dir.close(is_clean and log_dir in self._dirs, self.broker_epoch)

    def withhold_mark(self, log_dir: LogDir) -> None:
        """Make `close` write no clean mark in the folder: not all data written there may be on disk."""
        self._unsound.add(log_dir)

    def _disarm(self) -> None:
        """Close the manager in a child made by fork, which owns neither threads nor locks and must never write."""
        self._closed = True
        for log_dir in () if self.opened is None else self.opened.all:
            log_dir.close(clean=False)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the log manager is closed")

    # -- loading -----------------------------------------------------------------------------------------------------

    def _sync_at_start(self) -> None:
        for log_dir in self._dirs:
            try:
                log_dir.sync()
            except OSError as e:
                self._hosted.note_failure(log_dir, "syncing the names of its folders", e)
                if len(self._dirs) == 1:
                    raise

    def _load_all(
        self, todo: Sequence[tuple[TopicPartition, TopicLogs]], scan: FolderScan
    ) -> Iterator[dict[TopicPartition, str]]:
        """Open partitions; after an unclean stop on several threads, which read and check the records.

        After a clean stop the threads would wait for the GIL, so they only make the system read the folders that this
        thread opens next.
        """
        parts = [todo[at : at + LOADS_AT_ONCE] for at in range(0, len(todo), LOADS_AT_ONCE)]
        workers = self._config.integer("num.recovery.threads.per.data.dir") * len(self._dirs)
        if workers <= 1 or len(parts) <= 1:
            yield from map(self._load, parts)
            return
        from concurrent.futures import ThreadPoolExecutor  # not imported where there is little to load

        name = "log-recovery"
        with ThreadPoolExecutor(workers, name, process_memory.note_thread, (name,)) as pool:
            if all(log_dir.was_clean for log_dir in self._dirs):
                pool.map(scan.prefetch, ([key for key, _ in part] for part in parts[1:]))
                yield from map(self._load, parts)
            else:
                yield from pool.map(self._load, parts)

    def _load(self, todo: Iterable[tuple[TopicPartition, TopicLogs]]) -> dict[TopicPartition, str]:
        """Open partitions one after the other; return the reason for each that cannot be opened."""
        failures = {}
        for key, topic in todo:
            if self.is_cancelled():
                break
            try:
                self._open(*key, topic.topic_id, topic.config, self._dir_of(key, is_known=True), is_known=True)
            except (OSError, ValueError, KafkaError) as error:
                failures[key] = str(error)
        return failures

    def _open(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: Mapping[str, ConfigValue],
        log_dir: LogDir | None,
        *,
        is_known: bool,
    ) -> PartitionLog:
        key = (topic, partition)
        folder: Path | None = None
        is_new = False
        recovery_point = log_start = 0
        if log_dir is not None:
            folder = log_dir.partition_path(topic, partition)
            is_own = belongs_to(folder, topic_id)
            if is_known and not is_own and topic_of(folder) not in (None, topic_id):  # it belongs to a deleted topic
                self.tasks.forget_former(log_dir, key)
                self.cleaner.forget([key])
            if is_known or is_own:
                recovery_point = max(0, log_dir.recovery_points.offsets.get(key, 0))
                log_start = max(0, log_dir.log_starts.offsets.get(key, 0))
            if not is_own:
                is_new = not folder.exists()
                folder = log_dir.claim_partition_folder(topic, partition, topic_id, is_known)
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
                leader_epoch=self.leader_epoch_of(topic, partition),
                is_prepared=True,
            )
        except BaseException:
            if folder is not None and is_new:  # the log has no records and is in no table
                remove_folder(folder)
            raise
        hosted = PartitionEntry(log, log_dir, self._clock.now_ms())
        hosted.note_config(config)
        self._hosted.add(key, hosted)
        return log

    def _with_broker_keys(self, key: TopicPartition, config: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
        """Add the values that the broker, not the topic, decides.

        ``was.compacted``: gaps between offsets are not damage, whatever the policy is now.
        ``flush.messages``: in memory nothing waits for a disk.
        """
        return {
            **config,
            **({"flush.messages": INT64_MAX} if self._in_memory else {}),
            "producer.id.expiration.ms": self._config.integer("producer.id.expiration.ms"),
            "was.compacted": self.cleaner.cleaned_offset(key) is not None,
        }

    def _dir_of(self, key: TopicPartition, is_known: bool = False) -> LogDir | None:
        """Return the folder that has the partition, else the folder with the fewest partitions; None in memory.

        A partition that may be in an offline folder is noted: later calls refuse it, too.

        Args: ``is_known``: the partition existed before, so that it may be in a folder that is offline.
        Raises: KafkaError(KAFKA_STORAGE_ERROR).
        """
        if self._in_memory:
            return None
        if len(self._paths) == 1 and not self._dirs[0].is_offline:
            return self._dirs[0]
        for log_dir in [self._homes[key]] if key in self._homes else self._dirs:
            if not log_dir.partition_path(*key).exists():
                continue
            if log_dir.is_offline and len(self._paths) > 1:
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"log folder {log_dir.path} is offline: {log_dir.failure}")
            return log_dir
        usable = [d for d in self._dirs if not d.is_offline]
        if not usable:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"no log folder is online: {self._dirs[0].failure}")
        offline = self.offline_dirs
        if offline and (is_known or key in self._away):
            self._away.add(key)  # an empty log would hide the records in that folder
            names = ",".join(map(str, offline))
            text = f"Can't create log for {key[0]}-{key[1]} because log directories {names} are offline"
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, text)
        return self._hosted.emptiest(usable)

    # -- partitions --------------------------------------------------------------------------------------------------

    def create_partitions(
        self,
        topic: str,
        partitions: Iterable[int],
        topic_id: uuid.UUID,
        config: Mapping[str, ConfigValue],
        *,
        is_known: bool = False,
    ) -> list[PartitionLog]:
        """Create partitions of a topic, durable after the next ``sync_folders``; existing ones are returned.

        Args: ``is_known``: they existed before, and could not be opened: a folder without a topic id is theirs.
        Raises: KafkaError(KAFKA_STORAGE_ERROR), when a folder cannot be created; the partitions before it were created.
        """
        self._check_open()
        return [self._create(topic, partition, topic_id, config, is_known) for partition in partitions]

    def _create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: Mapping[str, ConfigValue], is_known: bool
    ) -> PartitionLog:
        if parse_partition_folder(f"{topic}-{partition}") != (topic, partition):
            raise ValueError(f"not a valid partition: topic {topic!r}, partition {partition!r}")
        with self._creation_lock:
            found = self._hosted.find((topic, partition))
            if found is not None:
                return found.log
            log_dir = self._dir_of((topic, partition), is_known)
            if not (is_known or log_dir is None or belongs_to(log_dir.partition_path(topic, partition), topic_id)):
                self.tasks.forget_former(log_dir, (topic, partition))
            try:
                return self._open(topic, partition, topic_id, config, log_dir, is_known=is_known)
            except OSError as e:
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e

    def sync_folders(self) -> None:
        """Make created, renamed and removed folders durable. Raises: KafkaError(KAFKA_STORAGE_ERROR)."""
        for log_dir in self._dirs:
            if log_dir.is_offline and len(self._dirs) > 1:
                continue
            try:
                log_dir.sync()
            except OSError as e:
                self._hosted.note_failure(log_dir, "syncing the names of its folders", e)
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e

    def delete_topics(
        self, topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID] = (), is_last: bool = True
    ) -> None:
        """Delete partitions by topic; their folders are renamed at once and removed after file.delete.delay.ms.

        Partitions that do not exist are skipped. Args: ``topic_ids``: removed from the note of deletions; ``is_last``:
        False if another call follows, which writes the checkpoints and syncs the folders for this one too.
        Raises: KafkaError(KAFKA_STORAGE_ERROR), when a folder cannot be renamed; the others are deleted then.
        """
        self._check_open()
        failure: KafkaError | None = None
        keys = [(topic, partition) for topic, partitions in topics.items() for partition in partitions]
        for key in keys:
            try:
                self._take_out(key)
            except KafkaError as e:
                failure = e
            self._away.discard(key)
        self.cleaner.forget(keys)
        self._unforgotten.update(key for key in keys if key not in self._hosted)
        if is_last:
            forgotten, self._unforgotten = self._unforgotten, set()
            self.tasks.forget_deleted(forgotten)
            self.sync_folders()
        self.deletions.finish(topic_ids)
        if failure is not None:
            raise failure

    def _take_out(self, key: TopicPartition) -> None:
        hosted = self._hosted.find(key)
        if hosted is None:
            with self._creation_lock:
                self._put_aside_unopened(key)
            return
        with hosted.lock:
            if self._hosted.find(key) is not hosted:
                return  # deleted meanwhile
            self._hosted.remove(key)
            if hosted.log_dir is None:
                hosted.log.delete()
                return
            try:
                renamed = hosted.log_dir.rename_for_delete(*key)
            except OSError as e:
                self.deletions.keep(uuid.UUID(bytes=hosted.log.topic_id))
                hosted.log_dir.note_failure(f"deleting {key[0]}-{key[1]}", e, "deleting")
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, str(e)) from e
            delay_ms = hosted.delete_delay_ms if hosted.log.log_end_offset > 0 else 0  # an empty log has no readers
            self.tasks.remove_later(hosted.log_dir, renamed, delay_ms)

    def _put_aside_unopened(self, key: TopicPartition) -> None:
        """Rename the folder of an offline partition, if its topic is being deleted."""
        for log_dir in self._dirs:
            topic_id = topic_of(log_dir.partition_path(*key))
            if topic_id is not None and topic_id in self.deletions:
                try:
                    self.tasks.remove_later(log_dir, log_dir.rename_for_delete(*key), 0)
                except OSError as e:
                    self.deletions.keep(topic_id)
                    log_dir.note_failure(f"deleting {key[0]}-{key[1]}", e, "deleting")

    def partition(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the partition, None if it was deleted, never created, or its folder could not be read."""
        hosted = self._hosted.find((topic, partition))
        return hosted.log if hosted is not None else None

    check_config = staticmethod(check_config)

    def update_configs(self, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
        """Apply the new configurations of topics to their partitions."""
        for key, hosted in self._hosted.items():
            config = configs.get(key[0])
            if config is not None:
                hosted.note_config(config)
                hosted.log.update_config(self._with_broker_keys(key, config))

    def reconfigure(self, changed: frozenset[str]) -> None:
        """Apply changed broker configs."""
        if changed & {"log.flush.interval.ms", "log.flush.scheduler.interval.ms"}:
            self.tasks.schedule_flusher()
        if changed & CLEANER_KEYS:
            self.cleaner.reconfigure()
        if RATE in changed:
            self.mover.reconfigure()

    @property
    def metadata_dir(self) -> LogDir:
        """The folder with the metadata log."""
        assert self.opened is not None
        return self.opened.metadata

    def directory_of(self, topic: str, partition: int) -> uuid.UUID | None:
        """Return the id of the folder that a partition is in, None in memory or if it is not open."""
        hosted = self._hosted.find((topic, partition))
        return None if hosted is None or hosted.log_dir is None else hosted.log_dir.directory_id

    @property
    def directory_ids(self) -> list[uuid.UUID]:
        """Ids of the log folders that are online."""
        return [log_dir.directory_id for log_dir in self._dirs if not log_dir.is_offline]

    # -- log folders -------------------------------------------------------------------------------------------------

    @property
    def offline_dirs(self) -> dict[Path, str]:
        """Folders that cannot be written, with the reason."""
        return self._unusable | {d.path: d.failure for d in self._dirs if d.is_offline}

    def describe_dirs(self) -> list[LogDirView]:
        """Describe the log folders, in the order of log.dirs."""
        failures = self.offline_dirs
        paths = [IN_MEMORY] if self._in_memory else [str(path) for path in self._paths]
        views = {path: LogDirView(path, failures.get(Path(path), ""), {}) for path in paths}
        for key, hosted in self._hosted.items():
            if hosted.log.is_closed:
                continue
            log_dir, future = hosted.log_dir, hosted.future
            path = IN_MEMORY if log_dir is None else str(log_dir.path)
            views[path].replicas.setdefault(key, []).append(Replica(hosted.log.size_bytes, 0, is_future=False))
            if future is not None and future.log_dir is not log_dir:  # else it has replaced the partition's folder
                lag = max(0, hosted.log.log_end_offset - future.end_offset)
                replicas = views[str(future.log_dir.path)].replicas
                replicas.setdefault(key, []).append(Replica(future.size_bytes, lag, is_future=True))
        return list(views.values())

    def move_partition(self, topic: str, partition: int, path: str) -> None:
        """Begin to move a partition to another log folder; a move in progress to a third folder ends.

        Raises: KafkaError with Kafka's code and text.
        """
        key = (topic, partition)
        if len(future_folder_name(*key).encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        if path not in ([IN_MEMORY] if self._in_memory else map(str, self._paths)):
            raise KafkaError(Errors.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        if Path(path) in self.offline_dirs:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
        hosted = self._hosted.find(key)
        if hosted is None:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        log, source = hosted.log, hosted.log_dir
        if log.is_failed or log.damage_offset is not None or (source is not None and source.is_offline):
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Partition {topic}-{partition} is offline")
        for log_dir in [one for one in self._dirs if str(one.path) == path]:  # none in memory
            self.mover.move(key, hosted, log_dir)

    # -- compaction --------------------------------------------------------------------------------------------------

    def _compacted(self) -> list[Compacted]:
        return [
            Compacted(key, hosted.log, hosted.compaction)
            for key, hosted in self._hosted.items()
            if hosted.compaction is not None and not (hosted.log_dir is not None and hosted.log_dir.is_offline)
        ]
