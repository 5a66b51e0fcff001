"""What is known of each client address: connections, own limits, rate. A hash table that grows, keyed by text.

No lock of its own: ConnectionQuotas guards it. An entry lives while anything in it says something.
"""
from libc.stdint cimport int64_t, uint64_t
from kbroker._core.containers.hash_table cimport HashNode, HashTable, hash_after
from kbroker.network.connections._gauge cimport Gauge

cdef enum:
    ADDRESS_BYTES = 64

cdef struct AddressEntry:
    HashNode node               # first
    int64_t count               # connections there are
    int64_t max_count           # own limit of them, or -1
    int64_t max_rate            # own limit of new ones per second, or -1
    Gauge rate                  # made when first needed; sensor NULL: none
    char address[ADDRESS_BYTES]

cdef struct AddressTable:           # zeroed, but for the seed: empty
    HashTable entries           # owned
    uint64_t seed               # secret: clients choose their addresses

cdef void addresses_destroy(AddressTable *table) noexcept nogil
cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil
# Finds or makes; NULL: memory is out.
cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil
cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil  # may free the entry

cdef inline AddressEntry *addresses_after(const AddressTable *table, AddressEntry *entry) noexcept nogil:
    """All entries, one after the other: the first one for NULL, NULL after the last."""
    return <AddressEntry *>hash_after(&table.entries, <HashNode *>entry)
