"""Periodic tasks of all partitions: retention, flushes by time, expiry of idle producers, checkpoints.

With several log folders each has its own thread for its tasks, so that a disk that does not respond delays only the
tasks of its folder.

Threads: those of the schedulers, and those of callers that run a task at once. Lock: ``LogDir.checkpoints_lock``.
Source: ``LogManager.startupWithConfigHandling``, ``checkpointLogRecoveryOffsets``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT64_MAX
from kbroker.common.topic_names import TopicPartition
from kbroker.log._partition_log import PartitionLog
from kbroker.log.checkpoints import CheckpointFile
from kbroker.log.failed_io import LOOK_PERIOD_MS, FailedIo
from kbroker.log.hosted_logs import PartitionEntry, PartitionRegistry
from kbroker.log.log_dir import LogDir, remove_folder
from kbroker.log.scheduler import ScheduledTask, Scheduler

INITIAL_TASK_DELAY_MS = 30_000
PURGE_PERIOD_MS, LEAST_PURGE_PERIOD_MS = 30_000, 1000  # at least: each run takes the append lock of every partition
HIGH_WATERMARK_PERIOD_MS = 5_000  # replica.high.watermark.checkpoint.interval.ms
T = TypeVar("T")


class LogTasks:
    """The background tasks of a log manager. Without ``folders`` a task applies to all of them.

    Args:
        hosted: the partitions.
        log_dirs: the log folders; none: in memory, nothing is written.
        scheduler: runs the tasks, unless there are several folders.
        config, clock: of the broker.
    """

    def __init__(
        self,
        hosted: PartitionRegistry,
        log_dirs: Sequence[LogDir],
        scheduler: Scheduler,
        config: BrokerConfig,
        clock: BaseClock,
    ) -> None:
        self._hosted = hosted
        self._dirs = log_dirs
        self._scheduler = scheduler
        self._schedulers = dict.fromkeys(log_dirs, scheduler)
        if len(log_dirs) > 1:
            self._schedulers = {one: Scheduler(clock, f"log-scheduler-{at}") for at, one in enumerate(log_dirs)}
        self._config = config
        self._clock = clock
        self.failed_io = FailedIo(hosted, log_dirs, clock)
        self._flush_tasks: list[ScheduledTask] = []

    @property
    def schedulers(self) -> set[Scheduler]:
        """The schedulers of the tasks."""
        return {self._scheduler, *self._schedulers.values()}

    def schedule(self) -> None:
        """Schedule all tasks."""
        integer = self._config.integer
        self._every("log-retention", self.apply_retention, integer("log.retention.check.interval.ms"))
        purge_ms = max(LEAST_PURGE_PERIOD_MS, min(integer("log.segment.delete.delay.ms"), PURGE_PERIOD_MS))
        self._every("segment-deletion", self.purge_deleted, purge_ms)
        check_ms = integer("producer.id.expiration.check.interval.ms")
        # not soon after the start, when producers whose records have old timestamps may send batches again
        self._every("producer-expiration", self.expire_producers, check_ms, check_ms)
        self.schedule_flusher()
        if self._dirs:
            self._every("failed-io", self.failed_io.look, LOOK_PERIOD_MS)
            every = integer("log.flush.offset.checkpoint.interval.ms")
            self._every("recovery-point-checkpoint", self.write_recovery_points, every)
            every = integer("log.flush.start.offset.checkpoint.interval.ms")
            self._every("log-start-checkpoint", self.write_log_starts, every)
            every = HIGH_WATERMARK_PERIOD_MS  # a kill before the first write loses offsets unnoticed
            self._every("high-watermark-checkpoint", self.write_high_watermarks, every)

    def schedule_flusher(self) -> None:
        """Schedule flushes by time with the configured interval."""
        while self._flush_tasks:
            self._flush_tasks.pop().cancel()
        flush_ms = self._config.value("log.flush.interval.ms")
        # unlike in Kafka, log.flush.interval.ms alone is enough; there the scheduler's interval must be set too
        period_ms = min(
            self._config.integer("log.flush.scheduler.interval.ms"),
            flush_ms if isinstance(flush_ms, int) else INT64_MAX,
        )
        if period_ms < INT64_MAX:
            self._flush_tasks = self._every("log-flusher", self.flush_by_time, period_ms)

    def _every(
        self, name: str, run: Callable[..., object], period_ms: int, first_ms: int = INITIAL_TASK_DELAY_MS
    ) -> list[ScheduledTask]:
        """Run a task of each folder periodically, for the first time after at most ``first_ms``."""
        # unlike in Kafka, a period shorter than the initial delay counts from the start
        times = {"delay_ms": max(0, min(first_ms, period_ms)), "period_ms": max(1, period_ms)}
        if not self._dirs:
            return [self._scheduler.schedule(name, run, **times)]
        return [
            scheduler.schedule(name, functools.partial(run, log_dir), **times)
            for log_dir, scheduler in self._schedulers.items()
        ]

    def remove_later(self, log_dir: LogDir, folder: Path, delay_ms: int) -> None:
        """Remove a folder that was renamed for deletion, after a delay."""
        remove = functools.partial(remove_folder, folder)
        self._schedulers[log_dir].schedule(f"remove {folder.name}", remove, delay_ms=delay_ms)

    def apply_retention(self, *folders: LogDir) -> int:
        """Remove segments by retention.ms, retention.bytes and log start. Returns: the number of removed segments."""
        return sum(self._each(folders, "retention", PartitionLog.apply_retention))

    def purge_deleted(self, *folders: LogDir) -> None:
        """Unlink the files of removed segments after file.delete.delay.ms."""
        self._each(folders, "unlinking segments", PartitionLog.purge_deleted)

    def expire_producers(self, *folders: LogDir) -> None:
        """Remove idle producers (producer.id.expiration.ms)."""
        self._each(folders, "producer expiration", PartitionLog.expire_producers)

    def late_transactions(self) -> int:
        """Count partitions with an open transaction without a batch for transaction.max.timeout.ms and five minutes."""
        max_timeout_ms, now_ms = self._config.integer("transaction.max.timeout.ms"), self._clock.wall_ms()
        return sum(
            not hosted.log.is_closed and hosted.log.has_late_transaction(now_ms, max_timeout_ms)
            for _, hosted in self._hosted.items()
        )

    def _entries(self, folders: Collection[LogDir]) -> list[tuple[TopicPartition, PartitionEntry]]:
        return [row for row in self._hosted.items() if not folders or row[1].log_dir in folders]

    def _each(self, folders: Collection[LogDir], what: str, action: Callable[[PartitionLog, int], T]) -> list[T]:
        """Run ``action`` on every partition with the wall clock's time; failures are left out of the results."""
        results = []
        for key, hosted in self._entries(folders):
            run = functools.partial(action, hosted.log, self._clock.wall_ms())
            done, result = self._hosted.guarded(hosted, what, key, run)
            if done and result is not None:
                results.append(result)
        return results

    def flush_by_time(self, *folders: LogDir) -> None:
        """Flush partitions whose flush.ms has passed since their last flush."""
        for key, hosted in self._entries(folders):
            now = self._clock.now_ms()
            if now - hosted.flushed_ms >= hosted.flush_ms:
                hosted.flushed_ms = now
                self._hosted.guarded(hosted, "flush", key, hosted.log.flush)

    def write_checkpoints(self, *folders: LogDir) -> None:
        """Write recovery points, log starts and high watermarks."""
        self.write_recovery_points(*folders)
        self.write_log_starts(*folders)
        self.write_high_watermarks(*folders)

    def write_recovery_points(self, *folders: LogDir) -> None:
        """Write the recovery points."""
        for log_dir in folders or self._dirs:
            self._write(log_dir, "recovery points", log_dir.recovery_points, _recovery_point)

    def write_log_starts(self, *folders: LogDir) -> set[TopicPartition]:
        """Write the start of each log that starts above the base of its first segment.

        Returns: the partitions whose start is not on the disk, as their folder is offline or could not be written.
        """
        unwritten: set[TopicPartition] = set()
        for log_dir in folders or self._dirs:
            unwritten |= self._write(log_dir, "log starts", log_dir.log_starts, _explicit_log_start)
        return unwritten

    def write_log_starts_of(self, keys: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Call ``write_log_starts`` for the folders of these partitions, and of their copies."""
        entries = [hosted for key in keys if (hosted := self._hosted.find(key)) is not None]
        folders = [log_dir for log_dir in self._dirs if any(hosted.is_in(log_dir) for hosted in entries)]
        return self.write_log_starts(*folders) if folders else set()

    def write_high_watermarks(self, *folders: LogDir) -> None:
        """Write the high watermarks; the next start reports logs that end below them, see ``StartReport.note_lost``."""
        for log_dir in folders or self._dirs:
            self._write(log_dir, "high watermarks", log_dir.high_watermarks, _high_watermark)

    def write_cleaner_offsets(
        self, offsets: Callable[[], Mapping[TopicPartition, int]], keys: Collection[TopicPartition] | None
    ) -> Collection[TopicPartition]:
        """Write the ends of compactions in the folders of ``keys`` (None: in all).

        Returns: the partitions whose offsets are on the disk now; in memory, all of them.
        """
        if not self._dirs:
            return offsets().keys()
        written: set[TopicPartition] = set()
        for log_dir in self._dirs:
            if keys is None or any(self._is_in(key, log_dir) for key in keys):
                written |= self.write_cleaner_offsets_in(log_dir, offsets)
        return written

    def write_cleaner_offsets_in(
        self, log_dir: LogDir, offsets: Callable[[], Mapping[TopicPartition, int]]
    ) -> set[TopicPartition]:
        """Write the ends of compactions in one folder. Returns: the partitions whose offsets are on the disk now."""
        with log_dir.checkpoints_lock:
            mine = {key: offset for key, offset in offsets().items() if self._is_in(key, log_dir)}
            try:
                log_dir.cleaner_offsets.write(mine)
            except OSError as e:
                self._hosted.note_failure(log_dir, "writing cleaner offsets", e)
                return set()
        return set(mine)

    def _is_in(self, key: TopicPartition, log_dir: LogDir) -> bool:
        hosted = self._hosted.find(key)
        return log_dir.holds(key) if hosted is None else hosted.is_in(log_dir)

    def forget_deleted(self, keys: Collection[TopicPartition]) -> None:
        """Remove deleted partitions from the checkpoints that a start reads.

        A folder whose checkpoints have none of them is skipped without a wait. A write in progress may add some:
        `forget_former` removes those before a log of the same name is created in the folder.
        """
        for log_dir in self._dirs:
            if log_dir.has_offsets(keys):
                with log_dir.checkpoints_lock:
                    self._forget(log_dir, keys)

    def forget_former(self, log_dir: LogDir, key: TopicPartition) -> None:
        """Remove a deleted partition from a folder's checkpoints, before another of its name is created there.

        Otherwise a start after a kill would apply the log start, or the recovery point, of the deleted partition to
        the new one, and cut acknowledged records, or report records as lost by its high watermark. The high watermarks
        of all deleted partitions of the topic are removed, so that creating them again costs one write.
        """
        with log_dir.checkpoints_lock:
            self._forget(log_dir, [key])
            known = log_dir.high_watermarks.offsets
            if log_dir.is_offline or known.get(key, 0) <= 0:
                return
            left = {other: offset for other, offset in known.items() if other[0] != key[0] or other in self._hosted}
            try:
                log_dir.high_watermarks.write(left)
            except OSError as e:
                self._hosted.note_failure(log_dir, "writing high watermarks without that of a deleted partition", e)

    def forget_missing(self) -> set[TopicPartition]:
        """Remove from each folder's checkpoints the partitions that it no longer has; a kill may have prevented that.

        Returns: the partitions named by a checkpoint that no folder has.
        """
        found: set[TopicPartition] = set()
        for log_dir in self._dirs:
            with log_dir.checkpoints_lock:
                files = log_dir.recovery_points, log_dir.log_starts, log_dir.cleaner_offsets
                known = {key for one in files for key in one.offsets}
                missing = {key for key in known if key not in self._hosted and not log_dir.holds(key)}
                if missing:
                    self._forget(log_dir, missing)
                    found |= missing
        return {key for key in found if not any(log_dir.holds(key) for log_dir in self._dirs)}

    def _forget(self, log_dir: LogDir, keys: Collection[TopicPartition]) -> None:
        """Remove partitions from the checkpoints of one folder; the caller holds the lock."""
        try:
            if not log_dir.is_offline:
                log_dir.forget_offsets(keys)
        except OSError as e:
            self._hosted.note_failure(log_dir, "writing the offsets without those of deleted partitions", e)

    def _write(
        self,
        log_dir: LogDir,
        what: str,
        checkpoint: CheckpointFile[TopicPartition],
        offset_of: Callable[[PartitionLog, bool], int | None],
    ) -> set[TopicPartition]:
        """Write a checkpoint; a partition that this start could not open keeps its offset.

        Args: ``offset_of`` gets the log, and whether the partition is in the checkpoint as read or last written.
        Returns: the partitions that could not be written, or whose folder is offline.
        """
        with log_dir.checkpoints_lock:
            items = self._hosted.items()
            opened = {key for key, _ in items}
            keys = {key for key, hosted in items if hosted.is_in(log_dir)}
            if log_dir.is_offline:
                return keys
            kept = checkpoint.offsets
            offsets: dict[TopicPartition, int | None] = {
                key: offset for key, offset in kept.items() if key not in opened and log_dir.holds(key)
            }
            offsets |= {key: offset_of(hosted.log, key in kept) for key, hosted in items if key in keys}
            try:
                checkpoint.write({key: offset for key, offset in offsets.items() if offset is not None})
            except OSError as e:
                self._hosted.note_failure(log_dir, f"writing {what}", e)
                return keys
        return set()


def _high_watermark(log: PartitionLog, _: bool) -> int:
    return log.high_watermark


def _recovery_point(log: PartitionLog, _: bool) -> int:
    """Return the flushed offset, at most the offset of the damage: an unclean start then finds the damage again."""
    damage = log.damage_offset
    return log.flushed_offset if damage is None else min(log.flushed_offset, damage)


def _explicit_log_start(log: PartitionLog, was_explicit: bool) -> int | None:
    """Return the start of a log from which records were deleted, None if it starts with its first segment.

    The start is kept after the segments with these records are removed, since a power cut may undo the removals.
    """
    start = log.log_start_offset
    return start if was_explicit or start > log.segments()[0].base_offset else None
