"""Reading one segment's file after a clean or an unclean stop."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.requests.request cimport OpenFile
from kbroker.log._partition cimport Partition
from kbroker.log.segment._segment cimport LogSegment

cdef enum:
    SCAN_CRC = 1                # compare checksums
    SCAN_INDEX = 2              # note every batch in indexes and largest time stamp
    SCAN_STAMPS = 4             # largest time stamp only
    SCAN_PRODUCERS = 8          # replay into the producer state
    SCAN_ABORTED = 16           # and into the transaction index
    SCAN_EPOCHS = 32

cdef struct Scan:
    int32_t rc                  # 0 all bytes are batches; 1 no batch at valid_bytes; -errno
    int64_t valid_bytes
    int64_t next_offset
    const char *reason          # of rc 1
    int64_t gap_position        # of the last batch, when offsets are missing before it; else -1
    int64_t gap_offset          # the first that is missing

# Reads batch by batch; flags: a sum of SCAN_ values. The first batch must have from_offset at least.
cdef void scan_segment(Partition *partition, LogSegment *segment, OpenFile *file, int64_t from_position,
                       int64_t from_offset, int64_t file_bytes, int32_t flags, Scan *out) noexcept nogil
# Judges one segment; next_base: base of the segment behind it, -1: it is the last one; check_all: compare every
# checksum instead of reading the end alone.
cdef void load_segment(Partition *partition, LogSegment *segment, int64_t next_base, bint check_all,
                       Scan *out) noexcept nogil
