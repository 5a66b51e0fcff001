"""Cleaner's map of keys to offsets as a Python object, for tests."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from kbroker.log.compaction._batch_filter cimport (
    OffsetMap, OffsetSlot, key_hash, offset_map_destroy, offset_map_get, offset_map_init, offset_map_put,
    offset_map_reset,
)


@cython.final
cdef class KeyOffsets:
    """Cleaner's map of keys; see key_offsets.pyi."""
    cdef OffsetMap map

    def __cinit__(self, int64_t memory_bytes, double load_factor=0.9, int64_t keys=0, bytes secret=bytes(16)):
        if memory_bytes < <int64_t>sizeof(OffsetSlot) * 2:
            raise ValueError(f"memory_bytes must hold two slots of 24 bytes, got {memory_bytes}")
        if not 0 < load_factor <= 1:
            raise ValueError(f"load_factor must be above 0 and at most 1, got {load_factor}")
        if len(secret) != 16:
            raise ValueError("secret must be 16 bytes")
        offset_map_init(&self.map, memory_bytes, load_factor, int.from_bytes(secret[:8], "little"),
                        int.from_bytes(secret[8:], "little"))
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
