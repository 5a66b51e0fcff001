# cython: freethreading_compatible=True
"""The hash table of client addresses; see the contract in the .pxd."""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp, strlen, strncpy

from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded
from kbroker.network.connections._gauge cimport gauge_clear


cdef void free_entry(AddressEntry *entry) noexcept nogil:
    gauge_clear(&entry.rate)
    free(entry)


cdef void addresses_destroy(AddressTable *table) noexcept nogil:
    cdef HashNode *node = hash_after(&table.entries, NULL)
    cdef HashNode *following
    while node is not NULL:
        following = hash_after(&table.entries, node)
        free_entry(<AddressEntry *>node)
        node = following
    hash_clear(&table.entries)


cdef inline uint64_t hash_of(const AddressTable *table, const char *address) noexcept nogil:
    return hash_seeded(address, <int64_t>strlen(address), table.seed)


cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil:
    cdef HashNode *node = hash_first(&table.entries, hash_of(table, address))
    while node is not NULL and strcmp((<AddressEntry *>node).address, address) != 0:
        node = hash_next(node)
    return <AddressEntry *>node


cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil:
    cdef AddressEntry *entry = addresses_find(table, address)
    if entry is not NULL:
        return entry
    if not hash_reserve(&table.entries):
        return NULL
    entry = <AddressEntry *>calloc(1, sizeof(AddressEntry))
    if entry is NULL:
        return NULL
    strncpy(entry.address, address, ADDRESS_BYTES - 1)
    entry.max_count = -1
    entry.max_rate = -1
    hash_add(&table.entries, &entry.node, hash_of(table, entry.address))
    return entry


cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil:
    if entry.count != 0 or entry.max_count >= 0 or entry.max_rate >= 0 or entry.rate.sensor is not NULL:
        return
    hash_remove(&table.entries, &entry.node)
    free_entry(entry)
