"""Intrusive binary heap with the smallest key on top: its items carry the entries. No lock: its owner guards it."""
from libc.stdint cimport int64_t

cdef struct HeapEntry:          # the first member of the thing, which stays where it is
    int64_t key
    int64_t place               # in the heap, counted from 1; 0: not in it

cdef struct Heap:               # zeroed: empty
    HeapEntry **entries         # owned
    int64_t count
    int64_t capacity

cdef bint heap_reserve(Heap *heap, int64_t entries) noexcept nogil         # for so many; false: memory is out
cdef bint heap_add(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil       # false: memory is out
cdef void heap_remove(Heap *heap, HeapEntry *entry) noexcept nogil         # one that is not in it too
cdef void heap_raise(Heap *heap, HeapEntry *entry, int64_t key) noexcept nogil     # a key no smaller than its own
cdef HeapEntry *heap_take_top(Heap *heap) noexcept nogil                    # NULL: it is empty
cdef void heap_clear(Heap *heap) noexcept nogil                             # the entries are their owner's

cdef inline HeapEntry *heap_top(const Heap *heap) noexcept nogil:
    """NULL: it is empty."""
    return heap.entries[0] if heap.count > 0 else NULL
