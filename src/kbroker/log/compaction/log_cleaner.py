"""The log cleaner: compaction of the dirtiest partition, on its own threads and by the injected clock.

Source: ``LogCleaner``, ``LogCleanerManager``.
"""

import functools
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT64_MAX, ConfigValue
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import ByteThrottle, Cleaner
from kbroker.log.log_types import CleanResult, CorruptLogError, SegmentFacts
from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

LEAST_MEMORY_BYTES = 1 << 20
#: Broker configs that are read when the threads are created.
CLEANER_KEYS = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.threads",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
    }
)


class CompactionConfig(NamedTuple):
    """A compacted topic's settings, by Kafka's names."""

    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    delete_retention_ms: int = 86_400_000

    @classmethod
    def of(cls, config: Mapping[str, ConfigValue]) -> "CompactionConfig | None":
        """Read a topic's settings; None when it is not compacted."""
        policy = config.get("cleanup.policy") or ()
        names = [part.strip() for part in policy.split(",")] if isinstance(policy, str) else policy
        if not isinstance(names, (list, tuple)) or "compact" not in names:
            return None
        defaults = cls()
        ratio = config.get("min.cleanable.dirty.ratio")

        def number(name: str, default: int) -> int:
            value = config.get(name)
            return int(value) if isinstance(value, (int, str)) else default

        return cls(
            float(ratio) if isinstance(ratio, (int, float, str)) else defaults.min_cleanable_dirty_ratio,
            number("min.compaction.lag.ms", defaults.min_compaction_lag_ms),
            number("max.compaction.lag.ms", defaults.max_compaction_lag_ms),
            number("delete.retention.ms", defaults.delete_retention_ms),
        )


class Compacted(NamedTuple):
    """A compacted partition and its settings."""

    key: TopicPartition
    log: PartitionLog
    config: CompactionConfig


class Dirt(NamedTuple):
    """Dirty bytes of a partition, which a round would clean, and whether a round is overdue."""

    first_dirty: int
    first_uncleanable: int  # base of a segment
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool  # max.compaction.lag.ms is exceeded

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: CompactionConfig) -> bool:
        """Return whether a round is overdue, or the ratio is above (not at) the minimum."""
        return (self.is_overdue and self.cleanable_bytes > 0) or self.ratio > config.min_cleanable_dirty_ratio


def measure(log: PartitionLog, config: CompactionConfig, cleaned: int | None, now_ms: int) -> Dirt:
    """Measure the dirty part of a partition.

    Args: ``cleaned``: end of its last round; if it is outside the log's range the next round begins at the log start.
    Raises: OSError.
    """
    start, stable = log.log_start_offset, log.last_stable_offset
    segments = log.segments()
    bases = [s.base_offset for s in segments]
    first_dirty = cleaned if cleaned is not None and start <= cleaned <= log.log_end_offset else start

    def sealed_from(offset: int) -> list[SegmentFacts]:
        return segments[max(0, bisect_right(bases, offset) - 1) : -1]

    bound = min(stable, bases[-1])
    if config.min_compaction_lag_ms > 0:
        newest = now_ms - config.min_compaction_lag_ms
        young = (s.base_offset for s in sealed_from(first_dirty) if _largest_timestamp(log, s, now_ms) > newest)
        bound = min(bound, next(young, bound))
    first_uncleanable = next((s.base_offset for s in sealed_from(bound)), bases[-1])
    lowest = bases[max(0, bisect_right(bases, min(first_dirty, first_uncleanable)) - 1)]
    cleanable = sum(s.size_bytes for s in segments if lowest <= s.base_offset < first_uncleanable)
    return Dirt(
        first_dirty,
        first_uncleanable,
        sum(s.size_bytes for s in segments if s.base_offset < first_dirty),
        cleanable,
        _is_overdue(log, sealed_from(first_dirty), now_ms - config.max_compaction_lag_ms)
        if config.max_compaction_lag_ms < INT64_MAX
        else False,
    )


def _largest_timestamp(log: PartitionLog, segment: SegmentFacts, now_ms: int) -> int:
    """Return the largest timestamp of the records, or the file's modification time if they have none."""
    if segment.max_timestamp_ms >= 0 or log.directory is None:
        return segment.max_timestamp_ms
    try:
        return os.stat(os.path.join(log.directory, f"{segment.base_offset:020d}.log")).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return now_ms


def _is_overdue(log: PartitionLog, dirty: Iterable[SegmentFacts], before_ms: int) -> bool:
    """Return whether the first batch of a dirty segment is older than ``before_ms``."""
    from kbroker.protocol.batch_format import BATCH_HEADER_BYTES  # not at the start of a broker

    for segment in dirty:
        offset = max(segment.base_offset, log.log_start_offset)
        header = log.read(offset, BATCH_HEADER_BYTES).records[:BATCH_HEADER_BYTES]
        stamp = int.from_bytes(header[35:43], "big", signed=True) if len(header) == BATCH_HEADER_BYTES else -1
        if 0 < stamp < before_ms:
            return True
    return False


