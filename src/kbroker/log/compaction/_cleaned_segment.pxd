"""A segment written by the cleaner, and the replacement of the segments that it was made from.

Steps on disk; after a stop between any two of them the next opening finishes or undoes the replacement (``_recovery``):

1. ``.cleaned`` files are written and synced.
2. The indexes, then the log, become ``.swap``, and the folder is synced: from here on the new segment applies.
3. The old files become ``.deleted``, oldest first.
4. The new ones get their final names, the log last.
5. The ``.deleted`` files are removed.

"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.log._partition cimport Partition
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._segment cimport Directory, LogSegment

cdef enum:
    REPLACE_STALE = -20001      # the partition no longer has the segments (retention, deletion, cut): nothing was done
    REPLACE_STOPPED = -20002    # stopped at a test's crash point

cdef struct CrashPoint:         # for tests: all work stops, as by kill -9, before the step that makes left zero
    int64_t left                # 0: disabled

cdef struct CleanedSegment:
    Directory *directory        # borrowed; NULL: in memory
    int64_t base_offset
    int64_t index_bytes         # segment.index.bytes
    int64_t index_interval
    int fd                      # -1: not open
    int64_t size_bytes          # written and pending
    Buffer pending               # batches not yet written
    Buffer offsets               # entries in the format of the file
    Buffer times
    Buffer aborted
    int64_t bytes_since_index
    int64_t max_timestamp_ms
    int64_t offset_of_max
    int64_t last_time_entry_ms


cdef int32_t cleaned_open(CleanedSegment *cleaned, Partition *partition, int64_t base_offset) noexcept nogil
cdef void cleaned_close(CleanedSegment *cleaned) noexcept nogil            # free the memory, keep the files
cdef void cleaned_discard(CleanedSegment *cleaned) noexcept nogil          # free the memory and remove the files
# Add a whole batch with its checksum. 0 or -errno
cdef int32_t cleaned_append(CleanedSegment *cleaned, const char *batch, int64_t size_bytes) noexcept nogil
cdef int32_t cleaned_add_aborted(CleanedSegment *cleaned, const AbortedTxn *entry) noexcept nogil
# Write and sync all data, with the modification time of the newest old segment. 0, -errno or REPLACE_STOPPED
cdef int32_t cleaned_finish(CleanedSegment *cleaned, LogSegment *newest, CrashPoint *crash) noexcept nogil
# Replace old[0..count), which are sealed and adjacent. Takes the append lock; frees cleaned in every case. 0, -errno,
# REPLACE_STALE or REPLACE_STOPPED
cdef int32_t replace_segments(Partition *partition, LogSegment **old, int32_t count, CleanedSegment *cleaned,
                              int64_t now_ms, CrashPoint *crash) noexcept nogil
