"""The growing buffer of an encoder. Each Writer has one owner at a time."""
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from kbroker.protocol._primitives cimport put_varint, varint_bytes

cdef struct Writer:
    PyObject *buffer            # owned bytes object, not yet seen by anyone else
    uint8_t *data
    int64_t size
    int64_t capacity

cdef int start_writer(Writer *w, int64_t capacity) except -1
cdef bytes finish_writer(Writer *w)     # what was written; takes the buffer
cdef int grow(Writer *w, int64_t size) except -1


cdef inline uint8_t *room(Writer *w, int64_t size) except NULL:
    """Place for `size` more bytes, already counted as written."""
    cdef uint8_t *at
    if size > w.capacity - w.size:
        grow(w, size)
    at = w.data + w.size
    w.size += size
    return at


cdef inline int write_varint(Writer *w, uint64_t value) except -1:
    put_varint(room(w, varint_bytes(value)), value)
    return 0
