"""Hash that assigns keys to partitions. Pure functions, no lock."""
from libc.stdint cimport int32_t, int64_t, uint32_t

cdef uint32_t murmur2_of(const char *data, int64_t size) noexcept nogil
cdef inline int32_t partition_of(const char *key, int64_t size, int32_t partition_count) noexcept nogil:
    return <int32_t>((murmur2_of(key, size) & 0x7FFFFFFF) % <uint32_t>partition_count)
