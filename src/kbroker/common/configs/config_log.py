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
    _fixed("log.dirs", LIST, None, None,
           "Folders of the data, one for each disk; the first one also has the metadata file. A new partition is "
           "created in the folder with the fewest partitions."),
    _fixed("log.retention.hours", INT, 168, None,
           "Retention in hours; log.retention.minutes and log.retention.ms override it."),
    _fixed("log.retention.minutes", INT, None, None, "Retention in minutes; log.retention.ms overrides it."),
    _dynamic("log.retention.ms", LONG, None, None,
             "Age in milliseconds above which segments are deleted; negative: no limit; 0 is not allowed. Unset: "
             "log.retention.minutes applies."),
    _dynamic("log.retention.bytes", LONG, -1, None,
             "Size in bytes of a partition above which its oldest segments are deleted; -1: no limit."),
    _fixed("log.retention.check.interval.ms", LONG, 300_000, between(1),
           "Milliseconds between two applications of retention."),
    _dynamic("log.segment.bytes", INT, 1_073_741_824, between(1024 * 1024, INT32_MAX),
             "Size in bytes at which a new segment is started."),
    _fixed("log.roll.hours", INT, 168, between(1),
           "Age in hours at which a segment is rolled; log.roll.ms overrides it."),
    _dynamic("log.roll.ms", LONG, None, between(1),
             "Age in milliseconds at which a segment is rolled. Unset: log.roll.hours applies."),
    _fixed("log.roll.jitter.hours", INT, 0, between(0), "Maximum random time subtracted from the roll time, in hours."),
    _dynamic("log.roll.jitter.ms", LONG, None, between(0),
             "Maximum random time subtracted from the roll time, in milliseconds. Unset: log.roll.jitter.hours "
             "applies."),
    _dynamic("log.segment.delete.delay.ms", LONG, 60_000, between(0),
             "Milliseconds after which the file of a deleted segment is unlinked."),
    _dynamic("log.index.size.max.bytes", INT, 10_485_760, between(4), "Largest size of an index file in bytes."),
    _dynamic("log.index.interval.bytes", INT, 4096, between(0),
             "Bytes of batches between two entries of the offset index."),
    _dynamic("log.flush.interval.messages", LONG, INT64_MAX, between(1),
             "Number of records after which a log is flushed to disk; with 1, records of acks=all are on disk before "
             "the response."),
    _dynamic("log.flush.interval.ms", LONG, None, None,
             "Milliseconds after which a log is flushed to disk; 0 or less: at each check. Unset: "
             "log.flush.scheduler.interval.ms applies."),
    _fixed("log.flush.scheduler.interval.ms", LONG, INT64_MAX, None,
           "Milliseconds between two checks of log.flush.interval.ms."),
    _fixed("log.flush.offset.checkpoint.interval.ms", INT, 60_000, between(0),
           "Milliseconds between two writes of the recovery points."),
    _fixed("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, between(0),
           "Milliseconds between two writes of the log start offsets."),
    _dynamic("log.preallocate", BOOLEAN, False, None,
             "Whether a new segment reserves its whole size on disk, so that appends to it do not run out of space."),
    _dynamic("log.cleanup.policy", LIST, ("delete",), CLEANUP_POLICIES, "Default cleanup.policy of topics."),
    _dynamic("log.message.timestamp.type", STRING, "CreateTime", TIMESTAMP_TYPES,
             "Clock of record timestamps: the producer's (CreateTime) or the broker's (LogAppendTime)."),
    _dynamic("log.message.timestamp.before.max.ms", LONG, INT64_MAX, between(0),
             "Maximum milliseconds by which a record's timestamp may be before the broker's clock."),
    _dynamic("log.message.timestamp.after.max.ms", LONG, 3_600_000, between(0),
             "Maximum milliseconds by which a record's timestamp may be after the broker's clock."),
    _dynamic("log.local.retention.bytes", LONG, -2, between(-2),
             "Accepted without effect; tiered storage is not supported."),
    _dynamic("log.local.retention.ms", LONG, -2, between(-2),
             "Accepted without effect; tiered storage is not supported."),
    _fixed("log.cleaner.enable", BOOLEAN, True, None, "Whether topics with cleanup.policy=compact are compacted."),
    _dynamic("log.cleaner.backoff.ms", LONG, 15_000, between(0), "Milliseconds that an idle cleaner waits."),
    _dynamic("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, None,
             "Bytes of memory for the cleaner's key maps; more than 1 MiB for each of its threads."),
    _dynamic("log.cleaner.delete.retention.ms", LONG, 86_400_000, between(0),
             "Milliseconds after which tombstones of compacted topics are removed."),
    _dynamic("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, "Maximum load factor of the cleaner's key map."),
    _dynamic("log.cleaner.io.buffer.size", INT, 524_288, between(0), "Memory of the cleaner's buffers in bytes."),
    _dynamic("log.cleaner.io.max.bytes.per.second", DOUBLE, 1.7976931348623157e308, None,
             "Maximum bytes per second that all cleaner threads read and write; 0 or less: no limit."),
    _dynamic("log.cleaner.max.compaction.lag.ms", LONG, INT64_MAX, between(1),
             "Maximum milliseconds that a record may stay uncompacted."),
    _dynamic("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, between(0, 1),
             "Share of uncompacted bytes above which a log is compacted."),
    _dynamic("log.cleaner.min.compaction.lag.ms", LONG, 0, between(0),
             "Minimum milliseconds that a record stays uncompacted."),
    _dynamic("log.cleaner.threads", INT, 1, between(0, MOST_THREADS), "Number of cleaner threads."),
    _dynamic("message.max.bytes", INT, 1_048_588, between(0),
             "Largest record batch in bytes; default of max.message.bytes of topics."),
    _dynamic("min.insync.replicas", INT, 1, between(1),
             "Replicas that must have a record before acks=all is acknowledged; there is one."),
    _dynamic("compression.type", STRING, "producer", COMPRESSION_TYPES,
             "Default codec in which the batches of topics are stored; producer: as they were sent."),
    _dynamic("compression.gzip.level", INT, -1, GZIP_LEVELS, "Level of gzip compression."),
    _dynamic("compression.lz4.level", INT, 9, LZ4_LEVELS, "Level of lz4 compression."),
    _dynamic("compression.zstd.level", INT, 3, ZSTD_LEVELS, "Level of zstd compression."),
    _dynamic("unclean.leader.election.enable", BOOLEAN, False, None, "Accepted without effect; there is one replica."),
    ConfigKey("num.recovery.threads.per.data.dir", INT, 2, "Threads that recover logs after a crash.",
              between(1, MOST_THREADS), Importance.HIGH, Dynamic.CLUSTER_WIDE),
    _dynamic("producer.id.expiration.ms", INT, 86_400_000, between(1),
             "Milliseconds after which the state of an idle producer is deleted."),
    _fixed("producer.id.expiration.check.interval.ms", INT, 600_000, between(1),
           "Milliseconds between two searches for idle producers.",
           Importance.LOW),
)  # fmt: skip
