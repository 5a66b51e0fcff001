"""Configuration keys of topics: all that Kafka 4.3 describes, each with the broker key of its default."""

from __future__ import annotations

from functools import partial

from kbroker.common.configs.config_def import (
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    between,
    key,
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


_key = partial(key, dynamic="cluster-wide")

TOPIC_KEYS: tuple[ConfigKey, ...] = (
    _key("cleanup.policy", "list", ("delete",),
        "Policy for old segments: delete removes them by time and size, compact keeps the last value of each key; "
        "both may be set.", CLEANUP_POLICIES, synonym="log.cleanup.policy"),
    _key("compression.gzip.level", "int", -1,
        "Level of gzip compression.", GZIP_LEVELS,
        synonym="compression.gzip.level"),
    _key("compression.lz4.level", "int", 9,
        "Level of lz4 compression.", LZ4_LEVELS,
        synonym="compression.lz4.level"),
    _key("compression.type", "string", "producer",
        "Codec of stored batches. producer: batches are stored as sent; any other value: the broker recompresses "
        "them.", COMPRESSION_TYPES, synonym="compression.type"),
    _key("compression.zstd.level", "int", 3,
        "Level of zstd compression.", ZSTD_LEVELS,
        synonym="compression.zstd.level"),
    _key("delete.retention.ms", "long", 86_400_000, "Milliseconds after which tombstones of compacted topics are "
        "removed.", between(0), synonym="log.cleaner.delete.retention.ms"),
    _key("file.delete.delay.ms", "long", 60_000, "Milliseconds after which the file of a deleted segment is unlinked.",
        between(0), synonym="log.segment.delete.delay.ms"),
    _key("flush.messages", "long", INT64_MAX, "Number of records after which the log is flushed to disk; with 1, "
        "records of acks=all are on disk before the response.", between(1), synonym="log.flush.interval.messages"),
    _key("flush.ms", "long", INT64_MAX, "Milliseconds after which the log is flushed to disk.", between(0),
        synonym="log.flush.interval.ms"),
    _key("follower.replication.throttled.replicas", "list", (), "Replicas whose follower traffic is throttled. "
        "Accepted without effect; kbroker does not replicate.",
        throttled_replicas("follower.replication.throttled.replicas")),
    _key("index.interval.bytes", "int", 4096, "Bytes of batches between two entries of the offset index.", between(0),
        synonym="log.index.interval.bytes"),
    _key("leader.replication.throttled.replicas", "list", (), "Replicas whose leader traffic is throttled. Accepted "
        "without effect; kbroker does not replicate.", throttled_replicas("leader.replication.throttled.replicas")),
    _key("local.retention.bytes", "long", -2, "Local part of retention.bytes. Accepted without effect; tiered storage "
        "is not supported.", between(-2), synonym="log.local.retention.bytes"),
    _key("local.retention.ms", "long", -2, "Local part of retention.ms. Accepted without effect; tiered storage is not "
        "supported.", between(-2), synonym="log.local.retention.ms"),
    _key("max.compaction.lag.ms", "long", INT64_MAX, "Maximum milliseconds that a record of a compacted topic may stay "
        "uncompacted.", between(1), synonym="log.cleaner.max.compaction.lag.ms"),
    _key("max.message.bytes", "int", 1_048_588, "Largest record batch in bytes, after compression.", between(0),
        synonym="message.max.bytes"),
    _key("message.timestamp.after.max.ms", "long", 3_600_000, "Maximum milliseconds by which a record's timestamp may "
        "be after the broker's clock.", between(0), synonym="log.message.timestamp.after.max.ms"),
    _key("message.timestamp.before.max.ms", "long", INT64_MAX, "Maximum milliseconds by which a record's timestamp may "
        "be before the broker's clock.", between(0), synonym="log.message.timestamp.before.max.ms"),
    _key("message.timestamp.type", "string", "CreateTime", "Clock of record timestamps: the producer's (CreateTime) or "
        "the broker's (LogAppendTime).", TIMESTAMP_TYPES, synonym="log.message.timestamp.type"),
    _key("min.cleanable.dirty.ratio", "double", 0.5, "Share of uncompacted bytes above which a compacted topic's log "
        "is compacted.", between(0, 1), synonym="log.cleaner.min.cleanable.ratio"),
    _key("min.compaction.lag.ms", "long", 0, "Minimum milliseconds that a record of a compacted topic stays "
        "uncompacted.", between(0), synonym="log.cleaner.min.compaction.lag.ms"),
    _key("min.insync.replicas", "int", 1,
        "Replicas that must have a record before acks=all is acknowledged, at most all replicas of the partition.",
        between(1), synonym="min.insync.replicas"),
    _key("preallocate", "boolean", False, "Whether a new segment reserves its whole size on disk, so that appends to "
        "it do not run out of space.", synonym="log.preallocate"),
    _key("remote.log.copy.disable", "boolean", False,
        "Whether remote data is read-only. Accepted without effect; tiered storage is not supported."),
    _key("remote.log.delete.on.disable", "boolean", False, "Whether remote data is deleted when tiered storage is "
        "disabled. Accepted without effect; tiered storage is not supported."),
    _key("remote.storage.enable", "boolean", False,
        "Whether tiered storage is used. Must be false; tiered storage is not supported."),
    _key("retention.bytes", "long", -1, "Size in bytes of a partition above which its oldest segments are deleted; -1: "
        "no limit.", synonym="log.retention.bytes"),
    _key("retention.ms", "long", 604_800_000, "Age in milliseconds above which segments are deleted; -1: no limit.",
        between(-1), synonym="log.retention.ms"),
    _key("segment.bytes", "int", 1_073_741_824, "Size in bytes at which a new segment is started.",
        between(1024 * 1024, INT32_MAX), synonym="log.segment.bytes"),
    _key("segment.index.bytes", "int", 10_485_760, "Largest size of an index file in bytes; a full index starts a new "
        "segment.", between(4), synonym="log.index.size.max.bytes"),
    _key("segment.jitter.ms", "long", 0, "Maximum random time subtracted from segment.ms, so that segments do not all "
        "roll at once.", between(0), synonym="log.roll.jitter.ms"),
    _key("segment.ms", "long", 604_800_000,
        "Age in milliseconds at which a new segment is started, even if the current one is not full.",
        between(1), synonym="log.roll.ms"),
    _key("unclean.leader.election.enable", "boolean", False, "Whether an out-of-sync replica may become leader. "
        "Accepted without effect; only ElectLeaders makes such a replica the leader.",
        synonym="unclean.leader.election.enable"),
)  # fmt: skip
