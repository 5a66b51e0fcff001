"""Hashes of keys for tables, header only. Keys chosen by clients are hashed with a secret seed."""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef inline uint64_t mix_hash(uint64_t h) noexcept nogil:
    """Return a hash of similar numbers that differ much: the last steps of splitmix64."""
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


cdef inline uint64_t hash_seeded(const char *data, int64_t size_bytes, uint64_t seed) noexcept nogil:
    """Return a seeded hash, mixed after each eight bytes: names that collide under one seed do not under another."""
    cdef uint64_t h = mix_hash(seed ^ <uint64_t>size_bytes)
    cdef uint64_t word
    cdef int64_t at = 0, n
    while at < size_bytes:
        word = 0
        n = size_bytes - at if size_bytes - at < 8 else 8
        memcpy(&word, data + at, <size_t>n)
        h = mix_hash(h ^ word) + seed
        at += n
    return h
