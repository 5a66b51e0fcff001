"""Offsets by time stamp (spec: log-storage 5.6)."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

cdef enum:
    MAX_TIMESTAMP = -3          # the record with the largest time stamp

cdef struct Found:
    int64_t offset              # -1: none
    int64_t timestamp_ms
    int32_t leader_epoch

# 0 or -errno / 56-worthy damage (-EIO). May take the GIL (compressed batches): holds no lock meanwhile.
cdef int32_t find_timestamp(Partition *partition, int64_t target_ms, int64_t upper_offset, Found *out) noexcept nogil
