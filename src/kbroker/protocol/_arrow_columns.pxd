"""Records of many batches in Arrow's layout: 32-bit offsets, validity bitmaps, microseconds."""
from libc.stdint cimport int32_t, int64_t

from kbroker.protocol._columns cimport Vector
from kbroker.protocol._records cimport BatchHeader, RecordView

cdef struct Strings:            # n byte strings: Arrow's binary
    Vector data
    Vector ends                 # int32, n + 1 offsets; the first is 0
    Vector valid                # bitmap; bits beyond its end are valid
    int64_t nulls

cdef class ArrowColumns:        # one thread at a time
    cdef:
        int wanted              # bits of the requested columns
        Vector offsets          # int64
        Vector timestamps       # int64, microseconds
        Vector timestamp_types  # int32
        Strings keys
        Strings values
        Vector header_ends      # int32, n + 1: end of each record's headers
        Vector header_valid     # bitmap: null for a record without headers
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
                       int64_t cap) noexcept nogil
    cdef int add_headers(self, RecordView *record, const char *end) noexcept nogil
    cdef bint start(self) noexcept nogil
