"""A segment being written by the cleaner, and how it takes the place of the ones it was made from.

On disk, in this order; a stop between any two of them is finished or undone by the next opening (``_recovery``):
``.cleaned`` files are written and synced; the indexes, then the log, become ``.swap``, and the folder is synced: from
here on the new segment counts; the old files become ``.deleted``, oldest first; the new ones get their names, the log
last; the ``.deleted`` ones are removed.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker.log._partition cimport Partition
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._segment cimport Directory, LogSegment

cdef enum:
    REPLACE_STALE = -20001      # the segments are the partition's no more (retention, deletion, cut): nothing was done
    REPLACE_STOPPED = -20002    # a test's crash point

cdef struct Bytes:              # grows at its end
    char *data                  # owned
    int64_t size_bytes
    int64_t capacity

cdef struct CrashPoint:         # tests: everything ends, as by kill -9, before the step that makes left zero
    int64_t left                # 0: off

cdef struct CleanedSegment:
    Directory *directory        # borrowed; NULL: in memory
    int64_t base_offset
    int64_t index_bytes         # segment.index.bytes
    int64_t index_interval
    int fd                      # -1: none
    int64_t size_bytes          # written and pending
    Bytes pending               # batches not yet written
    Bytes offsets               # entries, as in the file
    Bytes times
    Bytes aborted
    int64_t bytes_since_index
    int64_t max_timestamp_ms
    int64_t offset_of_max
    int64_t last_time_entry_ms

cdef bint bytes_reserve(Bytes *bytes, int64_t more) noexcept nogil
cdef void bytes_free(Bytes *bytes) noexcept nogil
cdef bint crash_point(CrashPoint *crash) noexcept nogil

cdef int32_t cleaned_open(CleanedSegment *cleaned, Partition *partition, int64_t base_offset) noexcept nogil
cdef void cleaned_close(CleanedSegment *cleaned) noexcept nogil            # frees; files stay
cdef void cleaned_discard(CleanedSegment *cleaned) noexcept nogil          # and removes its files
# A whole batch, checksum made. 0 or -errno
cdef int32_t cleaned_append(CleanedSegment *cleaned, const char *batch, int64_t size_bytes) noexcept nogil
cdef int32_t cleaned_add_aborted(CleanedSegment *cleaned, const AbortedTxn *entry) noexcept nogil
# Writes and syncs everything, with the modification time of the newest of the old. 0, -errno or REPLACE_STOPPED
cdef int32_t cleaned_finish(CleanedSegment *cleaned, LogSegment *newest, CrashPoint *crash) noexcept nogil
# Takes the place of old[0..count): all sealed, neighbours. Takes the append lock; frees cleaned, whatever comes.
# 0, -errno, REPLACE_STALE or REPLACE_STOPPED
cdef int32_t replace_segments(Partition *partition, LogSegment **old, int32_t count, CleanedSegment *cleaned,
                              int64_t now_ms, CrashPoint *crash) noexcept nogil
