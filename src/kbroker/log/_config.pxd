"""Topic configuration of a log: plain values, copied whole under the partition's ``view_lock``."""
from libc.stdint cimport int32_t, int64_t

cdef struct LogConfig:
    int64_t segment_bytes
    int64_t segment_ms
    int64_t segment_jitter_ms
    int64_t index_interval_bytes
    int64_t segment_index_bytes
    int64_t max_message_bytes
    int64_t retention_ms            # -1: no limit
    int64_t retention_bytes         # -1: no limit
    int64_t file_delete_delay_ms
    int64_t flush_messages
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int64_t producer_expiration_ms
    int64_t decompress_cap_bytes    # limit for the unpacked records of a compressed batch, else MESSAGE_TOO_LARGE
    int32_t target_codec            # compression.type; -1: as the producer sent it
    int32_t compression_level       # for target_codec
    bint preallocate                # allocate the whole size of segment files when they are created
    bint log_append_time
    bint compacted                  # cleanup.policy contains compact: every record needs a key
    bint delete_by_age              # cleanup.policy contains delete: retention.ms and retention.bytes apply
    bint has_gaps                   # is or was compacted: offsets may be missing between batches

# Parse settings by name; absent ones get Kafka's defaults. Raises: ValueError, TypeError.
cdef int parse_config(values, LogConfig *out) except -1
