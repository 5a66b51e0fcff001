"""Retention: deletes the oldest segments by start offset, size and age, and removes their files later."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

# Delete segments and rename their files to .deleted; takes the append lock. Returns their number, or -errno.
cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil
# Remove the files whose file.delete.delay.ms has passed (all_of_them: every one). Returns the number of segments.
cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil
