"""Configuration keys of topics: all that Kafka 4.3 describes, each with the broker key that gives its default."""

from __future__ import annotations

from kbroker.common.configs.config_def import (
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Validator,
    between,
    levels,
    one_of,
    throttled_replicas,
)

COMPRESSION_TYPES = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = one_of("compact", "delete")
GZIP_LEVELS = levels(1, 9, -1)
LZ4_LEVELS = between(1, 17)
ZSTD_LEVELS = between(-131072, 22)

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _key(
    name: str, kind: ConfigType, default: ConfigValue, synonym: str | None, validator: Validator | None, doc: str
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, validator, dynamic=Dynamic.CLUSTER_WIDE, synonym=synonym)


TOPIC_KEYS: tuple[ConfigKey, ...] = (
    _key("cleanup.policy", LIST, ("delete",), "log.cleanup.policy", CLEANUP_POLICIES,
         "What happens to old segments: delete removes them by time and size, compact keeps the last value of each "
         "key; both may be given."),
    _key("compression.gzip.level", INT, -1, "compression.gzip.level", GZIP_LEVELS,
         "Level used when compression.type is gzip."),
    _key("compression.lz4.level", INT, 9, "compression.lz4.level", LZ4_LEVELS,
         "Level used when compression.type is lz4."),
    _key("compression.type", STRING, "producer", "compression.type", COMPRESSION_TYPES,
         "Codec in which batches are stored; producer: as they were sent, any other: the broker recompresses them."),
    _key("compression.zstd.level", INT, 3, "compression.zstd.level", ZSTD_LEVELS,
         "Level used when compression.type is zstd."),
    _key("delete.retention.ms", LONG, 86_400_000, "log.cleaner.delete.retention.ms", between(0),
         "Milliseconds after which tombstones of compacted topics are removed."),
    _key("file.delete.delay.ms", LONG, 60_000, "log.segment.delete.delay.ms", between(0),
         "Milliseconds after which the file of a deleted segment is unlinked."),
    _key("flush.messages", LONG, INT64_MAX, "log.flush.interval.messages", between(1),
         "Number of records after which the log is flushed to disk; with 1, records of acks=all are on disk before "
         "the response."),
    _key("flush.ms", LONG, INT64_MAX, "log.flush.interval.ms", between(0),
         "Milliseconds after which the log is flushed to disk."),
    _key("follower.replication.throttled.replicas", LIST, (), None,
         throttled_replicas("follower.replication.throttled.replicas"),
         "Replicas whose follower traffic is throttled. Accepted without effect; there is one broker."),
    _key("index.interval.bytes", INT, 4096, "log.index.interval.bytes", between(0),
         "Bytes of batches between two entries of the offset index."),
    _key("leader.replication.throttled.replicas", LIST, (), None,
         throttled_replicas("leader.replication.throttled.replicas"),
         "Replicas whose leader traffic is throttled. Accepted without effect; there is one broker."),
    _key("local.retention.bytes", LONG, -2, "log.local.retention.bytes", between(-2),
         "Local part of retention.bytes. Accepted without effect; tiered storage is not supported."),
    _key("local.retention.ms", LONG, -2, "log.local.retention.ms", between(-2),
         "Local part of retention.ms. Accepted without effect; tiered storage is not supported."),
    _key("max.compaction.lag.ms", LONG, INT64_MAX, "log.cleaner.max.compaction.lag.ms", between(1),
         "Maximum milliseconds that a record of a compacted topic may stay uncompacted."),
    _key("max.message.bytes", INT, 1_048_588, "message.max.bytes", between(0),
         "Largest record batch in bytes, after compression."),
    _key("message.timestamp.after.max.ms", LONG, 3_600_000, "log.message.timestamp.after.max.ms", between(0),
         "Maximum milliseconds by which a record's timestamp may be after the broker's clock."),
    _key("message.timestamp.before.max.ms", LONG, INT64_MAX, "log.message.timestamp.before.max.ms", between(0),
         "Maximum milliseconds by which a record's timestamp may be before the broker's clock."),
    _key("message.timestamp.type", STRING, "CreateTime", "log.message.timestamp.type", TIMESTAMP_TYPES,
         "Clock of record timestamps: the producer's (CreateTime) or the broker's (LogAppendTime)."),
    _key("min.cleanable.dirty.ratio", DOUBLE, 0.5, "log.cleaner.min.cleanable.ratio", between(0, 1),
         "Share of uncompacted bytes above which a compacted topic's log is compacted."),
    _key("min.compaction.lag.ms", LONG, 0, "log.cleaner.min.compaction.lag.ms", between(0),
         "Minimum milliseconds that a record of a compacted topic stays uncompacted."),
    _key("min.insync.replicas", INT, 1, "min.insync.replicas", between(1),
         "Replicas that must have a record before acks=all is acknowledged; there is one."),
    _key("preallocate", BOOLEAN, False, "log.preallocate", None,
         "Whether a new segment reserves its whole size on disk, so that appends to it do not run out of space."),
    _key("remote.log.copy.disable", BOOLEAN, False, None, None,
         "Whether remote data is read-only. Accepted without effect; tiered storage is not supported."),
    _key("remote.log.delete.on.disable", BOOLEAN, False, None, None,
         "Whether remote data is deleted when tiered storage is disabled. Accepted without effect; tiered storage is "
         "not supported."),
    _key("remote.storage.enable", BOOLEAN, False, None, None,
         "Whether tiered storage is used. Must be false; tiered storage is not supported."),
    _key("retention.bytes", LONG, -1, "log.retention.bytes", None,
         "Size in bytes of a partition above which its oldest segments are deleted; -1: no limit."),
    _key("retention.ms", LONG, 604_800_000, "log.retention.ms", between(-1),
         "Age in milliseconds above which segments are deleted; -1: no limit."),
    _key("segment.bytes", INT, 1_073_741_824, "log.segment.bytes", between(1024 * 1024, INT32_MAX),
         "Size in bytes at which a new segment is started."),
    _key("segment.index.bytes", INT, 10_485_760, "log.index.size.max.bytes", between(4),
         "Largest size of an index file in bytes; a full index starts a new segment."),
    _key("segment.jitter.ms", LONG, 0, "log.roll.jitter.ms", between(0),
         "Maximum random time subtracted from segment.ms, so that segments do not all roll at once."),
    _key("segment.ms", LONG, 604_800_000, "log.roll.ms", between(1),
         "Age in milliseconds at which a new segment is started even if the current one is not full."),
    _key("unclean.leader.election.enable", BOOLEAN, False, "unclean.leader.election.enable", None,
         "Whether an out-of-sync replica may become leader. Accepted without effect; there is one replica."),
)  # fmt: skip
