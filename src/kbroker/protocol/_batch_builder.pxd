"""Builder of record batches."""
from libc.stdint cimport int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.protocol._records cimport BatchHeader

cdef struct BatchDraft:         # one thread at a time
    BatchHeader header
    Buffer batch                # owned: memory for the header, then the encoded records
    bint has_base               # base_timestamp_ms is set

# Begin an empty batch without a producer, in the memory of a former one if the draft is not zeroed. False: memory is
# exhausted.
cdef bint draft_start(BatchDraft *draft) noexcept nogil
# Encode a record after the others: PUT_OK or another result of record_put, with the same arguments.
cdef int draft_add(BatchDraft *draft, int64_t timestamp_ms, int64_t delta, const char *key, int64_t key_bytes,
                   const char *value, int64_t value_bytes, int64_t header_count, const Buffer *headers) noexcept nogil

cdef class RecordBatchBuilder:  # one thread at a time
    cdef BatchDraft draft
    cdef int add(self, key, value, int64_t timestamp_ms, headers, int64_t delta, Buffer *scratch) except -1
