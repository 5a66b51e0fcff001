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
         "What happens to old segments: delete drops them by time and size, compact keeps the last value of "
         "each key; both may be named."),
    _key("compression.gzip.level", INT, -1, "compression.gzip.level", GZIP_LEVELS,
         "Level used when compression.type is gzip."),
    _key("compression.lz4.level", INT, 9, "compression.lz4.level", LZ4_LEVELS,
         "Level used when compression.type is lz4."),
    _key("compression.type", STRING, "producer", "compression.type", COMPRESSION_TYPES,
         "Codec in which batches are stored; producer: as they were sent, any other: the broker packs them anew."),
    _key("compression.zstd.level", INT, 3, "compression.zstd.level", ZSTD_LEVELS,
         "Level used when compression.type is zstd."),
    _key("delete.retention.ms", LONG, 86_400_000, "log.cleaner.delete.retention.ms", between(0),
         "How long tombstones of compacted topics stay, in milliseconds."),
    _key("file.delete.delay.ms", LONG, 60_000, "log.segment.delete.delay.ms", between(0),
         "How long a removed segment file waits before it is unlinked, in milliseconds."),
    _key("flush.messages", LONG, INT64_MAX, "log.flush.interval.messages", between(1),
         "After how many records the log is forced to disk; 1 with acks=all means: on disk before the response."),
    _key("flush.ms", LONG, INT64_MAX, "log.flush.interval.ms", between(0),
         "After how many milliseconds the log is forced to disk."),
    _key("follower.replication.throttled.replicas", LIST, (), None,
         throttled_replicas("follower.replication.throttled.replicas"),
         "Replicas whose follower traffic is throttled. Accepted; one broker replicates nothing."),
    _key("index.interval.bytes", INT, 4096, "log.index.interval.bytes", between(0),
         "How many bytes of batches lie between two entries of the offset index."),
    _key("leader.replication.throttled.replicas", LIST, (), None,
         throttled_replicas("leader.replication.throttled.replicas"),
         "Replicas whose leader traffic is throttled. Accepted; one broker replicates nothing."),
    _key("local.retention.bytes", LONG, -2, "log.local.retention.bytes", between(-2),
         "Local part of retention.bytes under tiered storage. Accepted; there is no tiered storage."),
    _key("local.retention.ms", LONG, -2, "log.local.retention.ms", between(-2),
         "Local part of retention.ms under tiered storage. Accepted; there is no tiered storage."),
    _key("max.compaction.lag.ms", LONG, INT64_MAX, "log.cleaner.max.compaction.lag.ms", between(1),
         "Longest time a record of a compacted topic may stay uncompacted, in milliseconds."),
    _key("max.message.bytes", INT, 1_048_588, "message.max.bytes", between(0),
         "Largest record batch, in bytes, after compression."),
    _key("message.timestamp.after.max.ms", LONG, 3_600_000, "log.message.timestamp.after.max.ms", between(0),
         "How far a record's time stamp may lie ahead of the broker's clock, in milliseconds."),
    _key("message.timestamp.before.max.ms", LONG, INT64_MAX, "log.message.timestamp.before.max.ms", between(0),
         "How far a record's time stamp may lie behind the broker's clock, in milliseconds."),
    _key("message.timestamp.type", STRING, "CreateTime", "log.message.timestamp.type", TIMESTAMP_TYPES,
         "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime)."),
    _key("min.cleanable.dirty.ratio", DOUBLE, 0.5, "log.cleaner.min.cleanable.ratio", between(0, 1),
         "Share of uncleaned bytes from which a compacted log is cleaned."),
    _key("min.compaction.lag.ms", LONG, 0, "log.cleaner.min.compaction.lag.ms", between(0),
         "Shortest time a record of a compacted topic stays uncompacted, in milliseconds."),
    _key("min.insync.replicas", INT, 1, "min.insync.replicas", between(1),
         "Replicas that must have a record before acks=all is answered; there is one."),
    _key("preallocate", BOOLEAN, False, "log.preallocate", None,
         "Reserve a new segment's whole size on the disk, so that appends to it do not run out of room."),
    _key("remote.log.copy.disable", BOOLEAN, False, None, None,
         "Tiered storage: read-only remote data. Accepted; there is no tiered storage."),
    _key("remote.log.delete.on.disable", BOOLEAN, False, None, None,
         "Tiered storage: drop remote data when it is turned off. Accepted; there is no tiered storage."),
    _key("remote.storage.enable", BOOLEAN, False, None, None,
         "Tiered storage. Must stay false."),
    _key("retention.bytes", LONG, -1, "log.retention.bytes", None,
         "Size in bytes of a partition above which its oldest segments are removed; -1: no limit."),
    _key("retention.ms", LONG, 604_800_000, "log.retention.ms", between(-1),
         "Age in milliseconds above which segments are removed; -1: no limit."),
    _key("segment.bytes", INT, 1_073_741_824, "log.segment.bytes", between(1024 * 1024, INT32_MAX),
         "Size in bytes at which a new segment is begun."),
    _key("segment.index.bytes", INT, 10_485_760, "log.index.size.max.bytes", between(4),
         "Largest size of an index file in bytes; a full index begins a new segment."),
    _key("segment.jitter.ms", LONG, 0, "log.roll.jitter.ms", between(0),
         "Random part taken off segment.ms, so that segments do not all roll at once."),
    _key("segment.ms", LONG, 604_800_000, "log.roll.ms", between(1),
         "Age in milliseconds at which a new segment is begun even if it is not full."),
    _key("unclean.leader.election.enable", BOOLEAN, False, "unclean.leader.election.enable", None,
         "Whether a replica that is behind may lead. Accepted; there is one replica."),
)  # fmt: skip
