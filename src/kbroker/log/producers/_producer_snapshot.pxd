"""Files of a partition's producers, in Kafka's format.

Lock: the partition's append lock guards every call but ``producer_state_store_snapshot``, which only writes a file and
is called without it.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.log.producers._producer_table cimport ProducerState

cdef enum:
    SNAPSHOT_CORRUPT = -1

# Kafka's snapshot format, version 1: encode under the append lock, store (path.tmp, fsync, rename) without any lock.
# encode: malloc'ed bytes or NULL when memory is out; store: 0 or -errno.
cdef char *producer_state_encode_snapshot(ProducerState *state, int64_t *size_bytes) noexcept nogil
cdef int32_t producer_state_store_snapshot(const char *path, const char *data, int64_t size_bytes) noexcept nogil
# Both in one, for callers that hold no lock another thread may wait for. 0 or -errno.
cdef int32_t producer_state_write_snapshot(ProducerState *state, const char *path) noexcept nogil
# Replaces the state by the file's; expired producers are left out. 0, SNAPSHOT_CORRUPT (-1, state unchanged) or -errno
# (never -1: a lack of permission is always reported as EACCES).
cdef int32_t producer_state_load_snapshot(ProducerState *state, const char *path, int64_t now_ms,
                                          int64_t expiration_ms) noexcept nogil
