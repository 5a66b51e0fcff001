"""Distinct lengths of the prefixes of a resource type, ascending, each with its count. Header only.

Guarded by the lock of its owner.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove

cdef struct PrefixLengths:
    int32_t *lengths            # owned
    int64_t *counts             # owned
    int32_t size
    int32_t room


cdef inline bint prefix_added(PrefixLengths *prefixes, int32_t length) noexcept nogil:
    cdef int32_t at = 0, room
    cdef int32_t *lengths
    cdef int64_t *counts
    while at < prefixes.size and prefixes.lengths[at] < length:
        at += 1
    if at < prefixes.size and prefixes.lengths[at] == length:
        prefixes.counts[at] += 1
        return True
    if prefixes.size == prefixes.room:
        room = 2 * prefixes.room + 8
        lengths = <int32_t *>realloc(prefixes.lengths, <size_t>room * sizeof(int32_t))
        if lengths == NULL:
            return False
        prefixes.lengths = lengths
        counts = <int64_t *>realloc(prefixes.counts, <size_t>room * sizeof(int64_t))
        if counts == NULL:
            return False
        prefixes.counts = counts
        prefixes.room = room
    memmove(prefixes.lengths + at + 1, prefixes.lengths + at, <size_t>(prefixes.size - at) * sizeof(int32_t))
    memmove(prefixes.counts + at + 1, prefixes.counts + at, <size_t>(prefixes.size - at) * sizeof(int64_t))
    prefixes.lengths[at] = length
    prefixes.counts[at] = 1
    prefixes.size += 1
    return True


cdef inline void prefix_removed(PrefixLengths *prefixes, int32_t length) noexcept nogil:
    cdef int32_t at = 0
    while prefixes.lengths[at] != length:
        at += 1
    prefixes.counts[at] -= 1
    if prefixes.counts[at] > 0:
        return
    prefixes.size -= 1
    memmove(prefixes.lengths + at, prefixes.lengths + at + 1, <size_t>(prefixes.size - at) * sizeof(int32_t))
    memmove(prefixes.counts + at, prefixes.counts + at + 1, <size_t>(prefixes.size - at) * sizeof(int64_t))
