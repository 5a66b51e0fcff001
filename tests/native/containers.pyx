"""Containers of C structs as Python objects of numbers, for tests."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._core.containers.array cimport array_reserve
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_put, buffer_reserve
from kbroker._core.containers.hash_table cimport (
    HashNode, HashTable, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded
from kbroker._core.containers.heap cimport (
    Heap, HeapEntry, heap_add, heap_clear, heap_raise, heap_remove, heap_take_top, heap_top,
)
from kbroker._core.containers.last_index_map cimport LatestIndex, latest_free, latest_init, latest_put


cdef struct Thing:
    HashNode node               # first
    HeapEntry entry
    int64_t number


cdef inline Thing *thing_of(HeapEntry *entry) noexcept nogil:
    return <Thing *>(<char *>entry - sizeof(HashNode))


@cython.final
cdef class NumberTable:
    """Hash table of numbers, with hashes that the test chooses. Threads: one at a time."""
    cdef HashTable table

    def __dealloc__(self):
        cdef HashNode *node = hash_after(&self.table, NULL)
        cdef HashNode *following
        while node != NULL:
            following = hash_after(&self.table, node)
            free(node)
            node = following
        hash_clear(&self.table)

    cdef Thing *find(self, int64_t number, uint64_t h) noexcept:
        cdef HashNode *node = hash_first(&self.table, h)
        while node != NULL and (<Thing *>node).number != number:
            node = hash_next(node)
        return <Thing *>node

    def __len__(self):
        return self.table.count

    @property
    def buckets(self):
        return 0 if self.table.buckets == NULL else self.table.mask + 1

    def add(self, int64_t number, uint64_t hash):
        cdef Thing *thing = <Thing *>calloc(1, sizeof(Thing))
        if thing == NULL or not hash_reserve(&self.table):
            free(thing)
            raise MemoryError
        thing.number = number
        hash_add(&self.table, &thing.node, hash)

    def has(self, int64_t number, uint64_t hash):
        return self.find(number, hash) != NULL

    def remove(self, int64_t number, uint64_t hash):
        cdef Thing *thing = self.find(number, hash)
        if thing == NULL:
            raise KeyError(number)
        hash_remove(&self.table, &thing.node)
        free(thing)

    def remove_even(self):
        """Remove the keys of an iteration during the iteration, as a sweep does."""
        cdef HashNode *node = hash_after(&self.table, NULL)
        cdef HashNode *following
        while node != NULL:
            following = hash_after(&self.table, node)
            if (<Thing *>node).number % 2 == 0:
                hash_remove(&self.table, node)
                free(node)
            node = following

    def numbers(self):
        cdef HashNode *node = hash_after(&self.table, NULL)
        found = []
        while node != NULL:
            found.append((<Thing *>node).number)
            node = hash_after(&self.table, node)
        return found


@cython.final
cdef class NumberHeap:
    """Heap of the numbers 0 to size - 1. Threads: one at a time."""
    cdef Heap heap
    cdef Thing *things
    cdef int64_t size

    def __cinit__(self, int64_t size):
        cdef int64_t i
        if size < 1:
            raise ValueError(f"size must be >= 1, got {size}")
        self.things = <Thing *>calloc(<size_t>size, sizeof(Thing))
        if self.things == NULL:
            raise MemoryError
        self.size = size
        for i in range(size):
            self.things[i].number = i

    def __dealloc__(self):
        heap_clear(&self.heap)
        free(self.things)

    cdef HeapEntry *entry(self, int64_t number) except NULL:
        if not 0 <= number < self.size:
            raise IndexError(number)
        return &self.things[number].entry

    def __len__(self):
        return self.heap.count

    def add(self, int64_t number, int64_t key):
        cdef HeapEntry *entry = self.entry(number)
        if entry.place:
            raise ValueError(f"{number} is in it")
        if not heap_add(&self.heap, entry, key):
            raise MemoryError

    def remove(self, int64_t number):
        heap_remove(&self.heap, self.entry(number))

    def raise_to(self, int64_t number, int64_t key):
        cdef HeapEntry *entry = self.entry(number)
        if not entry.place or key < entry.key:
            raise ValueError(f"{number} is not in it, or {key} is below its key")
        heap_raise(&self.heap, entry, key)

    def top(self):
        cdef HeapEntry *entry = heap_top(&self.heap)
        return None if entry == NULL else (entry.key, thing_of(entry).number)

    def take_top(self):
        cdef HeapEntry *entry = heap_take_top(&self.heap)
        return None if entry == NULL else (entry.key, thing_of(entry).number)


def places_before(keys, uint64_t seed=0):
    """Return the previous index of each key, -1 for a new key."""
    cdef LatestIndex latest
    cdef list given = list(keys)
    cdef int32_t i
    if not latest_init(&latest, <int32_t>len(given), seed):
        raise MemoryError
    try:
        return [latest_put(&latest, <uint64_t>given[i], i) for i in range(<int32_t>len(given))]
    finally:
        latest_free(&latest)


def seeded_hash(bytes data not None, uint64_t seed):
    """Return ``hash_seeded`` of the bytes."""
    return hash_seeded(<const char *>data, len(data), seed)


@cython.final
cdef class Bytes:
    """Growable buffer. Threads: one at a time."""
    cdef Buffer buffer

    def __dealloc__(self):
        buffer_free(&self.buffer)

    @property
    def content(self):
        return self.buffer.data[:self.buffer.size]

    def put(self, bytes data not None):
        if not buffer_put(&self.buffer, <const char *>data, len(data)):
            raise MemoryError

    def reserve(self, int64_t more):
        """Return the capacity after the used bytes, -1 if memory is exhausted."""
        if not buffer_reserve(&self.buffer, more):
            return -1
        return self.buffer.capacity - self.buffer.size

    def free(self):
        buffer_free(&self.buffer)


@cython.final
cdef class Numbers:
    """Growable array. Threads: one at a time."""
    cdef int64_t *items
    cdef int32_t count

    def __dealloc__(self):
        free(self.items)

    @property
    def content(self):
        return [self.items[i] for i in range(self.count)]

    def add(self, int64_t number):
        if not array_reserve(&self.items, self.count):
            raise MemoryError
        self.items[self.count] = number
        self.count += 1

    def drop(self, int32_t count):
        """Remove items from the end."""
        self.count = max(self.count - count, 0)
