"""Rows in Arrow's layout, to be written into record batches, and the hash that assigns keys to partitions."""
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from kbroker.protocol._batch_builder cimport BatchDraft

cdef uint32_t murmur2_of(const char *data, int64_t size) noexcept nogil
cdef inline int32_t partition_of(const char *key, int64_t size, int32_t partition_count) noexcept nogil:
    return <int32_t>((murmur2_of(key, size) & 0x7FFFFFFF) % <uint32_t>partition_count)

cdef struct Part:               # one buffer of a column
    const char *data            # NULL: not given
    int64_t size

cdef struct ByteStrings:        # Arrow's binary or string
    bint given
    int64_t offset              # of the first row in the buffers
    Part valid                  # bitmap; without data no row is null
    Part ends                   # int32
    Part data

cdef struct Rows:
    int64_t count
    ByteStrings key
    ByteStrings value
    int64_t partition_offset
    Part partition_valid
    Part partition_values       # int32; without data no row names a partition
    bint has_headers
    int64_t headers_offset
    Part headers_valid
    Part header_ends            # int32
    int64_t header_count
    int64_t header_offset       # offset of the structs
    Part header_valid
    ByteStrings header_key
    ByteStrings header_value
    int32_t *target             # owned: the partition of each row, ANY for rows of the sticky partition
    int64_t bad_row             # the rejected row
    int32_t bad_partition

cdef class ArrowRows:           # one thread at a time
    cdef:
        Rows rows
        Py_buffer *held         # owned: views of the buffers
        int throttled_count
        object given            # owners of the viewed buffers
        list used               # partitions that rows go to; None: not assigned yet
        int32_t partition_count
    cdef int take(self, Part *to, object buffer) except -1
    cdef int take_strings(self, ByteStrings *to, tuple column) except -1
    cdef int explain(self, int status) except -1
