"""Open-addressed map from a key's hash to an offset: Kafka's SkimpyOffsetMap, with a keyed hash in place of MD5."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    LEAST_SLOTS = 64


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_rounds(uint64_t *v, int count) noexcept nogil:
    cdef int _round
    for _round in range(count):
        v[0] += v[1]
        v[2] += v[3]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = rotated(v[0], 32)
        v[2] += v[1]
        v[0] += v[3]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = rotated(v[2], 32)


cdef inline uint64_t load_le(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int64_t slot
    for slot in range(size):
        value |= <uint64_t>at[slot] << (8 * slot)
    return value


cdef void key_hash(const char *key, int64_t size_bytes, const uint64_t *secret, uint64_t *out) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef const uint8_t *data = <const uint8_t *>key
    cdef int64_t at = 0
    v[0] = secret[0] ^ <uint64_t>0x736f6d6570736575ULL
    v[1] = secret[1] ^ <uint64_t>0x646f72616e646f6dULL ^ <uint64_t>0xee
    v[2] = secret[0] ^ <uint64_t>0x6c7967656e657261ULL
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573ULL
    while at + 8 <= size_bytes:
        word = load_le(data + at, 8)
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
        at += 8
    word = (<uint64_t>size_bytes << 56) | load_le(data + at, size_bytes - at)
    v[3] ^= word
    sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xee
    sip_rounds(v, 4)
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    sip_rounds(v, 4)
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef void offset_map_init(OffsetMap *map, int64_t memory_bytes, double load_factor, uint64_t secret0,
                          uint64_t secret1) noexcept nogil:
    map.slots = NULL
    map.most_slots = memory_bytes // <int64_t>sizeof(OffsetSlot)
    map.capacity = 0
    map.limit = 0
    map.entries = 0
    map.load_factor = load_factor
    map.secret[0] = secret0
    map.secret[1] = secret1


cdef void offset_map_destroy(OffsetMap *map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.capacity = 0
    map.limit = 0
    map.entries = 0


cdef bint offset_map_reset(OffsetMap *map, int64_t keys) noexcept nogil:
    cdef int64_t wanted = LEAST_SLOTS
    offset_map_destroy(map)
    if <double>keys / map.load_factor > <double>(map.most_slots - LEAST_SLOTS):
        wanted = map.most_slots
    elif keys > 0:
        wanted += <int64_t>(<double>keys / map.load_factor)
    if wanted > map.most_slots:
        wanted = map.most_slots
    map.slots = <OffsetSlot *>calloc(wanted, sizeof(OffsetSlot))
    if map.slots is NULL:
        return False
    map.capacity = wanted
    map.limit = <int64_t>(<double>wanted * map.load_factor)
    if map.limit >= wanted:
        map.limit = wanted - 1                  # one slot stays free, where a search ends
    return True


cdef inline OffsetSlot *find_slot(const OffsetMap *map, const uint64_t *hashed) noexcept nogil:
    """Return the slot of the key, or the free one where it belongs."""
    cdef int64_t at = <int64_t>(hashed[0] % <uint64_t>map.capacity)
    cdef OffsetSlot *slot
    while True:
        slot = &map.slots[at]
        if slot.next_offset == 0 or (slot.first_half == hashed[0] and slot.second_half == hashed[1]):
            return slot
        at += 1
        if at == map.capacity:
            at = 0


cdef bint offset_map_put(OffsetMap *map, const char *key, int32_t size_bytes, int64_t offset) noexcept nogil:
    cdef uint64_t hashed[2]
    cdef OffsetSlot *slot
    key_hash(key, size_bytes, map.secret, hashed)
    slot = find_slot(map, hashed)
    if slot.next_offset == 0:
        if map.entries >= map.limit:
            return False
        map.entries += 1
        slot.first_half = hashed[0]
        slot.second_half = hashed[1]
    slot.next_offset = offset + 1
    return True


cdef int64_t offset_map_get(const OffsetMap *map, const char *key, int32_t size_bytes) noexcept nogil:
    cdef uint64_t hashed[2]
    if map.entries == 0:
        return -1
    key_hash(key, size_bytes, map.secret, hashed)
    return find_slot(map, hashed).next_offset - 1


@cython.final
cdef class KeyOffsets:
    """Offset map for tests. See _offset_map.pyi."""
    cdef OffsetMap map

    def __cinit__(self, int64_t memory_bytes, double load_factor=0.9, int64_t keys=0, bytes secret=bytes(16)):
        if memory_bytes < <int64_t>sizeof(OffsetSlot) * 2:
            raise ValueError(f"memory_bytes must hold two slots of 24 bytes, got {memory_bytes}")
        if not 0 < load_factor <= 1:
            raise ValueError(f"load_factor must be above 0 and at most 1, got {load_factor}")
        if len(secret) != 16:
            raise ValueError("secret must be 16 bytes")
        offset_map_init(&self.map, memory_bytes, load_factor, load_le(<const uint8_t *><const char *>secret, 8),
                        load_le(<const uint8_t *><const char *>secret + 8, 8))
        if not offset_map_reset(&self.map, keys):
            raise MemoryError

    def __dealloc__(self):
        offset_map_destroy(&self.map)

    def __len__(self):
        return self.map.entries

    @property
    def capacity(self):
        return self.map.capacity

    def put(self, bytes key not None, int64_t offset):
        return bool(offset_map_put(&self.map, <const char *>key, <int32_t>len(key), offset))

    def get(self, bytes key not None):
        return offset_map_get(&self.map, <const char *>key, <int32_t>len(key))

    def hash(self, bytes key not None):
        cdef uint64_t hashed[2]
        key_hash(<const char *>key, len(key), self.map.secret, hashed)
        return int(hashed[0]).to_bytes(8, "little") + int(hashed[1]).to_bytes(8, "little")
