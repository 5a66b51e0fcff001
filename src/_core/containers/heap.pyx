"""A binary heap of entries that know their place; see the contract in the .pxd."""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc


cdef inline void put(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    heap.entries[at] = entry
    entry.place = at + 1


cdef void sift_up(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    cdef int64_t parent
    while at > 0:
        parent = (at - 1) // 2
        if heap.entries[parent].key <= entry.key:
            break
        put(heap, at, heap.entries[parent])
        at = parent
    put(heap, at, entry)


cdef void sift_down(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    cdef int64_t child
    while True:
        child = 2 * at + 1
        if child >= heap.count:
            break
        if child + 1 < heap.count and heap.entries[child + 1].key < heap.entries[child].key:
            child += 1
        if entry.key <= heap.entries[child].key:
            break
        put(heap, at, heap.entries[child])
        at = child
    put(heap, at, entry)


cdef bint heap_reserve(Heap *heap, int64_t entries) noexcept nogil:
    cdef HeapEntry **larger
    if entries <= heap.capacity:
        return True
    larger = <HeapEntry **>realloc(heap.entries, <size_t>entries * sizeof(HeapEntry *))
    if larger == NULL:
        return False
    heap.entries = larger
    heap.capacity = entries
    return True


cdef bint heap_add(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil:
    if heap.count == heap.capacity and not heap_reserve(heap, heap.capacity * 2 + 64):
        return False
    entry.key = key
    heap.count += 1
    sift_up(heap, heap.count - 1, entry)
    return True


cdef void heap_remove(Heap *heap, HeapEntry *entry) noexcept nogil:
    cdef int64_t at = entry.place - 1
    cdef HeapEntry *last
    if at < 0:
        return
    entry.place = 0
    heap.count -= 1
    last = heap.entries[heap.count]
    if last == entry:
        return
    sift_up(heap, at, last)
    sift_down(heap, last.place - 1, last)


cdef void heap_raise(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil:
    entry.key = key
    sift_down(heap, entry.place - 1, entry)


cdef void heap_clear(Heap *heap) noexcept nogil:
    free(heap.entries)
    heap.entries = NULL
    heap.count = heap.capacity = 0


cdef HeapEntry *heap_take_top(Heap *heap) noexcept nogil:
    cdef HeapEntry *top = heap_top(heap)
    if top != NULL:
        heap_remove(heap, top)
    return top
