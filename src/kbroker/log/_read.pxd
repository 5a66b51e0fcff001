"""Reads of a partition's log, without the append lock. See _partition.pxd for the results."""
from libc.stdint cimport int8_t, int32_t, int64_t
from kbroker.log._partition cimport Partition, ReadProbe, ReadResult

cdef enum:
    MAX_TIMESTAMP = -3          # the record with the largest timestamp

cdef struct Found:
    int64_t offset              # -1: none
    int64_t timestamp_ms
    int32_t leader_epoch

# Read from the batch that contains offset, at most max_bytes; with min_one the first batch may exceed that. isolation
# 0: up to the high watermark, 1: up to the last stable offset.
cdef void partition_read(Partition *partition, int64_t offset, int64_t max_bytes, bint min_one, int8_t isolation,
                         ReadResult *out) noexcept nogil
cdef void partition_probe(Partition *partition, int64_t offset, int64_t max_bytes, int8_t isolation,
                          ReadProbe *out) noexcept nogil
# Find the first record at or after target_ms (MAX_TIMESTAMP: the one with the largest timestamp) below upper_offset. 0
# or -errno (-EIO: damage, for KAFKA_STORAGE_ERROR). May take the GIL (compressed batches), without holding a lock.
cdef int32_t find_timestamp(Partition *partition, int64_t target_ms, int64_t upper_offset, Found *out) noexcept nogil
