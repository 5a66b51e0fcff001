# cython: freethreading_compatible=True
"""The heap by time of use; see the contract in the .pxd."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc


cdef inline void put(Recency *recency, int64_t at, RecencyEntry *entry) noexcept nogil:
    recency.heap[at] = entry
    entry.place = at + 1


cdef void sift_up(Recency *recency, int64_t at, RecencyEntry *entry) noexcept nogil:
    cdef int64_t parent
    while at > 0:
        parent = (at - 1) // 2
        if recency.heap[parent].used_ms <= entry.used_ms:
            break
        put(recency, at, recency.heap[parent])
        at = parent
    put(recency, at, entry)


cdef void sift_down(Recency *recency, int64_t at, RecencyEntry *entry) noexcept nogil:
    cdef int64_t child
    while True:
        child = 2 * at + 1
        if child >= recency.count:
            break
        if child + 1 < recency.count and recency.heap[child + 1].used_ms < recency.heap[child].used_ms:
            child += 1
        if entry.used_ms <= recency.heap[child].used_ms:
            break
        put(recency, at, recency.heap[child])
        at = child
    put(recency, at, entry)


cdef bint recency_add(Recency *recency, RecencyEntry *entry, int64_t used_ms) noexcept nogil:
    cdef RecencyEntry **larger
    if recency.count == recency.capacity:
        larger = <RecencyEntry **>realloc(
            recency.heap, <size_t>(recency.capacity * 2 + 64) * sizeof(RecencyEntry *))
        if larger == NULL:
            return False
        recency.heap = larger
        recency.capacity = recency.capacity * 2 + 64
    entry.used_ms = used_ms
    recency.count += 1
    sift_up(recency, recency.count - 1, entry)
    return True


cdef void recency_remove(Recency *recency, RecencyEntry *entry) noexcept nogil:
    cdef int64_t at = entry.place - 1
    cdef RecencyEntry *last
    if at < 0:
        return
    entry.place = 0
    recency.count -= 1
    last = recency.heap[recency.count]
    if last == entry:
        return
    sift_up(recency, at, last)
    sift_down(recency, last.place - 1, last)


cdef void recency_renew(Recency *recency, RecencyEntry *entry, int64_t used_ms) noexcept nogil:
    entry.used_ms = used_ms
    sift_down(recency, entry.place - 1, entry)


cdef RecencyEntry *recency_oldest(const Recency *recency) noexcept nogil:
    return recency.heap[0] if recency.count > 0 else NULL


cdef void recency_clear(Recency *recency) noexcept nogil:
    free(recency.heap)
    recency.heap = NULL
    recency.count = recency.capacity = 0
