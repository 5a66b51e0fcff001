"""Numbers as bytes: big endian, and varints of seven bits a byte with zigzag for the signed ones. Header only.

The limits are those of Kafka's ``ByteUtils``: a varint of 32 bits has five bytes at most, one of 64 bits
ten. Counts and sizes are int32 there, so an unsigned varint above 2^31 - 1 is malformed.
Loads and stores are straight-line code, which compilers turn into one instruction and a byte swap, unlike a loop.
The caller checks that the bytes exist for ``load``, ``store`` and ``put``; ``get`` checks them itself.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MAX_LENGTH = 2147483647     # maximum of a string, of bytes, of an array, of a tagged section
    VARINT_MAX_BYTES = 5             # maximum for 32 bits
    VARLONG_MAX_BYTES = 10           # maximum for 64 bits

cdef inline uint16_t load_u16(const void *at) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *>at
    return <uint16_t>(p[0] << 8 | p[1])

cdef inline uint32_t load_u32(const void *at) noexcept nogil:
    cdef const uint8_t *p = <const uint8_t *>at
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]

cdef inline uint64_t load_u64(const void *at) noexcept nogil:
    return <uint64_t>load_u32(at) << 32 | load_u32(<const uint8_t *>at + 4)

cdef inline int16_t load_i16(const void *at) noexcept nogil:
    return <int16_t>load_u16(at)

cdef inline int32_t load_i32(const void *at) noexcept nogil:
    return <int32_t>load_u32(at)

cdef inline int64_t load_i64(const void *at) noexcept nogil:
    return <int64_t>load_u64(at)

# Store the lowest bits of value, signed or not.
cdef inline void store_16(void *at, uint64_t value) noexcept nogil:
    cdef uint8_t *p = <uint8_t *>at
    p[0], p[1] = <uint8_t>(value >> 8), <uint8_t>value

cdef inline void store_32(void *at, uint64_t value) noexcept nogil:
    cdef uint8_t *p = <uint8_t *>at
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value

cdef inline void store_64(void *at, uint64_t value) noexcept nogil:
    cdef uint8_t *p = <uint8_t *>at
    p[0] = <uint8_t>(value >> 56)
    p[1] = <uint8_t>(value >> 48)
    p[2] = <uint8_t>(value >> 40)
    p[3] = <uint8_t>(value >> 32)
    p[4] = <uint8_t>(value >> 24)
    p[5] = <uint8_t>(value >> 16)
    p[6] = <uint8_t>(value >> 8)
    p[7] = <uint8_t>value

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return <uint64_t>value << 1 ^ <uint64_t>(value >> 63)

cdef inline int64_t unzigzag(uint64_t value) noexcept nogil:
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)

cdef inline int uvarint_bytes(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size

cdef inline int varlong_bytes(int64_t value) noexcept nogil:
    return uvarint_bytes(zigzag(value))

cdef inline int put_uvarint(void *at, uint64_t value) noexcept nogil:
    """Write a varint; return the number of bytes written."""
    cdef uint8_t *p = <uint8_t *>at
    cdef int size = 0
    while value >= 128:
        p[size] = <uint8_t>(value | 128)
        value >>= 7
        size += 1
    p[size] = <uint8_t>value
    return size + 1

cdef inline int put_varlong(void *at, int64_t value) noexcept nogil:
    """Write a varint or a varlong, which have the same form; return the number of bytes written."""
    return put_uvarint(at, zigzag(value))

cdef inline int get_bits(const void *at, const void *end, int max_bytes, uint64_t *out) noexcept nogil:
    """Read seven bits a byte, of at most max_bytes. Return the number of bytes read; 0 if the number does not end."""
    cdef const uint8_t *p = <const uint8_t *>at
    cdef int64_t left = <const uint8_t *>end - p
    cdef uint64_t value = 0
    cdef int size = 0
    if left > max_bytes:
        left = max_bytes
    while size < left:
        value |= <uint64_t>(p[size] & 127) << (7 * size)
        size += 1
        if p[size - 1] < 128:
            out[0] = value
            return size
    return 0

cdef inline int get_uvarint(const void *at, const void *end, uint32_t *out) noexcept nogil:
    """Read a length, count or tag. Return the number of bytes read; 0 if malformed, above MAX_LENGTH or cut."""
    cdef uint64_t value = 0
    cdef int size = get_bits(at, end, VARINT_MAX_BYTES, &value)
    if value > MAX_LENGTH:
        return 0
    out[0] = <uint32_t>value
    return size

cdef inline int get_varint(const void *at, const void *end, int32_t *out) noexcept nogil:
    """Read a signed number of 32 bits; higher bits are dropped, as in Kafka. Return the number of bytes read, or 0."""
    cdef uint64_t value = 0
    cdef int size = get_bits(at, end, VARINT_MAX_BYTES, &value)
    out[0] = <int32_t>unzigzag(value & 0xffffffffu)
    return size

cdef inline int get_varlong(const void *at, const void *end, int64_t *out) noexcept nogil:
    """Read a signed number of 64 bits; higher bits are dropped. Return the number of bytes read, or 0."""
    cdef uint64_t value = 0
    cdef int size = get_bits(at, end, VARLONG_MAX_BYTES, &value)
    out[0] = unzigzag(value)
    return size
