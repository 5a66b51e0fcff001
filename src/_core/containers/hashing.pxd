"""Hashes of keys for tables, header only. Keys chosen by clients are hashed with a secret seed."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef inline uint64_t mix_hash(uint64_t h) noexcept nogil:
    """Return a hash of a number; similar numbers get very different hashes: the last steps of splitmix64."""
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


cdef inline uint64_t last_bytes(const char *data, int64_t size_bytes) noexcept nogil:
    """Return one to seven bytes as a number, unique among this size. A memcpy of this size would take longer."""
    cdef uint32_t low, high
    if size_bytes >= 4:
        memcpy(&low, data, 4)
        memcpy(&high, data + size_bytes - 4, 4)
        return low | <uint64_t>high << 32
    return (<uint8_t>data[0] | <uint64_t><uint8_t>data[size_bytes >> 1] << 8
            | <uint64_t><uint8_t>data[size_bytes - 1] << 16)


cdef inline uint64_t hash_seeded(const char *data, int64_t size_bytes, uint64_t seed) noexcept nogil:
    """Return a seeded hash, mixed after each eight bytes: names that collide under one seed do not under another."""
    cdef uint64_t h = mix_hash(seed ^ <uint64_t>size_bytes)
    cdef uint64_t word
    cdef int64_t at = 0
    while size_bytes - at >= 8:
        memcpy(&word, data + at, 8)
        h = mix_hash(h ^ word) + seed
        at += 8
    if at < size_bytes:
        h = mix_hash(h ^ last_bytes(data + at, size_bytes - at)) + seed
    return h
