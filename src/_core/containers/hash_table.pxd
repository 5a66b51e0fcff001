"""Intrusive hash table, header only: its entries carry the nodes, which are chained in a power of two of buckets.

The caller hashes, compares and frees the items; the table never reads them. It grows fourfold when it has as many nodes
as buckets, and never shrinks. It has no lock: its owner guards it.

    node = hash_first(&table, h)
    while node != NULL and not is_the_one(<Thing *>node):
        node = hash_next(node)
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    FIRST_BUCKETS = 16

cdef struct HashNode:           # the first member of an item
    HashNode *next
    uint64_t hash

cdef struct HashTable:          # zeroed: empty
    HashNode **buckets          # owned
    int64_t mask
    int64_t count


cdef inline HashNode *hash_equal(HashNode *node, uint64_t h) noexcept nogil:
    """Return the node, or the next one of its chain, with the hash; NULL: none."""
    while node != NULL and node.hash != h:
        node = node.next
    return node


cdef inline HashNode *hash_first(const HashTable *table, uint64_t h) noexcept nogil:
    """Return a node with this hash; NULL: none."""
    if table.count == 0:
        return NULL
    return hash_equal(table.buckets[h & <uint64_t>table.mask], h)


cdef inline HashNode *hash_next(HashNode *node) noexcept nogil:
    """Return another node with the hash of this one; NULL: none."""
    return hash_equal(node.next, node.hash)


cdef inline bint hash_reserve(HashTable *table) noexcept nogil:
    """Reserve capacity for one more node; false: no memory and no buckets (with buckets, the chains grow instead)."""
    cdef int64_t size = FIRST_BUCKETS, i
    cdef HashNode **buckets
    cdef HashNode *node
    if table.buckets != NULL and table.count <= table.mask:
        return True
    if table.buckets != NULL:
        size = 4 * (table.mask + 1)
    buckets = <HashNode **>calloc(<size_t>size, sizeof(HashNode *))
    if buckets == NULL:
        return table.buckets != NULL
    if table.buckets != NULL:
        for i in range(table.mask + 1):
            while table.buckets[i] != NULL:
                node = table.buckets[i]
                table.buckets[i] = node.next
                node.next = buckets[node.hash & <uint64_t>(size - 1)]
                buckets[node.hash & <uint64_t>(size - 1)] = node
    free(table.buckets)
    table.buckets = buckets
    table.mask = size - 1
    return True


cdef inline void hash_add(HashTable *table, HashNode *node, uint64_t h) noexcept nogil:
    """Add a node after a hash_reserve. The table may contain equal entries: the latest is found first."""
    cdef HashNode **bucket = &table.buckets[h & <uint64_t>table.mask]
    node.hash = h
    node.next = bucket[0]
    bucket[0] = node
    table.count += 1


cdef inline void hash_remove(HashTable *table, HashNode *node) noexcept nogil:
    """Remove a node of the table."""
    cdef HashNode **link = &table.buckets[node.hash & <uint64_t>table.mask]
    while link[0] != node:
        link = &link[0].next
    link[0] = node.next
    node.next = NULL
    table.count -= 1


cdef inline HashNode *hash_after(const HashTable *table, HashNode *node) noexcept nogil:
    """Return the node after this one: the first one for NULL, NULL after the last. Call it before removing a node."""
    cdef int64_t i = 0
    if node != NULL:
        if node.next != NULL:
            return node.next
        i = <int64_t>(node.hash & <uint64_t>table.mask) + 1
    if table.count == 0:
        return NULL
    while i <= table.mask:
        if table.buckets[i] != NULL:
            return table.buckets[i]
        i += 1
    return NULL


cdef inline void hash_clear(HashTable *table) noexcept nogil:
    """Free the buckets; the nodes belong to their owner."""
    free(table.buckets)
    table.buckets = NULL
    table.count = table.mask = 0
