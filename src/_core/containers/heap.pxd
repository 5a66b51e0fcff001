"""Intrusive binary heap with the smallest key on top: the entries are members of its items and store their positions.

Header only, no lock: its owner guards it.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

cdef struct HeapEntry:          # the first member of an item that does not move
    int64_t key
    int64_t place               # in the heap, counted from 1; 0: not in it

cdef struct Heap:               # zeroed: empty
    HeapEntry **entries         # owned
    int64_t count
    int64_t capacity


cdef inline HeapEntry *heap_top(const Heap *heap) noexcept nogil:
    """Return the entry with the smallest key; NULL: the heap is empty."""
    return heap.entries[0] if heap.count > 0 else NULL


cdef inline void heap_put(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    heap.entries[at] = entry
    entry.place = at + 1


cdef inline void heap_sift_up(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    cdef int64_t parent
    while at > 0:
        parent = (at - 1) >> 1
        if heap.entries[parent].key <= entry.key:
            break
        heap_put(heap, at, heap.entries[parent])
        at = parent
    heap_put(heap, at, entry)


cdef inline void heap_sift_down(Heap *heap, int64_t at, HeapEntry *entry) noexcept nogil:
    cdef int64_t child
    while True:
        child = 2 * at + 1
        if child >= heap.count:
            break
        if child + 1 < heap.count and heap.entries[child + 1].key < heap.entries[child].key:
            child += 1
        if entry.key <= heap.entries[child].key:
            break
        heap_put(heap, at, heap.entries[child])
        at = child
    heap_put(heap, at, entry)


cdef inline bint heap_reserve(Heap *heap, int64_t entries) noexcept nogil:
    """Reserve memory for ``entries`` entries; false: out of memory."""
    cdef HeapEntry **larger
    if entries <= heap.capacity:
        return True
    larger = <HeapEntry **>realloc(heap.entries, <size_t>entries * sizeof(HeapEntry *))
    if larger == NULL:
        return False
    heap.entries = larger
    heap.capacity = entries
    return True


cdef inline bint heap_add(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil:
    """Add an entry; false: out of memory."""
    if heap.count == heap.capacity and not heap_reserve(heap, heap.capacity * 2 + 64):
        return False
    entry.key = key
    heap.count += 1
    heap_sift_up(heap, heap.count - 1, entry)
    return True


cdef inline void heap_remove(Heap *heap, HeapEntry *entry) noexcept nogil:
    """Remove an entry; one that is not in the heap stays as it is."""
    cdef int64_t at = entry.place - 1
    cdef HeapEntry *last
    if at < 0:
        return
    entry.place = 0
    heap.count -= 1
    last = heap.entries[heap.count]
    if last == entry:
        return
    heap_sift_up(heap, at, last)
    heap_sift_down(heap, last.place - 1, last)


cdef inline void heap_raise(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil:
    """Raise the key of an entry, or keep it."""
    entry.key = key
    heap_sift_down(heap, entry.place - 1, entry)


cdef inline void heap_clear(Heap *heap) noexcept nogil:
    """Free the memory; the entries belong to their owner."""
    free(heap.entries)
    heap.entries = NULL
    heap.count = heap.capacity = 0


cdef inline HeapEntry *heap_take_top(Heap *heap) noexcept nogil:
    """Remove the entry with the smallest key; NULL: the heap is empty."""
    cdef HeapEntry *top = heap_top(heap)
    if top != NULL:
        heap_remove(heap, top)
    return top
