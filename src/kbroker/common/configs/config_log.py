"""Broker keys about the log: folders, segments, retention, flushing, and the defaults of topics."""

from __future__ import annotations

from kbroker.common.configs.config_def import (
    INT32_MAX,
    INT64_MAX,
    MOST_THREADS,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Importance,
    Validator,
    between,
)
from kbroker.common.configs.config_topic import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    GZIP_LEVELS,
    LZ4_LEVELS,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
)

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _fixed(
    name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str,
    importance: Importance = Importance.HIGH,
) -> ConfigKey:  # fmt: skip
    return ConfigKey(name, kind, default, doc, validator, importance)


def _dynamic(name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, validator, Importance.MEDIUM, Dynamic.CLUSTER_WIDE)


LOG_KEYS: tuple[ConfigKey, ...] = (
    _fixed("log.dir", STRING, "data", None, "Folder of the data, used when log.dirs is not set."),
    _fixed("log.dirs", LIST, None, None, "Folder of the data. One folder: several are refused."),
    _fixed("log.retention.hours", INT, 168, None,
           "Retention in hours; log.retention.minutes and log.retention.ms win over it."),
    _fixed("log.retention.minutes", INT, None, None, "Retention in minutes; log.retention.ms wins over it."),
    _dynamic("log.retention.ms", LONG, None, None,
             "Age in milliseconds above which segments are removed; not 0; below: no limit. Unset: "
             "log.retention.minutes counts."),
    _dynamic("log.retention.bytes", LONG, -1, None,
             "Size in bytes of a partition above which its oldest segments are removed; -1: no limit."),
    _fixed("log.retention.check.interval.ms", LONG, 300_000, between(1),
           "How often retention is applied, in milliseconds."),
    _dynamic("log.segment.bytes", INT, 1_073_741_824, between(1024 * 1024, INT32_MAX),
             "Size in bytes at which a new segment is begun."),
    _fixed("log.roll.hours", INT, 168, between(1),
           "Age in hours at which a segment is rolled; log.roll.ms wins over it."),
    _dynamic("log.roll.ms", LONG, None, between(1),
             "Age in milliseconds at which a segment is rolled. Unset: log.roll.hours."),
    _fixed("log.roll.jitter.hours", INT, 0, between(0), "Random part taken off the roll time, in hours."),
    _dynamic("log.roll.jitter.ms", LONG, None, between(0),
             "Random part taken off the roll time. Unset: log.roll.jitter.hours."),
    _dynamic("log.segment.delete.delay.ms", LONG, 60_000, between(0),
             "How long a removed segment file waits before it is unlinked, in milliseconds."),
    _dynamic("log.index.size.max.bytes", INT, 10_485_760, between(4), "Largest size of an index file in bytes."),
    _dynamic("log.index.interval.bytes", INT, 4096, between(0),
             "Bytes of batches between two entries of the offset index."),
    _dynamic("log.flush.interval.messages", LONG, INT64_MAX, between(1),
             "After how many records a log is forced to disk; 1 with acks=all means: on disk before the response."),
    _dynamic("log.flush.interval.ms", LONG, None, None,
             "After how many milliseconds a log is forced to disk; 0 or less: at each look. Unset: "
             "log.flush.scheduler.interval.ms."),
    _fixed("log.flush.scheduler.interval.ms", LONG, INT64_MAX, None,
           "How often logs are looked at for log.flush.interval.ms."),
    _fixed("log.flush.offset.checkpoint.interval.ms", INT, 60_000, between(0),
           "How often recovery points are written down."),
    _fixed("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, between(0),
           "How often log start offsets are written."),
    _dynamic("log.preallocate", BOOLEAN, False, None,
             "Reserve a new segment's whole size on the disk, so that appends to it do not run out of room."),
    _dynamic("log.cleanup.policy", LIST, ("delete",), CLEANUP_POLICIES, "Policy of topics that set none."),
    _dynamic("log.message.timestamp.type", STRING, "CreateTime", TIMESTAMP_TYPES, "Whose clock stamps records."),
    _dynamic("log.message.timestamp.before.max.ms", LONG, INT64_MAX, between(0), "How far back a time stamp may lie."),
    _dynamic("log.message.timestamp.after.max.ms", LONG, 3_600_000, between(0), "How far ahead a time stamp may lie."),
    _dynamic("log.local.retention.bytes", LONG, -2, between(-2), "Tiered storage. Accepted; there is none."),
    _dynamic("log.local.retention.ms", LONG, -2, between(-2), "Tiered storage. Accepted; there is none."),
    _fixed("log.cleaner.enable", BOOLEAN, True, None, "Whether compacted topics are cleaned."),
    _dynamic("log.cleaner.backoff.ms", LONG, 15_000, between(0), "How long an idle cleaner sleeps, in milliseconds."),
    _dynamic("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, None,
             "Memory of the cleaner's key maps in bytes; more than 1 MiB for each of its threads."),
    _dynamic("log.cleaner.delete.retention.ms", LONG, 86_400_000, between(0), "How long tombstones stay."),
    _dynamic("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, "How full the cleaner's key map may be."),
    _dynamic("log.cleaner.io.buffer.size", INT, 524_288, between(0), "Memory of the cleaner's buffers in bytes."),
    _dynamic("log.cleaner.io.max.bytes.per.second", DOUBLE, 1.7976931348623157e308, None,
             "Bytes a second that the cleaner threads together may read and write; 0 or less: no limit."),
    _dynamic("log.cleaner.max.compaction.lag.ms", LONG, INT64_MAX, between(1), "Longest time before compaction."),
    _dynamic("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, between(0, 1),
             "Uncleaned share that makes a log cleanable."),
    _dynamic("log.cleaner.min.compaction.lag.ms", LONG, 0, between(0), "Shortest time before compaction."),
    _dynamic("log.cleaner.threads", INT, 1, between(0, MOST_THREADS), "Number of cleaner threads."),
    _dynamic("message.max.bytes", INT, 1_048_588, between(0),
             "Largest record batch in bytes, for topics that set none."),
    _dynamic("min.insync.replicas", INT, 1, between(1), "Replicas that must have a record for acks=all; there is one."),
    _dynamic("compression.type", STRING, "producer", COMPRESSION_TYPES,
             "Codec in which batches of topics that set none are stored; producer: as they were sent."),
    _dynamic("compression.gzip.level", INT, -1, GZIP_LEVELS, "Level when compression.type is gzip."),
    _dynamic("compression.lz4.level", INT, 9, LZ4_LEVELS, "Level when compression.type is lz4."),
    _dynamic("compression.zstd.level", INT, 3, ZSTD_LEVELS, "Level when compression.type is zstd."),
    _dynamic("unclean.leader.election.enable", BOOLEAN, False, None, "Accepted; there is one replica."),
    ConfigKey("num.recovery.threads.per.data.dir", INT, 2, "Threads that recover logs after a crash.",
              between(1, MOST_THREADS), Importance.HIGH, Dynamic.CLUSTER_WIDE),
    _dynamic("producer.id.expiration.ms", INT, 86_400_000, between(1), "How long an idle producer is remembered."),
    _fixed("producer.id.expiration.check.interval.ms", INT, 600_000, between(1),
           "How often idle producers are looked for.",
           Importance.LOW),
)  # fmt: skip
