"""Records of many batches as columns in Arrow's layout: 32-bit offsets and validity bitmaps."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.containers.buffer cimport Buffer
from kbroker.protocol._records cimport BatchHeader, RecordView

cdef struct Strings:            # n byte strings: Arrow's binary
    Buffer data
    Buffer ends                 # int32, n + 1 offsets; the first is 0
    Buffer valid                # bitmap; bits beyond its end are valid
    int64_t nulls

cdef class ArrowColumns:        # one thread at a time
    cdef:
        int wanted              # bits of the requested columns
        Buffer offsets          # int64
        Buffer timestamps       # int64
        Buffer timestamp_types  # int32
        Strings keys
        Strings values
        Buffer header_ends      # int32, n + 1: end of each record's headers
        Buffer header_valid     # bitmap: null for a record without headers
        int64_t header_nulls
        Strings header_keys
        Strings header_values
        int64_t header_count
        int64_t likely_rows     # expected rows of the next ``take``, by the last one; sizes the first allocation
        int64_t likely_key_bytes
        int64_t likely_value_bytes
        int64_t bad_offset
        int bad_magic
        readonly int64_t row_count
        readonly int64_t next_offset
        readonly bint is_full
    cdef int add_batch(self, const char *data, BatchHeader *header, int64_t from_offset, int64_t until_offset,
                       int64_t cap, int64_t *total_cap) noexcept nogil
    cdef int add_headers(self, RecordView *record, const char *end) noexcept nogil
    cdef bint start(self) noexcept nogil

cdef class Array:               # one finished, immutable buffer behind the buffer protocol
    cdef:
        Buffer buffer           # owned
        Py_ssize_t shape
        Py_ssize_t stride
        char *format            # "q", "i" or "B"

cdef class BinaryColumn:        # immutable
    cdef:
        readonly object data
        readonly object offsets
        readonly object valid
        Py_ssize_t rows
        const uint8_t[::1] bytes_view
        const int32_t[::1] ends_view
        const uint8_t[::1] valid_view
