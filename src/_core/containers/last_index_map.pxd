"""Map of each key of a list to the index of its last occurrence, header only: of duplicates, the last one counts.

Open addressing, never more than half full. One thread at a time.
"""
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free, malloc
from kbroker._core.containers.hashing cimport mix_hash

cdef struct LatestSlot:
    uint64_t key
    int32_t index               # -1: free

cdef struct LatestIndex:
    LatestSlot *slots           # owned
    int32_t mask
    uint64_t seed


cdef inline bint latest_init(LatestIndex *latest, int32_t keys, uint64_t seed) noexcept nogil:
    """Reserve capacity for ``keys`` keys; false: out of memory. ``seed``: secret if clients choose the keys."""
    cdef int32_t size = 4, i
    while size < 2 * keys:
        size *= 2
    latest.mask = size - 1
    latest.seed = seed
    latest.slots = <LatestSlot *>malloc(<size_t>size * sizeof(LatestSlot))
    if latest.slots == NULL:
        return False
    for i in range(size):
        latest.slots[i].index = -1
    return True


cdef inline int32_t latest_put(LatestIndex *latest, uint64_t key, int32_t index) noexcept nogil:
    """Set the index of a key; return its previous index, or -1."""
    cdef int32_t slot = <int32_t>(mix_hash(key ^ latest.seed) & <uint64_t>latest.mask), before
    while latest.slots[slot].index >= 0 and latest.slots[slot].key != key:
        slot = (slot + 1) & latest.mask
    before = latest.slots[slot].index
    latest.slots[slot].key = key
    latest.slots[slot].index = index
    return before


cdef inline void latest_free(LatestIndex *latest) noexcept nogil:
    free(latest.slots)
    latest.slots = NULL
