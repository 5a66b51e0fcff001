"""Building of record batches."""
from libc.stdint cimport int64_t, uint8_t
from kbroker.protocol._records cimport BatchHeader

cdef class RecordBatchBuilder:  # one thread at a time
    cdef:
        BatchHeader header
        uint8_t *data           # owned: the records so far
        int64_t size
        int64_t capacity
        bint has_base           # base_timestamp_ms is set
    cdef int add(self, key, value, int64_t timestamp_ms, headers, offset_delta) except -1
    cdef uint8_t *room(self, int64_t size) except NULL
    cdef int write_varlong(self, int64_t value) except -1
    cdef int put_blob(self, value) except -1
