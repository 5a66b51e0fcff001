"""Functions of `_core/codec/bytes.pxd` for tests; each reader gets exactly the bytes of its argument."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.codec.bytes cimport (
    VARLONG_MAX_BYTES, get_uvarint, get_varint, get_varlong, load_i16, load_i32, load_i64, load_u16, load_u32, load_u64,
    put_uvarint, put_varlong, store_16, store_32, store_64, uvarint_bytes, varlong_bytes,
)


def load(bytes data not None, bint signed):
    """Return a big-endian number of two, four or eight bytes."""
    cdef const char *at = data
    if len(data) == 2:
        return load_i16(at) if signed else load_u16(at)
    if len(data) == 4:
        return load_i32(at) if signed else load_u32(at)
    return load_i64(at) if signed else load_u64(at)


def store(uint64_t value, int size):
    """Return the lowest bytes of a number, big endian."""
    cdef char[8] room
    if size == 2:
        store_16(room, value)
    elif size == 4:
        store_32(room, value)
    else:
        store_64(room, value)
    return room[:size]


def uvarint(uint64_t value):
    """Return the written bytes and the announced size."""
    cdef uint8_t[VARLONG_MAX_BYTES] room
    cdef int size = put_uvarint(room, value)
    return (<char *>room)[:size], uvarint_bytes(value)


def varlong(int64_t value):
    """Return the written bytes and the announced size."""
    cdef uint8_t[VARLONG_MAX_BYTES] room
    cdef int size = put_varlong(room, value)
    return (<char *>room)[:size], varlong_bytes(value)


def read(str kind not None, bytes data not None):
    """Return a number and its size, None if it is malformed or truncated. kind: uvarint, varint, varlong."""
    cdef const char *at = data
    cdef const char *end = at + len(data)
    cdef uint32_t length = 0
    cdef int32_t number = 0
    cdef int64_t wide = 0
    cdef int size
    if kind == "uvarint":
        size = get_uvarint(at, end, &length)
        return (length, size) if size else None
    if kind == "varint":
        size = get_varint(at, end, &number)
        return (number, size) if size else None
    size = get_varlong(at, end, &wide)
    return (wide, size) if size else None
