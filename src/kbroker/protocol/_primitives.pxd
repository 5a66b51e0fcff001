"""Primitive types of the Kafka protocol: big-endian numbers and unsigned varints at a place that was checked before.

Straight-line code, which compilers turn into one load or store and a byte swap; a loop they do not.
"""
from libc.stdint cimport uint8_t, uint64_t


cdef inline uint64_t load_16(const uint8_t *at) noexcept nogil:
    return <uint64_t>at[0] << 8 | at[1]


cdef inline uint64_t load_32(const uint8_t *at) noexcept nogil:
    return <uint64_t>at[0] << 24 | <uint64_t>at[1] << 16 | <uint64_t>at[2] << 8 | at[3]


cdef inline uint64_t load_64(const uint8_t *at) noexcept nogil:
    return load_32(at) << 32 | load_32(at + 4)


cdef inline void store_16(uint8_t *at, uint64_t value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void store_32(uint8_t *at, uint64_t value) noexcept nogil:
    at[0], at[1] = <uint8_t>(value >> 24), <uint8_t>(value >> 16)
    at[2], at[3] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void store_64(uint8_t *at, uint64_t value) noexcept nogil:
    store_32(at, value >> 32)
    store_32(at + 4, value)


cdef inline int varint_bytes(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline void put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
