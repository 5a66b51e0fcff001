"""Growable bytes. Header only, no lock: each buffer has one owner."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef struct Buffer:             # zeroed: empty
    char *data                  # owned
    int64_t size                # bytes in use
    int64_t capacity


cdef inline bint buffer_reserve(Buffer *buffer, int64_t more) noexcept nogil:
    """Reserve memory after the bytes in use; false, with the buffer unchanged, if memory is exhausted."""
    cdef int64_t capacity
    cdef char *grown
    if more <= buffer.capacity - buffer.size:
        return True
    capacity = max(buffer.capacity * 2, buffer.size + more, 64)
    grown = <char *>realloc(buffer.data, <size_t>capacity)
    if grown is NULL:
        return False
    buffer.data, buffer.capacity = grown, capacity
    return True


cdef inline bint buffer_put(Buffer *buffer, const void *data, int64_t size) noexcept nogil:
    """Append a copy of the bytes; false if memory is exhausted."""
    if not buffer_reserve(buffer, size):
        return False
    if size > 0:
        memcpy(buffer.data + buffer.size, data, <size_t>size)
        buffer.size += size
    return True


cdef inline void buffer_free(Buffer *buffer) noexcept nogil:
    free(buffer.data)
    buffer.data = NULL
    buffer.size = buffer.capacity = 0