class LogCleaner:
    """Threads that compact partitions.

    Args:
        clock, config: of the broker.
        partitions: returns the compacted partitions.
        cleaned: ends of earlier rounds (``cleaner-offset-checkpoint``).
        store: writes the ends of rounds that its first argument returns, in the folders of the partitions in the second
            (None: in all), and returns those whose end is on disk; called before the first round of a partition, and
            after each round.
        failed: handles an OSError; decides whether the folder stays online.
    Threads: all methods from any; ``start`` creates ``log.cleaner.threads`` threads. One thread at a time works on a
    partition. Lock: ``_lock`` guards the tables; no file is touched under it.
    """

    def __init__(
        self,
        clock: BaseClock,
        config: BrokerConfig,
        partitions: Callable[[], Iterable[Compacted]],
        cleaned: Mapping[TopicPartition, int],
        store: Callable[
            [Callable[[], Mapping[TopicPartition, int]], Collection[TopicPartition] | None], Collection[TopicPartition]
        ],
        failed: Callable[[TopicPartition, str, OSError], None],
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._store = store
        self._failed = failed
        self._lock = threading.Lock()
        self._cleaned = dict(cleaned)
        self._busy: set[TopicPartition] = set()  # a thread cleans them, or ``hold`` reserves them
        self._uncleanable: set[TopicPartition] = set()
        self._config = config
        self._throttle = ByteThrottle(clock)
        self._life_lock = threading.Lock()  # serializes start, reconfigure and close; acquired first
        self._started = self._closed = False
        self._make_threads()

    def _make_threads(self) -> None:
        config = self._config
        self._backoff_ms = config.integer("log.cleaner.backoff.ms")
        threads = config.integer("log.cleaner.threads") if config.boolean("log.cleaner.enable") else 0
        memory = max(LEAST_MEMORY_BYTES, config.integer("log.cleaner.dedupe.buffer.size") // max(1, threads))
        load = config.value("log.cleaner.io.buffer.load.factor")
        load_factor = min(1.0, float(load)) if isinstance(load, (int, float)) and load > 0 else 0.9
        rate = config.value("log.cleaner.io.max.bytes.per.second")
        self._throttle.set_rate(float(rate) if isinstance(rate, (int, float)) else 0.0)
        self._cleaners = [Cleaner(memory, load_factor, self._throttle) for _ in range(threads)]
        self._schedulers = [Scheduler(self._clock, f"kafka-log-cleaner-thread-{i}") for i in range(threads)]

    def start(self) -> None:
        """Start the threads. Each cleans at once until nothing is due, and again ``log.cleaner.backoff.ms`` later."""
        with self._life_lock:
            self._started = True
            self._start_threads()

    def _start_threads(self) -> None:
        for cleaner, scheduler in zip(self._cleaners, self._schedulers, strict=True):
            scheduler.schedule("log-cleaner", functools.partial(self._run, cleaner), period_ms=max(1, self._backoff_ms))
            scheduler.start()

    def close(self) -> None:
        """End rounds in progress at their next batch, and wait for the threads."""
        with self._life_lock:
            if self._closed:
                return
            self._closed = True
            self._end_threads()

    def reconfigure(self) -> None:
        """Apply the current CLEANER_KEYS with new threads, as in Kafka; rounds in progress begin again."""
        with self._life_lock:
            if self._closed:
                return
            self._end_threads()
            self._make_threads()
            if self._started:
                self._start_threads()

    def _end_threads(self) -> None:
        for cleaner in self._cleaners:
            cleaner.stop()
        for scheduler in self._schedulers:
            scheduler.close()

    def cleaned_offset(self, key: TopicPartition) -> int | None:
        """Return the end of the partition's last round, None when it was never compacted."""
        with self._lock:
            return self._cleaned.get(key)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """Remove deleted partitions, and write the cleaner offsets without them."""
        with self._lock:
            self._uncleanable.difference_update(keys)
            known = [key for key in keys if self._cleaned.pop(key, None) is not None]
        if known:
            self.write_offsets()

    def hold(self, key: TopicPartition) -> bool:
        """Keep a partition from being cleaned until ``release``. Returns: False if a thread cleans it or it is held."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy.add(key)
            return True

    def release(self, key: TopicPartition) -> None:
        """Allow the cleaning of a partition again."""
        with self._lock:
            self._busy.discard(key)

    # -- a thread's work ---------------------------------------------------------------------------------------------

    def run_once(self) -> list[TopicPartition]:
        """Clean on the calling thread until nothing is due. Returns: the cleaned partitions."""
        cleaner = self._cleaners[0] if self._cleaners else Cleaner(LEAST_MEMORY_BYTES)
        return self._run(cleaner)

    def _run(self, cleaner: Cleaner) -> list[TopicPartition]:
        done: list[TopicPartition] = []
        while (key := self._clean_filthiest(cleaner)) is not None:
            done.append(key)
        for partition in self._partitions():  # needed by compact,delete, and by segments below the log start
            try:
                partition.log.apply_retention(self._clock.wall_ms())
            except ValueError:
                continue  # deleted in the meantime
            except OSError as e:
                self._failed(partition.key, "retention", e)
        return done

    def _clean_filthiest(self, cleaner: Cleaner) -> TopicPartition | None:
        """Clean the dirtiest due partition and return it, None when none is due or the round failed."""
        picked = self._grab()
        if picked is None:
            return None
        partition, dirt = picked
        key = partition.key
        try:
            if self.cleaned_offset(key) is None and not self._note_first(key, dirt.first_dirty):
                return None
            result = cleaner.clean(
                partition.log,
                dirt.first_dirty,
                dirt.first_uncleanable,
                now_ms=self._clock.wall_ms(),
                delete_retention_ms=partition.config.delete_retention_ms,
            )
            if result is None:
                return None
            self._note(key, result.end_offset)
            _notify(key, dirt, result)
            return key
        except CorruptLogError as e:
            logger.error("%s; the partition is not compacted any more", e)
            with self._lock:
                self._uncleanable.add(key)
        except OSError as e:
            self._failed(key, "compaction", e)
        finally:
            with self._lock:
                self._busy.discard(key)
        return None

    def _grab(self) -> tuple[Compacted, Dirt] | None:
        """Return the dirtiest due partition, reserved for this thread; None when none is due."""
        now_ms = self._clock.wall_ms()
        due: list[tuple[float, Compacted, Dirt]] = []
        resets: list[tuple[TopicPartition, int, int]] = []
        for partition in self._partitions():
            key, log = partition.key, partition.log
            with self._lock:
                if key in self._busy or key in self._uncleanable:
                    continue
            if log.is_closed or log.is_failed or log.damage_offset is not None:
                continue
            cleaned = self.cleaned_offset(key)
            try:
                dirt = measure(log, partition.config, cleaned, now_ms)
            except OSError as e:
                self._failed(key, "compaction", e)
                continue
            if cleaned is not None and cleaned != dirt.first_dirty:
                resets.append((key, cleaned, dirt.first_dirty))
            if dirt.is_due(partition.config):
                due.append((dirt.ratio, partition, dirt))
        self._reset(resets)
        for _, partition, dirt in sorted(due, key=lambda row: row[0], reverse=True):
            with self._lock:
                if partition.key not in self._busy:
                    self._busy.add(partition.key)
                    return partition, dirt
        return None

    def _reset(self, resets: Iterable[tuple[TopicPartition, int, int]]) -> None:
        """Replace ends of rounds that are outside the log's range; each row: partition, end, new end.

        A log that lost its tail grows beyond the former end, which would then exclude dirty records.
        """
        with self._lock:
            valid = [row for row in resets if self._cleaned.get(row[0]) == row[1] and row[0] not in self._busy]
            for key, former, offset in valid:
                self._cleaned[key] = offset
                logger.debug("the first dirty offset of %s-%d is %d; %d is outside the log", *key, offset, former)
        if valid:
            self.write_offsets([row[0] for row in valid])

    def _note_first(self, key: TopicPartition, offset: int) -> bool:
        """Write to disk that the partition is compacted, before its offsets get gaps. Returns: False if that failed."""
        if key in self._note(key, offset):
            return True
        with self._lock:
            self._cleaned.pop(key, None)
        return False

    def _note(self, key: TopicPartition, offset: int) -> Collection[TopicPartition]:
        with self._lock:
            self._cleaned[key] = offset
        return self.write_offsets([key])

    def write_offsets(self, keys: Collection[TopicPartition] | None = None) -> Collection[TopicPartition]:
        """Write the cleaner offsets of the folders of these partitions; None: of every folder.

        Returns: the partitions whose offset is on the disk now.
        """
        return self._store(self.cleaned_offsets, keys)

    def cleaned_offsets(self) -> dict[TopicPartition, int]:
        """Return the ends of the partitions' last rounds."""
        with self._lock:
            return dict(self._cleaned)


def _notify(key: TopicPartition, dirt: Dirt, result: CleanResult) -> None:
    logger.info(
        "compacted %s-%d up to offset %d: %d segments of %d bytes (%.0f %% dirty) are %d of %d bytes, "
        "%d of %d records stay",
        *key,
        result.end_offset,
        result.segments_before,
        result.bytes_read,
        100 * dirt.ratio,
        result.segments_after,
        result.bytes_written,
        result.records_kept,
        result.records_read,
    )
