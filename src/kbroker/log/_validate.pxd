"""Checks of one record batch before it may enter a log (spec: log-storage 4, rows 3 and a to f). Pure: no lock, no
file.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker.log._config cimport LogConfig
from kbroker.log.producers._producer_state cimport BatchFacts
from kbroker.protocol._records cimport BatchHeader

cdef struct BatchCheck:
    int16_t error
    const char *message         # static
    int32_t bad_record          # the first refused record, -1: none
    int32_t *bad_records        # malloc'ed, the caller frees it: all refused records; NULL when there are none
    int32_t bad_count
    bint before_log             # refused as a request, before the log was looked at
    int64_t taken_bytes         # of the data given: what follows it is no batch and is left out
    int64_t size_bytes          # of the batch as it is stored
    char *rebuilt               # malloc'ed, the caller frees it: the batch in the topic's codec; NULL: patched in place
    int64_t conversion_ns       # what building it took, by the clock given; 0: it was not
    int64_t max_timestamp_ms    # as stored
    BatchFacts facts            # offsets relative: base 0 until the append knows

# Judges the first batch of data and repairs what Kafka repairs: time-stamp type, largest time stamp, and then the CRC.
# A batch of another codec than compression.type's is built anew. May take the GIL: never call it under a lock.
cdef void validate_batch(char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config,
                         int16_t api_version, bint is_client, BatchCheck *out) noexcept nogil
# The same for one whole batch that the broker has just built and summed itself: neither its checksum nor its records
# are looked at.
cdef void accept_prevalidated_batch(
    char *data, int64_t size_bytes, Clock *clock, int64_t now_ms, const LogConfig *config, BatchCheck *out
) noexcept nogil
cdef void batch_facts(const char *data, const BatchHeader *header, bint from_client, BatchFacts *out) noexcept nogil
# One whole batch at data? Its size, 0 when the bytes end too early, -1 when they are no batch
cdef int64_t whole_batch_bytes(const char *data, int64_t size_bytes) noexcept nogil
