"""High watermark and last stable offset: how appends and flushes move them."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

# Under the append lock. True: the high watermark moved.
cdef bint advance_watermarks(Partition *partition) noexcept nogil
# As partition_flush, but calls no hook, and returns 1 where the high watermark moved.
cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil
# The offset wanted on disk; at or below the flushed offset: no flush is due.
cdef int64_t partition_flush_target(Partition *partition) noexcept nogil
# Syncs the records below up_to (negative: all), outside every lock; concurrent callers share one sync. 0 or -errno,
# after which the partition takes no append until it is opened again.
cdef int32_t partition_flush(Partition *partition, int64_t up_to) noexcept nogil
# Waits for the flush under way and lets none begin until release_flushes. No lock held; before the append lock.
cdef void hold_flushes(Partition *partition) noexcept nogil
cdef void release_flushes(Partition *partition) noexcept nogil
