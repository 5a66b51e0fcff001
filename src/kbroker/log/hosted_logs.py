"""Table of the partitions that a broker hosts, with their log folders, and the handling of disk failures.

Threads: every method from any thread. Locks: ``PartitionEntry.lock`` is held while a partition is deleted, or moved to
its future folder, either of which may wait for a disk; ``PartitionRegistry.lock``, a leaf, guards the table.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from kbroker.common.configs.config_def import INT64_MAX, ConfigValue
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction.log_cleaner import CompactionConfig
from kbroker.log.log_dir import LogDir, parse_partition_folder

logger = get_logger(__name__)
T = TypeVar("T")


class FutureReplica:
    """A copy of a partition in another log folder, which will replace the partition's present folder.

    ``copied``: bytes by base offset of the segment; ``sealed``: base offsets of the segments that are complete;
    ``formers``: ids of offline log folders that earlier moves have left, which may still have the partition.
    """

    __slots__ = ("copied", "end_offset", "folder", "formers", "is_begun", "log_dir", "sealed")

    def __init__(self, log_dir: LogDir, folder: Path) -> None:
        self.log_dir = log_dir
        self.folder = folder
        self.copied: dict[int, int] = {}
        self.sealed: set[int] = set()
        self.formers: list[uuid.UUID] = []
        self.end_offset = 0
        self.is_begun = False

    @property
    def size_bytes(self) -> int:
        return sum(self.copied.copy().values())


class PartitionEntry:
    """A partition in service. ``log_dir`` None: in memory; ``compaction`` None: not compacted.

    ``flushed_ms``: when it was last flushed by time; ``future``: its copy while it is moved; ``lock`` guards
    ``log_dir`` and ``future``.
    """

    __slots__ = ("compaction", "delete_delay_ms", "flush_ms", "flushed_ms", "future", "lock", "log", "log_dir")

    def __init__(self, log: PartitionLog, log_dir: LogDir | None, flushed_ms: int) -> None:
        self.log = log
        self.log_dir = log_dir
        self.lock = threading.Lock()
        self.flushed_ms = flushed_ms
        self.flush_ms = INT64_MAX
        self.delete_delay_ms = 60_000
        self.compaction: CompactionConfig | None = None
        self.future: FutureReplica | None = None

    def is_in(self, log_dir: LogDir) -> bool:
        """Return whether the partition, or its copy, is in a log folder."""
        future = self.future  # read first: it is reset after log_dir changes
        return self.log_dir is log_dir or (future is not None and future.log_dir is log_dir)

    def note_config(self, config: Mapping[str, ConfigValue]) -> None:
        """Store the values of the topic's config that the log manager uses."""
        flush_ms, delay_ms = config.get("flush.ms"), config.get("file.delete.delay.ms")
        self.flush_ms = flush_ms if isinstance(flush_ms, int) else INT64_MAX
        self.delete_delay_ms = delay_ms if isinstance(delay_ms, int) else 60_000
        self.compaction = CompactionConfig.of(config)


