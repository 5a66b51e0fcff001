"""What changes a partition's set of segments (roll, retention, removal) and what moves its watermarks (flush)."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition
from kbroker.log.segment._segment cimport LogSegment, SegmentList

cdef enum:                      # of Partition.new_names
    NEW_FILE = 1
    NEW_FOLDER = 2

cdef struct PendingSnapshot:    # producer state encoded under the append lock, stored (and synced) after it
    char *data                  # owned
    int64_t size_bytes
    int64_t offset

cdef SegmentList *view_acquire(Partition *partition) noexcept nogil
# Under the append lock: publishes segments (takes the list's count), the last one is the active one.
cdef void view_publish(Partition *partition, SegmentList *segments) noexcept nogil
# Under the append lock. True: the high watermark moved.
cdef bint advance_watermarks(Partition *partition) noexcept nogil
# No lock held: tells who waits for the disk that more is to be flushed, or else who waits for the high watermark.
cdef void call_hook(Partition *partition, bint dirty) noexcept nogil
# Under the append lock: a new active segment at the log end. 0 or -errno; *snapshot is filled for store_snapshot.
cdef int32_t roll_segment(Partition *partition, int64_t new_base, int64_t now_ms,
                          PendingSnapshot *snapshot) noexcept nogil
cdef void take_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil
cdef void store_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil      # no lock held
cdef bint should_roll(Partition *partition, int64_t size_bytes, int64_t max_timestamp_ms, int64_t last_offset,
                      int64_t now_ms) noexcept nogil
cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil
cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil
# Takes the append lock itself; the number of segments deleted, or -errno.
cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil
cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil
cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil
