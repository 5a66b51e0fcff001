"""Records of many batches as columns: flat arrays in native memory that any buffer consumer reads without a copy."""
from libc.stdint cimport int64_t, uint8_t

cdef struct Vector:             # grows by doubling; owned by the struct that contains it
    char *data
    int64_t size                # bytes in use
    int64_t capacity

cdef struct Blobs:              # n byte strings end to end
    Vector data
    Vector ends                 # int64: end of each string in data, n + 1 entries, the first is 0
    Vector nulls                # uint8: 1 where the string is null

cdef class Array:               # one finished, immutable vector behind the buffer protocol
    cdef:
        Vector vector           # owned
        Py_ssize_t shape
        Py_ssize_t stride
        char *format            # "q" or "B"

cdef class BinaryColumn:        # immutable
    cdef:
        readonly object data
        readonly object offsets
        readonly object nulls
        const uint8_t[::1] bytes_view
        const int64_t[::1] offsets_view
        const uint8_t[::1] nulls_view

# False when memory is out; the vector is then unchanged.
cdef bint vector_reserve(Vector *v, int64_t size) noexcept nogil
# Returns a memoryview (int64 or bytes) that takes ownership of the vector's memory.
cdef object array_of(Vector *v, bint is_int64)
