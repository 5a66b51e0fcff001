"""Kafka's topic settings as plain values."""
from kbroker.protocol._compression cimport CODEC_LEVEL

from kbroker.protocol.compression import CompressionType

DEFAULTS = {
    "segment.bytes": 1073741824, "segment.ms": 604800000, "segment.jitter.ms": 0, "index.interval.bytes": 4096,
    "segment.index.bytes": 10485760, "max.message.bytes": 1048588, "retention.ms": 604800000, "retention.bytes": -1,
    "file.delete.delay.ms": 60000, "flush.messages": 9223372036854775807,
    "message.timestamp.before.max.ms": 9223372036854775807, "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.type": "CreateTime", "cleanup.policy": "delete", "producer.id.expiration.ms": 86400000,
    "compression.type": "producer",
    "max.compaction.lag.ms": 9223372036854775807,
}

INT64_MIN = -9223372036854775808
MIN_INDEX_BYTES = 24


cdef int parse_config(values, LogConfig *out) except -1:
    """Parse Kafka's topic settings by name; absent ones get Kafka's defaults, unknown ones are ignored."""
    def number(name: str, least: int, most: int = 9223372036854775807) -> int:
        given = values.get(name)
        value = int(DEFAULTS[name] if given is None else given)
        if not least <= value <= most:
            raise ValueError(f"{name} must be between {least} and {most}, got {value}")
        return value
    if not hasattr(values, "get"):
        raise TypeError(f"config must be a mapping of setting names to values, got {type(values).__name__}")
    out.segment_bytes = number("segment.bytes", 61, 2147483647)
    out.segment_ms = number("segment.ms", 1)
    out.segment_jitter_ms = min(max(number("segment.jitter.ms", INT64_MIN), 0), out.segment_ms)
    out.index_interval_bytes = number("index.interval.bytes", 0)
    # An index for fewer than two time entries is full before its first. Kafka 4.3.1 accepts such values too: below 12
    # it cannot open the log afterwards (error 6), from 12 on each append rolls a segment. Here the index has its
    # minimum size.
    out.segment_index_bytes = max(number("segment.index.bytes", 0, 2147483647), MIN_INDEX_BYTES)
    out.max_message_bytes = number("max.message.bytes", 0, 2147483647)
    # Kafka treats any negative number as no limit.
    out.retention_ms = max(number("retention.ms", INT64_MIN), -1)
    out.retention_bytes = max(number("retention.bytes", INT64_MIN), -1)
    out.file_delete_delay_ms = number("file.delete.delay.ms", 0)
    out.flush_messages = number("flush.messages", 1)
    out.timestamp_before_max_ms = number("message.timestamp.before.max.ms", 0)
    out.timestamp_after_max_ms = number("message.timestamp.after.max.ms", 0)
    out.producer_expiration_ms = number("producer.id.expiration.ms", 1)
    out.decompress_cap_bytes = max(16 * out.max_message_bytes, 16777216)
    kind = values.get("message.timestamp.type") or DEFAULTS["message.timestamp.type"]
    if kind not in ("CreateTime", "LogAppendTime"):
        raise ValueError(f"message.timestamp.type must be CreateTime or LogAppendTime, got {kind!r}")
    out.log_append_time = kind == "LogAppendTime"
    codec = values.get("compression.type") or DEFAULTS["compression.type"]
    out.target_codec = -1 if codec == "producer" else CompressionType.of_config_name(codec)
    level = values.get(f"compression.{codec}.level")
    out.compression_level = CODEC_LEVEL if level is None else int(level)
    out.preallocate = values.get("preallocate") in (True, "true")
    policy = values.get("cleanup.policy") or DEFAULTS["cleanup.policy"]
    policies = [part.strip() for part in policy.split(",")] if isinstance(policy, str) else list(policy)
    out.compacted = "compact" in policies
    out.delete_by_age = "delete" in policies
    out.has_gaps = out.compacted or bool(values.get("was.compacted"))
    if out.compacted:
        out.segment_ms = min(out.segment_ms, number("max.compaction.lag.ms", 1))
        out.segment_jitter_ms = min(out.segment_jitter_ms, out.segment_ms)
    return 0


def check_config(values):
    """Check that a log can be opened with a config. Raises: ValueError, TypeError."""
    cdef LogConfig unused
    parse_config(values, &unused)
