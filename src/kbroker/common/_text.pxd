"""A borrowed text, for functions that look names up."""
from libc.stdint cimport int64_t
from libc.string cimport memcmp

cdef struct Text:               # bytes, not terminated, borrowed
    const char *data
    int64_t size_bytes


cdef inline Text text_at(const char *data, int64_t size_bytes) noexcept nogil:
    cdef Text text
    text.data = data
    text.size_bytes = size_bytes
    return text


cdef inline bint same_text(Text a, Text b) noexcept nogil:
    return a.size_bytes == b.size_bytes and (
        a.size_bytes == 0 or memcmp(a.data, b.data, <size_t>a.size_bytes) == 0)
