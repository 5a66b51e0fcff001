"""Primitives over (pointer, end): a bounds-checked reader and a growing writer for big-endian protocols. Header only.

A ``Reader`` that runs over its end, or meets a malformed varint, turns ``bad`` and from then on yields zeros:
callers check once, after a structure. A ``Writer`` that cannot grow turns ``failed``. Neither is shared between
threads.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

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

cdef inline int64_t reader_left(Reader *r) noexcept nogil:
    return r.end - r.at

cdef inline const char *read_bytes(Reader *r, int64_t size_bytes) noexcept nogil:
    """Steps over size_bytes bytes and returns where they begin; NULL (and bad) when they are not there."""
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
    cdef const uint8_t *p = <const uint8_t *>read_bytes(r, 2)
    if p == NULL:
        return 0
    return <int16_t>(<uint16_t>((p[0] << 8) | p[1]))

cdef inline uint32_t load_u32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]

cdef inline int32_t read_i32(Reader *r) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *>read_bytes(r, 4)
    return 0 if p == NULL else <int32_t>load_u32(p)

cdef inline int64_t read_i64(Reader *r) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *>read_bytes(r, 8)
    if p == NULL:
        return 0
    return <int64_t>((<uint64_t>load_u32(p) << 32) | <uint64_t>load_u32(p + 4))

cdef inline uint32_t read_uvarint(Reader *r) noexcept nogil:
    """An unsigned varint of at most five bytes and 32 bits."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while not r.bad and r.at < r.end and shift <= 28:
        byte = <uint8_t>r.at[0]
        r.at += 1
        value |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFFu:
                break
            return <uint32_t>value
        shift += 7
    r.bad = True
    return 0

cdef inline int64_t read_length(Reader *r, bint flexible, bint wide) noexcept nogil:
    """Length of a string (wide = 0) or of bytes and arrays (wide = 1); -1 for null. Negative others are bad."""
    cdef int64_t n
    if flexible:
        return <int64_t>read_uvarint(r) - 1
    n = read_i32(r) if wide else read_i16(r)
    if n < -1:
        r.bad = True
    return n

cdef inline int64_t read_count(Reader *r, bint flexible, int64_t least_bytes) noexcept nogil:
    """Number of elements of an array, each at least least_bytes long; bad when they cannot be there. -1 for null."""
    cdef int64_t n = read_length(r, flexible, True)
    if n > 0 and n > (r.end - r.at) // least_bytes:
        r.bad = True
        return 0
    return n

cdef inline void skip_tags(Reader *r) noexcept nogil:
    """Steps over a tagged section; each field takes at least two bytes, so the loop is bounded by the frame."""
    cdef uint32_t n = read_uvarint(r)
    while n > 0 and not r.bad:
        read_uvarint(r)
        read_bytes(r, read_uvarint(r))
        n -= 1

cdef inline void writer_init(Writer *w, char *scratch, int64_t capacity_bytes) noexcept nogil:
    """Begins in ``scratch`` (not owned; may be NULL with 0) and moves to the heap when that is full."""
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
    """Room for size_bytes more bytes, counted as written; NULL (and failed) when memory is out."""
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

cdef inline void store_u32(char *p, uint32_t v) noexcept nogil:
    p[0] = <char>(v >> 24)
    p[1] = <char>(v >> 16)
    p[2] = <char>(v >> 8)
    p[3] = <char>v

cdef inline void write_i8(Writer *w, int8_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 1)
    if p != NULL:
        p[0] = <char>v

cdef inline void write_i16(Writer *w, int16_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 2)
    if p != NULL:
        p[0] = <char>(<uint16_t>v >> 8)
        p[1] = <char>v

cdef inline void write_i32(Writer *w, int32_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 4)
    if p != NULL:
        store_u32(p, <uint32_t>v)

cdef inline void write_i64(Writer *w, int64_t v) noexcept nogil:
    cdef char *p = write_reserve(w, 8)
    if p != NULL:
        store_u32(p, <uint32_t>(<uint64_t>v >> 32))
        store_u32(p + 4, <uint32_t>v)

cdef inline void write_raw(Writer *w, const char *data, int64_t size_bytes) noexcept nogil:
    cdef char *p = write_reserve(w, size_bytes)
    if p != NULL and size_bytes > 0:
        memcpy(p, data, <size_t>size_bytes)

cdef inline void write_uvarint(Writer *w, uint32_t v) noexcept nogil:
    while v > 127:
        write_i8(w, <int8_t>(v | 128))
        v >>= 7
    write_i8(w, <int8_t>v)

cdef inline void write_length(Writer *w, int64_t n, bint flexible, bint wide) noexcept nogil:
    """Length of a string (wide = 0), or of bytes and arrays (wide = 1); -1 for null."""
    if flexible:
        write_uvarint(w, <uint32_t>(n + 1))
    elif wide:
        write_i32(w, <int32_t>n)
    else:
        write_i16(w, <int16_t>n)

cdef inline void write_string(Writer *w, const char *data, int64_t size_bytes, bint flexible) noexcept nogil:
    """A string; NULL is null."""
    if data == NULL:
        write_length(w, -1, flexible, False)
        return
    write_length(w, size_bytes, flexible, False)
    write_raw(w, data, size_bytes)
