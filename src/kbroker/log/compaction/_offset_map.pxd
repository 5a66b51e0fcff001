"""The cleaner's memory: for each key of a log's dirty part, the offset it was last seen at. One thread at a time."""
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef struct OffsetSlot:         # 24 bytes, as Kafka's SkimpyOffsetMap
    uint64_t first_half         # of the key's hash
    uint64_t second_half
    int64_t next_offset         # offset + 1; 0: free

cdef struct OffsetMap:
    OffsetSlot *slots           # owned
    int64_t most_slots          # the memory given
    int64_t capacity            # slots there are now: as many as the work at hand needs
    int64_t limit               # keys it takes: capacity times the load factor
    int64_t entries
    double load_factor
    uint64_t secret[2]          # of the hash: who writes keys cannot choose ones that collide

# Keys are distinguished by 128 bits of SipHash-2-4 alone, as Kafka does with MD5.
cdef void key_hash(const char *key, int64_t size_bytes, const uint64_t *secret, uint64_t *out) noexcept nogil
cdef void offset_map_init(OffsetMap *map, int64_t memory_bytes, double load_factor, uint64_t secret0,
                          uint64_t secret1) noexcept nogil
cdef void offset_map_destroy(OffsetMap *map) noexcept nogil
# Empties the map and takes that many keys, as far as the memory allows. False: out of memory
cdef bint offset_map_reset(OffsetMap *map, int64_t keys) noexcept nogil
# False: full, and the key is not in it
cdef bint offset_map_put(OffsetMap *map, const char *key, int32_t size_bytes, int64_t offset) noexcept nogil
cdef int64_t offset_map_get(const OffsetMap *map, const char *key, int32_t size_bytes) noexcept nogil    # -1: not there
