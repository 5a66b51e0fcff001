"""Broker keys about the log: folders, segments, retention, flushing, and the defaults of topics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, MOST_THREADS, ConfigError, ConfigKey, between, key
from kbroker.common.configs.config_topic import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    GZIP_LEVELS,
    LZ4_LEVELS,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
)

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

_fixed = partial(key, importance="high")
_dynamic = partial(key, dynamic="cluster-wide")

LOG_KEYS: tuple[ConfigKey, ...] = (
    _fixed("log.dir", "string", "data", "Folder of the data, used when log.dirs is not set."),
    _fixed("log.dirs", "list", None,
        "Folders of the data, one for each disk; the first one also contains the metadata log. A new partition is "
        "created in the folder with the fewest partitions."),
    _fixed("log.retention.hours", "int", 168,
        "Retention in hours; log.retention.minutes and log.retention.ms override it."),
    _fixed("log.retention.minutes", "int", None, "Retention in minutes; log.retention.ms overrides it."),
    _dynamic("log.retention.ms", "long", None, "Age in milliseconds above which segments are deleted; negative: no "
        "limit; 0 is not allowed. Unset: log.retention.minutes applies."),
    _dynamic("log.retention.bytes", "long", -1,
        "Size in bytes of a partition above which its oldest segments are deleted; -1: no limit."),
    _fixed("log.retention.check.interval.ms", "long", 300_000,
        "Milliseconds between two retention checks.",
        between(1)),
    _dynamic("log.segment.bytes", "int", 1_073_741_824, "Size in bytes at which a new segment is started.",
        between(1024 * 1024, INT32_MAX)),
    _fixed("log.roll.hours", "int", 168, "Age in hours at which a segment is rolled; log.roll.ms overrides it.",
        between(1)),
    _dynamic("log.roll.ms", "long", None,
        "Age in milliseconds at which a segment is rolled. Unset: log.roll.hours applies.", between(1)),
    _fixed("log.roll.jitter.hours", "int", 0, "Maximum random time subtracted from the roll time, in hours.",
        between(0)),
    _dynamic("log.roll.jitter.ms", "long", None, "Maximum random time subtracted from the roll time, in milliseconds. "
        "Unset: log.roll.jitter.hours applies.", between(0)),
    _dynamic("log.segment.delete.delay.ms", "long", 60_000,
        "Milliseconds after which the file of a deleted segment is unlinked.", between(0)),
    _dynamic("log.index.size.max.bytes", "int", 10_485_760, "Largest size of an index file in bytes.", between(4)),
    _dynamic("log.index.interval.bytes", "int", 4096, "Bytes of batches between two entries of the offset index.",
        between(0)),
    _dynamic("log.flush.interval.messages", "long", INT64_MAX, "Number of records after which a log is flushed to "
        "disk; with 1, records of acks=all are on disk before the response.", between(1)),
    _dynamic("log.flush.interval.ms", "long", None, "Milliseconds after which a log is flushed to disk; 0 or less: at "
        "each check. Unset: log.flush.scheduler.interval.ms applies."),
    _fixed("log.flush.scheduler.interval.ms", "long", INT64_MAX,
        "Milliseconds between two checks of log.flush.interval.ms."),
    _fixed("log.flush.offset.checkpoint.interval.ms", "int", 60_000,
        "Milliseconds between two writes of the recovery points.", between(0)),
    _fixed("log.flush.start.offset.checkpoint.interval.ms", "int", 60_000,
        "Milliseconds between two writes of the log start offsets.", between(0)),
    _dynamic("log.preallocate", "boolean", False,
        "Whether a new segment reserves its whole size on disk, so that appends to it do not run out of space."),
    _dynamic("log.cleanup.policy", "list", ("delete",), "Default cleanup.policy of topics.", CLEANUP_POLICIES),
    _dynamic("log.message.timestamp.type", "string", "CreateTime",
        "Clock of record timestamps: the producer's (CreateTime) or the broker's (LogAppendTime).", TIMESTAMP_TYPES),
    _dynamic("log.message.timestamp.before.max.ms", "long", INT64_MAX,
        "Maximum milliseconds by which a record's timestamp may be before the broker's clock.", between(0)),
    _dynamic("log.message.timestamp.after.max.ms", "long", 3_600_000,
        "Maximum milliseconds by which a record's timestamp may be after the broker's clock.", between(0)),
    _dynamic("log.local.retention.bytes", "long", -2, "Accepted without effect; tiered storage is not supported.",
        between(-2)),
    _dynamic("log.local.retention.ms", "long", -2, "Accepted without effect; tiered storage is not supported.",
        between(-2)),
    _fixed("log.cleaner.enable", "boolean", True, "Whether topics with cleanup.policy=compact are compacted."),
    _dynamic("log.cleaner.backoff.ms", "long", 15_000, "Milliseconds that an idle cleaner waits.", between(0)),
    _dynamic("log.cleaner.dedupe.buffer.size", "long", 134_217_728,
        "Bytes of memory for the cleaner's key maps; must exceed 1 MiB for each cleaner thread."),
    _dynamic("log.cleaner.delete.retention.ms", "long", 86_400_000,
        "Milliseconds after which tombstones of compacted topics are removed.", between(0)),
    _dynamic("log.cleaner.io.buffer.load.factor", "double", 0.9, "Maximum load factor of the cleaner's key map."),
    _dynamic("log.cleaner.io.buffer.size", "int", 524_288, "Memory of the cleaner's buffers in bytes.", between(0)),
    _dynamic("log.cleaner.io.max.bytes.per.second", "double", 1.7976931348623157e308,
        "Maximum bytes per second that all cleaner threads read and write; 0 or less: no limit."),
    _dynamic("log.cleaner.max.compaction.lag.ms", "long", INT64_MAX,
        "Maximum milliseconds that a record may stay uncompacted.", between(1)),
    _dynamic("log.cleaner.min.cleanable.ratio", "double", 0.5,
        "Share of uncompacted bytes above which a log is compacted.", between(0, 1)),
    _dynamic("log.cleaner.min.compaction.lag.ms", "long", 0, "Minimum milliseconds that a record stays uncompacted.",
        between(0)),
    _dynamic("log.cleaner.threads", "int", 1, "Number of cleaner threads.", between(0, MOST_THREADS)),
    _dynamic("message.max.bytes", "int", 1_048_588,
        "Largest record batch in bytes; default of max.message.bytes of topics.", between(0)),
    _dynamic("min.insync.replicas", "int", 1,
        "Replicas that must have a record before acks=all is acknowledged, at most all replicas of the partition.",
        between(1)),
    _dynamic("compression.type", "string", "producer",
        "Default codec of stored batches. producer: batches are stored as sent.", COMPRESSION_TYPES),
    _dynamic("compression.gzip.level", "int", -1, "Level of gzip compression.", GZIP_LEVELS),
    _dynamic("compression.lz4.level", "int", 9, "Level of lz4 compression.", LZ4_LEVELS),
    _dynamic("compression.zstd.level", "int", 3, "Level of zstd compression.", ZSTD_LEVELS),
    _dynamic("unclean.leader.election.enable", "boolean", False, "Whether an out-of-sync replica may become leader. "
        "Accepted without effect; only ElectLeaders makes such a replica the leader."),
    key("num.recovery.threads.per.data.dir", "int", 2, "Threads that recover logs after a crash.",
        between(1, MOST_THREADS), importance="high", dynamic="cluster-wide"),
    _dynamic("producer.id.expiration.ms", "int", 86_400_000,
        "Milliseconds after which the state of an idle producer is deleted.", between(1)),
    _fixed("producer.id.expiration.check.interval.ms", "int", 600_000,
        "Milliseconds between two searches for idle producers.", between(1), importance="low"),
)  # fmt: skip


def check_log(config: BrokerConfig) -> None:
    """Check retention, the cleaner's memory and the folders. Raises: ConfigError."""
    if config.value("log.retention.ms") == 0:
        raise ConfigError("", 0, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    share_bytes = config.integer("log.cleaner.dedupe.buffer.size") // max(1, config.integer("log.cleaner.threads"))
    if share_bytes <= 1 << 20:
        raise ConfigError("", share_bytes, "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    if config.is_set("log.dirs") and not config.words("log.dirs"):
        raise ConfigError("log.dirs", "", "A folder is needed", "one or more folders")
