"""Retention: which of the oldest segments start offset, size and age let go, and when their files are removed."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

# Takes the append lock itself; the number of segments deleted, or -errno. Their files are renamed to .deleted.
cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil
# Removes the files whose file.delete.delay.ms has passed (all_of_them: every one). The number of segments removed.
cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil
