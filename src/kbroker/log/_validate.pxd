"""Checks of a record batch before it is appended. Pure: no lock, no file."""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker.log._partition cimport BadRecord, LogConfig
from kbroker.log.producers._producer_state cimport BatchFacts
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    FIRST_WITH_ZSTD = 7         # version of Produce
    BAD_RECORD_TEXT_BYTES = 512     # a topic name has at most 249 bytes

cdef struct BatchCheck:
    int16_t error
    const char *message         # static
    int32_t bad_record          # the first refused record, or -1
    BadRecord *bad_records      # malloc'ed, freed by the caller: all refused records, or NULL
    int32_t bad_count
    bint before_log             # refused as a request, before the log was checked
    int64_t taken_bytes  # size of the batch in the data; trailing bytes that are not a batch are ignored
    int64_t size_bytes          # size of the batch as stored
    char *data                  # the batch as stored: rebuilt, or in the caller's bytes
    char *rebuilt               # malloc'ed, freed by the caller: the batch in the topic's codec; NULL: patched in place
    int64_t conversion_ns       # duration of the rebuild by the given clock; 0: none
    int64_t max_timestamp_ms    # largest timestamp of the batch as stored
    BatchFacts facts            # offsets are relative to 0 until the append assigns the base

# Check the first batch of data and correct the fields that Kafka corrects: timestamp type, largest timestamp, and
# then the CRC. A batch of a codec other than compression.type is rebuilt. May take the GIL: never call it under a
# lock.
cdef void validate_batch(char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config,
                         int16_t api_version, bint is_client, BatchCheck *out) noexcept nogil
# Accept a whole batch that the broker has just built with its checksum: neither the checksum nor the records are
# checked.
cdef void accept_prevalidated_batch(
    char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config, BatchCheck *out
) noexcept nogil
cdef void batch_facts(const char *data, const BatchHeader *header, bint from_client, BatchFacts *out) noexcept nogil
# Return the size of the whole batch at data, 0 when the bytes end too early, -1 when they are not a batch.
cdef int64_t whole_batch_bytes(const char *data, int64_t size_bytes) noexcept nogil
# Return whether the bytes begin with a batch whose size, the length field plus 12, overflows an int32: Kafka fails on
# it, and refuses the whole request.
cdef bint has_wrapped_length(const char *data, int64_t size_bytes) noexcept nogil
# Return whether Kafka fails on a client's bytes for a partition that exists, and refuses the whole request: for such a
# length after the first batch, or an unknown codec before the version that has zstd.
cdef bint is_fatal_batch(const char *data, int64_t size_bytes, int16_t api_version) noexcept nogil
# Return whether a client's bytes for a partition are refused as a request, before any other check of the partition.
cdef bint is_refused_before_log(const char *data, int64_t size_bytes, int16_t api_version) noexcept nogil
# Write the reason, in Kafka's words, why a record was refused for a partition; return its size. Args: ``text``: with
# BAD_RECORD_TEXT_BYTES.
cdef int64_t bad_record_text(const BadRecord *record, const char *topic, int32_t topic_bytes, int32_t partition,
                             char *text) noexcept nogil
