"""Roll: replacement of a full active segment by the next one. Retention: deletion of the oldest segments by start
offset, size and age; their files are removed later.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition

cdef struct PendingSnapshot:    # producer state encoded under the append lock, stored (and synced) after it is unlocked
    char *data                  # owned
    int64_t size_bytes
    int64_t offset

# Return whether a batch with these bounds needs a new segment; under the append lock.
cdef bint should_roll(Partition *partition, int64_t size_bytes, int64_t max_timestamp_ms, int64_t last_offset,
                      int64_t now_ms) noexcept nogil
# Add a new active segment at new_base, the log end; under the append lock. 0 or -errno; fills *snapshot.
cdef int32_t roll_segment(Partition *partition, int64_t new_base, int64_t now_ms,
                          PendingSnapshot *snapshot) noexcept nogil
cdef void take_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil       # under the append lock
cdef void store_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil      # no lock held

# Delete segments and rename their files to .deleted; takes the append lock. Returns their number, or -errno.
cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil
# Remove the files of segments deleted file.delete.delay.ms ago (all_of_them: ever). Returns the number of segments.
cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil
