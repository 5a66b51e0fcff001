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

# Reads batch by batch, what: a sum of SCAN_ flags. The first batch must have from_offset at least.
cdef void scan_segment(Partition *partition, LogSegment *segment, OpenFile *file, int64_t from_position,
                       int64_t from_offset, int64_t file_bytes, int32_t what, Scan *out) noexcept nogil
# Judges one segment, whose next one begins at next_base (-1: none); check_all: every checksum, not the end alone.
cdef void load_segment(Partition *partition, LogSegment *segment, int64_t next_base, bint is_last, bint check_all,
                       Scan *out) noexcept nogil
