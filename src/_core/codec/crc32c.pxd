"""CRC-32C (Castagnoli): SSE4.2, ARMv8 or table, chosen at run time. No state, no lock."""
from libc.stdint cimport int64_t, uint32_t

cdef uint32_t crc32c(uint32_t crc, const char *data, int64_t size_bytes) noexcept nogil   # start with 0; chainable
