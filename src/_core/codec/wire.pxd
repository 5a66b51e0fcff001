"""Primitives over (pointer, end): a bounds-checked reader and a growing writer for big-endian protocols. Header only.

A ``Reader`` that runs over its end, or meets a malformed varint, turns ``bad`` and from then on yields zeros:
callers check once, after a structure. A ``Writer`` that cannot grow turns ``failed``. Neither is shared between
threads.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kbroker._core.codec.bytes cimport (
    get_uvarint, load_i16, load_i32, load_i64, put_uvarint, store_16, store_32, store_64, uvarint_bytes,
)

cdef struct Reader:
    const char *at
    const char *end
    bint bad

cdef struct Writer:
    char *data
    int64_t size_bytes
    int64_t capacity_bytes
    bint is_owned               # data came from malloc: free(data), or pass it on
    bint failed

cdef inline void reader_init(Reader *r, const char *data, int64_t size_bytes) noexcept nogil:
    r.at = data
    r.end = data + size_bytes
    r.bad = False

cdef inline const char *read_bytes(Reader *r, int64_t size_bytes) noexcept nogil:
    """Skip size_bytes bytes and return their address; NULL (and bad) if fewer are left."""
    cdef const char *start = r.at
    if r.bad or size_bytes < 0 or size_bytes > r.end - r.at:
        r.bad = True
        return NULL
    r.at += size_bytes
    return start

cdef inline int8_t read_i8(Reader *r) noexcept nogil:
    cdef const char *p = read_bytes(r, 1)
    return 0 if p == NULL else <int8_t>p[0]

cdef inline int16_t read_i16(Reader *r) noexcept nogil:
    cdef const char *p = read_bytes(r, 2)
    return 0 if p == NULL else load_i16(p)

cdef inline int32_t read_i32(Reader *r) noexcept nogil:
    cdef const char *p = read_bytes(r, 4)
    return 0 if p == NULL else load_i32(p)

cdef inline int64_t read_i64(Reader *r) noexcept nogil:
    cdef const char *p = read_bytes(r, 8)
    return 0 if p == NULL else load_i64(p)

cdef inline uint32_t read_uvarint(Reader *r) noexcept nogil:
    """Read a length, a count or a tag: bad above 2^31 - 1."""
    cdef uint32_t value = 0
    cdef int size = 0 if r.bad else get_uvarint(r.at, r.end, &value)
    if size == 0:
        r.bad = True
        return 0
    r.at += size
    return value

cdef inline int64_t read_length(Reader *r, bint flexible, bint wide) noexcept nogil:
    """Read the length of a string (wide = 0) or of bytes and arrays (wide = 1); -1 for null: any negative length.

    A string longer than 2^15 - 1 is bad, even in the flexible form.
    """
    cdef int64_t n
    if flexible:
        n = <int64_t>read_uvarint(r) - 1
        if n > 0x7fff and not wide:
            r.bad = True
            return -1
        return n
    n = read_i32(r) if wide else read_i16(r)
    return n if n >= 0 else -1

cdef inline int64_t read_count(Reader *r, bint flexible, int64_t least_bytes) noexcept nogil:
    """Read the number of elements, each at least least_bytes long; bad if the rest is too short. -1 for null."""
    cdef int64_t n = read_length(r, flexible, True)
    if n > 0 and n > (r.end - r.at) // least_bytes:
        r.bad = True
        return 0
    return n

cdef inline void skip_tags(Reader *r) noexcept nogil:
    """Skip a tagged section; each field takes at least two bytes, so the loop is bounded by the frame."""
    cdef uint32_t n = read_uvarint(r)
    while n > 0 and not r.bad:
        read_uvarint(r)
        read_bytes(r, read_uvarint(r))
        n -= 1

cdef inline void writer_init(Writer *w, char *scratch, int64_t capacity_bytes) noexcept nogil:
    """Begin in ``scratch`` (not owned; may be NULL with 0); the writer moves to the heap when that is full."""
    w.data = scratch
    w.size_bytes = 0
    w.capacity_bytes = capacity_bytes
    w.is_owned = False
    w.failed = False

cdef inline void writer_free(Writer *w) noexcept nogil:
    if w.is_owned:
        free(w.data)
    w.data = NULL
    w.is_owned = False

cdef inline char *write_reserve(Writer *w, int64_t size_bytes) noexcept nogil:
    """Reserve size_bytes more bytes, counted as written; NULL (and failed) if out of memory."""
    cdef int64_t need = w.size_bytes + size_bytes
    cdef int64_t capacity
    cdef char *grown
    if w.failed:
        return NULL
    if need > w.capacity_bytes:
        capacity = w.capacity_bytes * 2
        if capacity < 512:
            capacity = 512
        if capacity < need:
            capacity = need
        if w.is_owned:
            grown = <char *>realloc(w.data, <size_t>capacity)
        else:
            grown = <char *>malloc(<size_t>capacity)
            if grown != NULL and w.size_bytes > 0:
                memcpy(grown, w.data, <size_t>w.size_bytes)
        if grown == NULL:
            w.failed = True
            return NULL
        w.data = grown
        w.capacity_bytes = capacity
        w.is_owned = True
    w.size_bytes = need
    return w.data + need - size_bytes

cdef inline void write_i16(Writer *w, int16_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 2)
    if p != NULL:
        store_16(p, v)

cdef inline void write_i32(Writer *w, int32_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 4)
    if p != NULL:
        store_32(p, v)

cdef inline void write_i64(Writer *w, int64_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 8)
    if p != NULL:
        store_64(p, v)

cdef inline void write_raw(Writer *w, const char *data, int64_t size_bytes) noexcept nogil:
    cdef char *p = write_reserve(w, size_bytes)
    if p != NULL and size_bytes > 0:
        memcpy(p, data, <size_t>size_bytes)

cdef inline void write_uvarint(Writer *w, uint32_t v) noexcept nogil:
    cdef char *p = write_reserve(w, uvarint_bytes(v))
    if p != NULL:
        put_uvarint(p, v)

cdef inline void write_length(Writer *w, int64_t n, bint flexible, bint wide) noexcept nogil:
    """Write the length of a string (wide = 0), or of bytes and arrays (wide = 1); -1 for null."""
    if flexible:
        write_uvarint(w, <uint32_t>(n + 1))
    elif wide:
        write_i32(w, <int32_t>n)
    else:
        write_i16(w, <int16_t>n)

cdef inline void write_string(Writer *w, const char *data, int64_t size_bytes, bint flexible) noexcept nogil:
    """Write a string; NULL is null."""
    if data == NULL:
        write_length(w, -1, flexible, False)
        return
    write_length(w, size_bytes, flexible, False)
    write_raw(w, data, size_bytes)
