"""Offset map of the cleaner: the offset of the last record of each key in a log's dirty part. One thread at a time."""
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef struct OffsetSlot:         # 24 bytes, like Kafka's SkimpyOffsetMap
    uint64_t first_half         # of the key's hash
    uint64_t second_half
    int64_t next_offset         # offset + 1; 0: the slot is free

cdef struct OffsetMap:
    OffsetSlot *slots           # owned
    int64_t most_slots          # limit from the given memory
    int64_t capacity            # current number of slots: as many as the round needs
    int64_t limit               # maximum number of keys: capacity times the load factor
    int64_t entries
    double load_factor
    uint64_t secret[2]          # of the hash, so that clients cannot choose keys that collide

# Keys are distinguished by 128 bits of SipHash-2-4 alone, as Kafka does with MD5.
cdef void key_hash(const char *key, int64_t size_bytes, const uint64_t *secret, uint64_t *out) noexcept nogil
cdef void offset_map_init(OffsetMap *map, int64_t memory_bytes, double load_factor, uint64_t secret0,
                          uint64_t secret1) noexcept nogil
cdef void offset_map_destroy(OffsetMap *map) noexcept nogil
# Empty the map and size it for that many keys, as far as the memory allows. False: out of memory
cdef bint offset_map_reset(OffsetMap *map, int64_t keys) noexcept nogil
# False: the map is full and does not contain the key
cdef bint offset_map_put(OffsetMap *map, const char *key, int32_t size_bytes, int64_t offset) noexcept nogil
# -1: not in the map
cdef int64_t offset_map_get(const OffsetMap *map, const char *key, int32_t size_bytes) noexcept nogil
