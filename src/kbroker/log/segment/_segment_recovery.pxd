"""Reading of a segment's file after a clean or an unclean stop, and the files of a partition's folder by name."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.open_file cimport OpenFile
from kbroker.log._partition cimport Partition
from kbroker.log.segment._segment cimport LogSegment

cdef enum:
    SCAN_CRC = 1                # compare checksums
    SCAN_INDEX = 2              # add every batch to the indexes and the largest timestamp
    SCAN_STAMPS = 4             # update only the largest timestamp
    SCAN_PRODUCERS = 8          # replay into the producer state
    SCAN_ABORTED = 16           # with SCAN_PRODUCERS: enter aborted transactions into the transaction index
    SCAN_EPOCHS = 32

cdef struct Scan:
    int32_t rc                  # 0 all bytes are batches; 1 no batch at valid_bytes; -errno
    int64_t valid_bytes
    int64_t next_offset
    const char *reason          # why there is no batch (rc 1)
    int64_t gap_position        # position of the last batch, when offsets are missing before it; else -1
    int64_t gap_offset          # the first missing offset

# Read batch by batch; flags: a sum of SCAN_ values. The first batch must have at least from_offset.
cdef void scan_segment(Partition *partition, LogSegment *segment, OpenFile *file, int64_t from_position,
                       int64_t from_offset, int64_t file_bytes, int32_t flags, Scan *out) noexcept nogil
# Check a segment; next_base: base of the next segment, -1: it is the last one; check_all: compare every checksum
# instead of reading only the end.
cdef void load_segment(Partition *partition, LogSegment *segment, int64_t next_base, bint check_all,
                       Scan *out) noexcept nogil

cdef int remove_segment(str directory, int64_t base) except -1          # removes its log and indexes
cdef int remove_snapshot(str directory, int64_t offset) except -1
