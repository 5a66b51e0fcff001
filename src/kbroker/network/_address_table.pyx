# cython: freethreading_compatible=True
"""The hash table of client addresses; see the contract in the .pxd."""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp, strncpy

from kbroker.network._gauge cimport gauge_clear

cdef enum:
    FIRST_BUCKETS = 256


cdef bint addresses_init(AddressTable *table, uint64_t seed) noexcept nogil:
    table.buckets = <AddressEntry **>calloc(FIRST_BUCKETS, sizeof(AddressEntry *))
    table.bucket_count = FIRST_BUCKETS
    table.seed = seed
    return table.buckets is not NULL


cdef void free_entry(AddressEntry *entry) noexcept nogil:
    gauge_clear(&entry.rate)
    free(entry)


cdef void addresses_destroy(AddressTable *table) noexcept nogil:
    cdef AddressEntry *entry
    cdef int64_t slot
    if table.buckets is NULL:
        return
    for slot in range(table.bucket_count):
        while table.buckets[slot] is not NULL:
            entry = table.buckets[slot]
            table.buckets[slot] = entry.next
            free_entry(entry)
    free(table.buckets)
    table.buckets = NULL


cdef inline int64_t bucket_of(const AddressTable *table, const char *address) noexcept nogil:
    cdef uint64_t hashed = table.seed
    while address[0] != 0:
        hashed = (hashed ^ <unsigned char>address[0]) * <uint64_t>0x9E3779B97F4A7C15u
        hashed ^= hashed >> 29
        address += 1
    hashed ^= hashed >> 32
    return <int64_t>(hashed & <uint64_t>(table.bucket_count - 1))


cdef AddressEntry *addresses_find(AddressTable *table, const char *address) noexcept nogil:
    cdef AddressEntry *entry = table.buckets[bucket_of(table, address)]
    while entry is not NULL and strcmp(entry.address, address) != 0:
        entry = entry.next
    return entry


cdef void grow(AddressTable *table) noexcept nogil:
    """Twice the buckets; without memory the chains grow instead."""
    cdef AddressEntry **old = table.buckets
    cdef AddressEntry *entry
    cdef int64_t old_count = table.bucket_count
    cdef int64_t slot, to
    cdef AddressEntry **larger = <AddressEntry **>calloc(<size_t>old_count * 2, sizeof(AddressEntry *))
    if larger is NULL:
        return
    table.buckets = larger
    table.bucket_count = old_count * 2
    for slot in range(old_count):
        while old[slot] is not NULL:
            entry = old[slot]
            old[slot] = entry.next
            to = bucket_of(table, entry.address)
            entry.next = larger[to]
            larger[to] = entry
    free(old)


cdef AddressEntry *addresses_take(AddressTable *table, const char *address) noexcept nogil:
    cdef AddressEntry *entry = addresses_find(table, address)
    cdef int64_t slot
    if entry is not NULL:
        return entry
    entry = <AddressEntry *>calloc(1, sizeof(AddressEntry))
    if entry is NULL:
        return NULL
    if table.entry_count >= table.bucket_count:
        grow(table)
    strncpy(entry.address, address, ADDRESS_BYTES - 1)
    entry.max_count = -1
    entry.max_rate = -1
    slot = bucket_of(table, entry.address)
    entry.next = table.buckets[slot]
    table.buckets[slot] = entry
    table.entry_count += 1
    return entry


cdef void addresses_drop_if_empty(AddressTable *table, AddressEntry *entry) noexcept nogil:
    cdef AddressEntry **link
    if entry.count != 0 or entry.max_count >= 0 or entry.max_rate >= 0 or entry.rate.sensor is not NULL:
        return
    link = &table.buckets[bucket_of(table, entry.address)]
    while link[0] is not entry:
        link = &link[0].next
    link[0] = entry.next
    table.entry_count -= 1
    free_entry(entry)
