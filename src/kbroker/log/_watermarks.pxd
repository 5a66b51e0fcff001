"""High watermark and last stable offset, and their changes by appends and flushes."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

# Return True when the high watermark moved; under the append lock.
cdef bint advance_watermarks(Partition *partition) noexcept nogil
# Call partition_flush without a hook; return 1 if the high watermark moved.
cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil
# Offset up to which a flush is needed; none is when it is at or below the flushed offset.
cdef int64_t partition_flush_target(Partition *partition) noexcept nogil
# Sync the records below up_to (negative: all), outside every lock; concurrent callers share one sync. 0 or -errno,
# after which the partition refuses appends until it is opened again.
cdef int32_t partition_flush(Partition *partition, int64_t up_to) noexcept nogil
# Wait for the flush in progress and prevent others until release_flushes. No lock held; call before the append lock.
cdef void hold_flushes(Partition *partition) noexcept nogil
cdef void release_flushes(Partition *partition) noexcept nogil
