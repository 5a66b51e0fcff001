"""What is known of each client address: connections, own limits, rate. A hash table that grows, keyed by text.

No lock of its own: ConnectionQuotas guards it. An entry lives while anything in it says something.
"""
from libc.stdint cimport int64_t, uint64_t
from kbroker.network._gauge cimport Gauge

cdef enum:
    ADDRESS_BYTES = 64

cdef struct AddressEntry:
    AddressEntry *next
    int64_t count               # connections there are
    int64_t max_count           # own limit of them, or -1
    int64_t max_rate            # own limit of new ones per second, or -1
    Gauge rate                  # made when first needed; sensor NULL: none
    char address[ADDRESS_BYTES]

cdef struct AddressTable:
    AddressEntry **buckets      # owned, with all entries
    int64_t bucket_count        # a power of two
    int64_t entry_count
    uint64_t seed               # secret: clients choose their addresses

cdef bint addresses_init(AddressTable *table, uint64_t seed) noexcept nogil     # zeroed memory; false: memory is out
cdef void addresses_destroy(AddressTable *table) noexcept nogil
cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil
# Finds or makes; NULL: memory is out.
cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil
cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil  # may free the entry
