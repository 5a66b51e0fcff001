"""Builder of record batches."""
from libc.stdint cimport int64_t, uint8_t
from kbroker.protocol._columns cimport Vector
from kbroker.protocol._records cimport BatchHeader

cdef enum:                      # result of draft_add; the record was added only with DRAFT_OK
    DRAFT_OK = 0
    DRAFT_NO_MEMORY = 1
    DRAFT_TOO_LARGE = 2         # above 2 GiB
    DRAFT_BAD_DELTA = 3         # above 2^31 - 1

cdef struct BatchDraft:         # one thread at a time
    BatchHeader header
    uint8_t *data               # owned: the encoded records
    int64_t size
    int64_t capacity
    bint has_base               # base_timestamp_ms is set

# Encodes a record after the others. Sizes below 0 are null; `headers` holds header_count entries of put_header.
cdef int draft_add(BatchDraft *draft, int64_t timestamp_ms, int64_t delta, const char *key, int64_t key_bytes,
                   const char *value, int64_t value_bytes, int64_t header_count, const Vector *headers) noexcept nogil
# False when memory is out.
cdef bint put_header(Vector *to, const char *key, int64_t key_bytes, const char *value,
                     int64_t value_bytes) noexcept nogil

cdef class RecordBatchBuilder:  # one thread at a time
    cdef BatchDraft draft
    cdef int add(self, key, value, int64_t timestamp_ms, headers, int64_t delta, Vector *scratch) except -1
