"""Periodic tasks of all partitions: retention, flushes by time, expiry of idle producers, checkpoints.

Threads: the scheduler's, and those of callers that run a task at once.
Source: ``LogManager.startupWithConfigHandling``, ``checkpointLogRecoveryOffsets``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT64_MAX
from kbroker.common.topic_names import TopicPartition
from kbroker.log._partition_log import PartitionLog
from kbroker.log.failed_io import LOOK_PERIOD_MS, FailedIo
from kbroker.log.hosted_logs import PartitionRegistry
from kbroker.log.log_dir import LogDir
from kbroker.log.scheduler import ScheduledTask, Scheduler

INITIAL_TASK_DELAY_MS = 30_000
PURGE_PERIOD_MS = 30_000
HIGH_WATERMARK_PERIOD_MS = 5_000  # replica.high.watermark.checkpoint.interval.ms
T = TypeVar("T")


class LogTasks:
    """The background tasks of a log manager.

    Args:
        hosted: the partitions.
        log_dirs: the log folders; none: in memory, nothing is written.
        scheduler: runs the tasks.
        config: the broker's configuration.
        clock: the clock.
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
        self._config = config
        self._clock = clock
        self.failed_io = FailedIo(hosted, log_dirs, clock)
        self._flush_task: ScheduledTask | None = None
        self._checkpoints_lock = threading.Lock()  # older offsets never replace newer ones

    def schedule(self) -> None:
        """Schedule all tasks."""
        integer = self._config.integer
        self._every("log-retention", self.apply_retention, integer("log.retention.check.interval.ms"))
        purge_ms = min(integer("log.segment.delete.delay.ms"), PURGE_PERIOD_MS)
        self._every("segment-deletion", self.purge_deleted, purge_ms)
        check_ms = integer("producer.id.expiration.check.interval.ms")
        # not soon after the start, when producers whose records have old time stamps may send batches again
        self._scheduler.schedule("producer-expiration", self.expire_producers, delay_ms=check_ms, period_ms=check_ms)
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
        if self._flush_task is not None:
            self._flush_task.cancel()
            self._flush_task = None
        flush_ms = self._config.value("log.flush.interval.ms")
        # unlike in Kafka, log.flush.interval.ms alone is enough; there the scheduler's interval must be set too
        period_ms = min(
            self._config.integer("log.flush.scheduler.interval.ms"),
            flush_ms if isinstance(flush_ms, int) else INT64_MAX,
        )
        if period_ms < INT64_MAX:
            self._flush_task = self._every("log-flusher", self.flush_by_time, period_ms)

    def _every(self, name: str, run: Callable[[], object], period_ms: int) -> ScheduledTask:
        # unlike in Kafka, a period shorter than the initial delay counts from the start
        delay_ms = max(0, min(INITIAL_TASK_DELAY_MS, period_ms))
        return self._scheduler.schedule(name, run, delay_ms=delay_ms, period_ms=max(1, period_ms))

    def apply_retention(self) -> int:
        """Remove segments by retention.ms, retention.bytes and log start. Returns: the number of removed segments."""
        return sum(self._each("retention", PartitionLog.apply_retention))

    def purge_deleted(self) -> None:
        """Unlink the files of removed segments after file.delete.delay.ms."""
        self._each("unlinking segments", PartitionLog.purge_deleted)

    def expire_producers(self) -> None:
        """Remove idle producers (producer.id.expiration.ms)."""
        self._each("producer expiration", PartitionLog.expire_producers)

    def late_transactions(self) -> int:
        """Count partitions with a transaction open for longer than transaction.max.timeout.ms and five minutes."""
        max_timeout_ms, now_ms = self._config.integer("transaction.max.timeout.ms"), self._clock.wall_ms()
        return sum(
            not hosted.log.is_closed and hosted.log.has_late_transaction(now_ms, max_timeout_ms)
            for _, hosted in self._hosted.items()
        )

    def _each(self, what: str, action: Callable[[PartitionLog, int], T]) -> list[T]:
        """Run ``action`` on every partition with the wall clock's time; failures are left out of the results."""
        results = []
        for key, hosted in self._hosted.items():
            run = functools.partial(action, hosted.log, self._clock.wall_ms())
            done, result = self._hosted.guarded(hosted, what, key, run)
            if done and result is not None:
                results.append(result)
        return results

    def flush_by_time(self) -> None:
        """Flush partitions whose flush.ms has passed since their last flush."""
        for key, hosted in self._hosted.items():
            now = self._clock.now_ms()
            if now - hosted.flushed_ms >= hosted.flush_ms:
                hosted.flushed_ms = now
                self._hosted.guarded(hosted, "flush", key, hosted.log.flush)

    def write_checkpoints(self) -> None:
        """Write recovery points, log starts and high watermarks of every folder."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()

    def write_recovery_points(self) -> None:
        """Write the recovery points of every folder."""
        with self._checkpoints_lock:
            self._write(
                "recovery points", lambda d, o: d.write_recovery_points(o), _recovery_point, lambda d: d.recovery_points
            )

    def write_log_starts(self) -> set[TopicPartition]:
        """Write the start of each log that starts above the base of its first segment.

        Returns: the partitions whose start is not on the disk, as their folder is offline or could not be written.
        """
        with self._checkpoints_lock:
            return self._write(
                "log starts", lambda d, o: d.write_log_starts(o), _explicit_log_start, lambda d: d.log_starts
            )

    def forget_offsets(self, keys: Collection[TopicPartition]) -> None:
        """Remove deleted partitions from the checkpoints, before others of the same names are created.

        Otherwise a start after a kill would apply the log start, or the recovery point, of the deleted partition to
        the new one, and cut acknowledged records.
        """
        with self._checkpoints_lock:
            for log_dir in self._dirs:
                self._forget(log_dir, keys)

    def forget_missing(self) -> set[TopicPartition]:
        """Remove partitions that a folder no longer has from its checkpoints: a kill prevented that.

        Returns: the partitions named by a checkpoint that no folder has.
        """
        found: set[TopicPartition] = set()
        with self._checkpoints_lock:
            for log_dir in self._dirs:
                known = {*log_dir.recovery_points, *log_dir.log_starts, *log_dir.cleaner_offsets}
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

    def write_high_watermarks(self) -> None:
        """Write the offsets that the next start must find at least; see ``LogManager._report_lost``."""
        with self._checkpoints_lock:
            self._write(
                "high watermarks",
                lambda d, o: d.write_high_watermarks(o),
                lambda log, _: log.high_watermark,
                lambda d: d.high_watermarks,
            )

    def forget_high_watermark(self, key: TopicPartition) -> None:
        """Remove a partition about to be created from the checkpoint, where a deleted one of its name would look lost.

        The others of its topic are removed too, so that creating them again costs one write.
        """
        with self._checkpoints_lock:
            for log_dir in self._dirs:
                known = log_dir.high_watermarks
                if log_dir.is_offline or known.get(key, 0) <= 0:
                    continue
                left = {other: offset for other, offset in known.items() if other[0] != key[0] or other in self._hosted}
                try:
                    log_dir.write_high_watermarks(left)
                except OSError as e:
                    self._hosted.note_failure(log_dir, "writing high watermarks without that of a deleted partition", e)

    def _write(
        self,
        what: str,
        write: Callable[[LogDir, dict[TopicPartition, int]], None],
        offset_of: Callable[[PartitionLog, bool], int | None],
        at_start: Callable[[LogDir], dict[TopicPartition, int]] | None = None,
    ) -> set[TopicPartition]:
        """Write a checkpoint; a partition that this start could not open keeps its offset (``at_start``).

        Args: ``offset_of`` gets the log, and whether the partition is in the checkpoint as read or last written.
        Returns: the partitions whose folder is offline or could not be written.
        """
        unwritten: set[TopicPartition] = set()
        items = self._hosted.items()
        opened = {key for key, _ in items}
        for log_dir in self._dirs:
            keys = {key for key, hosted in items if hosted.is_in(log_dir)}
            if log_dir.is_offline:
                unwritten |= keys
                continue
            kept = at_start(log_dir) if at_start is not None else {}
            offsets: dict[TopicPartition, int | None] = {
                key: offset for key, offset in kept.items() if key not in opened and log_dir.holds(key)
            }
            offsets |= {key: offset_of(hosted.log, key in kept) for key, hosted in items if key in keys}
            try:
                write(log_dir, {key: offset for key, offset in offsets.items() if offset is not None})
            except OSError as e:
                self._hosted.note_failure(log_dir, f"writing {what}", e)
                unwritten |= keys
        return unwritten


def _recovery_point(log: PartitionLog, _: bool) -> int:
    """Return the flushed offset, at most the offset of the damage: an unclean start then finds the damage again."""
    damage = log.damage_offset
    return log.flushed_offset if damage is None else min(log.flushed_offset, damage)


def _explicit_log_start(log: PartitionLog, was_explicit: bool) -> int | None:
    """Return the start of a log whose records were deleted, None for one that starts with its first segment.

    It is kept when the segments with these records are removed: a power cut may undo that, as no sync follows.
    """
    start = log.log_start_offset
    return start if was_explicit or start > log.segments()[0].base_offset else None