class PartitionRegistry:
    """Table of the partitions in service."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._table: dict[TopicPartition, PartitionEntry] = {}
        self._counts: Counter[LogDir] = Counter()  # partitions and future replicas of each folder

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._table

    def __getitem__(self, key: TopicPartition) -> PartitionEntry:
        return self._table[key]

    def find(self, key: TopicPartition) -> PartitionEntry | None:
        """Return the partition, None if it is not in the table."""
        with self.lock:
            return self._table.get(key)

    def items(self) -> list[tuple[TopicPartition, PartitionEntry]]:
        """Return all partitions at this moment."""
        with self.lock:
            return list(self._table.items())

    def add(self, key: TopicPartition, hosted: PartitionEntry) -> None:
        """Put a partition into service."""
        if hosted.log_dir is not None:
            hosted.log_dir.flusher.attach(hosted.log)
        with self.lock:
            self._table[key] = hosted
            self._count(hosted.log_dir, 1)
        self._refuse_if_offline(hosted)

    def remove(self, key: TopicPartition) -> PartitionEntry:
        """Take a partition out of service, close its log without a flush, and return it. Raises: KeyError."""
        with self.lock:
            hosted = self._table.pop(key)
            self.set_future(hosted, None)
            self._count(hosted.log_dir, -1)
        hosted.log.close(clean=False)
        if hosted.log_dir is not None:
            hosted.log_dir.flusher.detach(hosted.log)
        return hosted

    def set_future(self, hosted: PartitionEntry, future: FutureReplica | None) -> None:
        """Begin a move to ``future``, or end the move (None)."""
        with self.lock:
            if hosted.future is not None:
                self._count(hosted.future.log_dir, -1)
            hosted.future = future
            if future is not None:
                self._count(future.log_dir, 1)

    def set_folder(self, hosted: PartitionEntry, former: LogDir, log_dir: LogDir) -> None:
        """Record that a partition was moved to its future folder, and give it the flusher of that folder.

        For readers of the table the move is over when ``set_future`` is called.
        """
        with self.lock:
            self._count(former, -1)
            hosted.log_dir = log_dir
            self._count(log_dir, 1)
        log_dir.flusher.attach(hosted.log)
        log_dir.flusher.mark(hosted.log)  # appends since the move, for which the former flusher was called
        former.flusher.detach(hosted.log)
        self._refuse_if_offline(hosted)

    def _refuse_if_offline(self, hosted: PartitionEntry) -> None:
        """Refuse writes to a partition whose new folder failed before `note_failure` could find it there."""
        log_dir = hosted.log_dir
        if log_dir is not None and log_dir.is_offline:
            log_dir.flusher.refuse_appends(hosted.log)

    def _count(self, log_dir: LogDir | None, change: int) -> None:
        if log_dir is not None:
            self._counts[log_dir] += change

    def close(self, log_dir: LogDir | None) -> tuple[list[TopicPartition], bool]:
        """Close the partitions of a folder; None: those in memory.

        A log that has failed, for example because the disk is full, is closed without a flush, which would fail again.
        Returns: the partitions, and whether all were closed with their records on the disk.
        """
        entries = [row for row in self.items() if row[1].log_dir is log_dir]
        is_flushed = True
        for key, hosted in entries:
            is_sound = not hosted.log.is_failed
            is_flushed &= self.guarded(hosted, "closing", key, partial(hosted.log.close, is_sound))[0] and is_sound
            if log_dir is not None:
                log_dir.flusher.detach(hosted.log)
        return [key for key, _ in entries], is_flushed

    def clear(self) -> None:
        """Empty the table; its logs are already closed."""
        with self.lock:
            self._table.clear()
            self._counts.clear()

    def emptiest(self, log_dirs: list[LogDir]) -> LogDir:
        """Return the folder with the fewest partitions, future replicas included; the first of several."""
        with self.lock:
            return min(log_dirs, key=lambda log_dir: self._counts[log_dir])

    def guarded(
        self, hosted: PartitionEntry, kind: str, key: TopicPartition, action: Callable[[], T]
    ) -> tuple[bool, T | None]:
        """Run a partition's disk work and log its failure, which takes the folder offline unless it is temporary.

        Args: ``kind`` of work and ``key`` of the partition, for the log.

        Returns: True and the result of the action; False and None after a failure.
        """
        try:
            return True, action()
        except OSError as e:
            self._note(hosted, kind, key, e)
        except ValueError as e:  # deleted or closed
            logger.info("%s of %s-%d: %s", kind, *key, e)
        return False, None

    def note_failed(self, key: TopicPartition, kind: str, error: OSError) -> None:
        """Handle the failure of a partition's disk work as ``guarded`` does; for a deleted partition only log it."""
        hosted = self.find(key)
        if hosted is None:
            logger.info("%s of %s-%d: %s", kind, *key, error)
        else:
            self._note(hosted, kind, key, error)

    def _note(self, hosted: PartitionEntry, kind: str, key: TopicPartition, error: OSError) -> None:
        what = f"{kind} of {key[0]}-{key[1]}"
        if hosted.log_dir is None:
            logger.error("%s failed: %s", what, error)
        else:
            self.note_failure(hosted.log_dir, what, error, kind)

    def flush_again(self, folder: str) -> None:
        """Queue the flush of the partition with this folder name again, after it could not be tried."""
        key = parse_partition_folder(folder)
        hosted = self.find(key) if key is not None else None
        if hosted is not None and hosted.log_dir is not None:
            hosted.log_dir.flusher.mark(hosted.log)

    def note_failure(self, log_dir: LogDir, what: str, error: OSError, kind: str = "") -> None:
        """Log a failure, once a minute for each ``kind`` of work (``what`` if there is none).

        If the folder goes offline, refuse writes to its partitions (KAFKA_STORAGE_ERROR); reads continue.
        """
        if not log_dir.note_failure(what, error, kind):
            return
        for _, hosted in self.items():
            if hosted.log_dir is log_dir:
                log_dir.flusher.refuse_appends(hosted.log)
