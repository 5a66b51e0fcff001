"""The partitions that a broker hosts, their folders, and the effect of a failed disk on them.

Threads: every method from any thread. Lock: ``PartitionRegistry.lock`` guards the table; under it files are only
touched to create or delete a partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from kbroker.common.configs.config_def import INT64_MAX, ConfigValue
from kbroker.common.loggers import get_logger
from kbroker.log._flusher import FlusherPool
from kbroker.log._partition_log import PartitionLog
from kbroker.log.checkpoints import TopicPartition
from kbroker.log.compaction.log_cleaner import CompactionConfig
from kbroker.log.log_dir import LogDir

logger = get_logger(__name__)
T = TypeVar("T")


class PartitionEntry:
    """A partition in service. ``log_dir`` None: in memory; ``compaction`` None: not compacted.

    ``flushed_ms``: when it was last flushed by time.
    """

    __slots__ = ("compaction", "delete_delay_ms", "flush_ms", "flushed_ms", "log", "log_dir")

    def __init__(self, log: PartitionLog, log_dir: LogDir | None, flushed_ms: int) -> None:
        self.log = log
        self.log_dir = log_dir
        self.flushed_ms = flushed_ms
        self.flush_ms = INT64_MAX
        self.delete_delay_ms = 60_000
        self.compaction: CompactionConfig | None = None

    def note_config(self, config: Mapping[str, ConfigValue]) -> None:
        """Keep what its topic's config says to the log manager itself."""
        flush_ms, delay_ms = config.get("flush.ms"), config.get("file.delete.delay.ms")
        self.flush_ms = flush_ms if isinstance(flush_ms, int) else INT64_MAX
        self.delete_delay_ms = delay_ms if isinstance(delay_ms, int) else 60_000
        self.compaction = CompactionConfig.of(config)


class PartitionRegistry:
    """The table of partitions. Args: ``flusher``, which refuses writes to partitions of a folder that failed."""

    def __init__(self, flusher: FlusherPool) -> None:
        self.lock = threading.RLock()
        self._flusher = flusher
        self._table: dict[TopicPartition, PartitionEntry] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._table

    def __getitem__(self, key: TopicPartition) -> PartitionEntry:
        return self._table[key]

    def find(self, key: TopicPartition) -> PartitionEntry | None:
        """Return the partition, None when there is none."""
        with self.lock:
            return self._table.get(key)

    def items(self) -> list[tuple[TopicPartition, PartitionEntry]]:
        """All of them, as they are now."""
        with self.lock:
            return list(self._table.items())

    def add(self, key: TopicPartition, hosted: PartitionEntry) -> None:
        """Put a partition into service."""
        self._flusher.attach(hosted.log)
        with self.lock:
            self._table[key] = hosted

    def remove(self, key: TopicPartition) -> PartitionEntry:
        """Take a partition out; from here on its log answers as unknown. Raises: KeyError."""
        with self.lock:
            hosted = self._table.pop(key)
            hosted.log.close(clean=False)
            self._flusher.detach(hosted.log)
            return hosted

    def clear(self) -> None:
        """Forget all; their logs are closed."""
        with self.lock:
            self._table.clear()

    def counts(self, log_dirs: list[LogDir]) -> list[int]:
        """How many partitions each of the folders has."""
        with self.lock:
            return [sum(h.log_dir is d for h in self._table.values()) for d in log_dirs]

    def guarded(
        self, hosted: PartitionEntry, kind: str, key: TopicPartition, action: Callable[[], T]
    ) -> tuple[bool, T | None]:
        """Run a partition's disk work. A full disk is logged; another I/O error takes the folder offline.

        Args: ``kind`` of work, and ``key`` of the partition, for the log.

        Returns: whether it was done, and its result.
        """
        what = f"{kind} of {key[0]}-{key[1]}"
        try:
            return True, action()
        except OSError as e:
            if hosted.log_dir is None:
                logger.error("%s failed: %s", what, e)
            else:
                self.note_failure(hosted.log_dir, what, e, kind)
        except ValueError as e:  # deleted or closed meanwhile
            logger.info("%s: %s", what, e)
        return False, None

    def note_failure(self, log_dir: LogDir, what: str, error: OSError, kind: str = "") -> None:
        """Log it, once a minute for each ``kind`` of work (``what`` if there is none).

        If the folder goes offline, refuse writes to its partitions (KAFKA_STORAGE_ERROR); reads go on.
        """
        if not log_dir.note_failure(what, error, kind):
            return
        for _, hosted in self.items():
            if hosted.log_dir is log_dir:
                self._flusher.refuse_appends(hosted.log)
