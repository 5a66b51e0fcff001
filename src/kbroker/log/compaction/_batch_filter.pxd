"""Selection of the records of a batch that compaction keeps, and of the data of aborted transactions.

Source: MemoryRecords.filterTo, Cleaner.cleanInto, CleanedTransactionMetadata.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.log.compaction._cleaned_segment cimport CleanedSegment
from kbroker.log.compaction._offset_map cimport OffsetMap
from kbroker.log.producers._producer_state cimport AbortedTxn, ProducerFacts
from kbroker.log.segment._segment cimport SegmentList
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    CLEAN_CORRUPT = -20003      # the bytes are not a sound batch: nothing in the log is changed

cdef struct OpenAborted:
    AbortedTxn txn
    bint has_data               # a batch of the transaction was found

cdef struct TxnTracker:         # used by one thread; zeroed, then filled by tracker_load
    AbortedTxn *known           # owned: sorted by first offset
    int32_t known_count
    int32_t next_known
    OpenAborted *aborted        # owned: transactions that have begun
    int32_t aborted_count
    int64_t *committed          # owned: producers whose open transaction has a batch
    int32_t committed_count

cdef struct BatchFilter:        # for one round; used by one thread
    const OffsetMap *latest
    int64_t end_offset          # of the round: the map covers the offsets below it
    int64_t now_ms
    int64_t delete_retention_ms
    TxnTracker transactions
    ProducerFacts *producers    # owned: sorted by id
    int64_t producer_count
    Buffer unpacked_flags       # one byte per record: 1 if kept
    Buffer batch                # the batch being rebuilt: memory for its header, then the records
    int64_t records_read
    int64_t records_kept

cdef void filter_free(BatchFilter *filter) noexcept nogil
# takes ownership of rows
cdef void filter_set_producers(BatchFilter *filter, ProducerFacts *rows, int64_t count) noexcept nogil
# Write to cleaned the rest of the batch, if any. 0, CLEAN_CORRUPT or -errno
cdef int32_t filter_batch(BatchFilter *filter, const char *data, const BatchHeader *header,
                          CleanedSegment *cleaned) noexcept nogil
# Return the records of a batch: in its own bytes, or *owned (malloc'ed). 0, CLEAN_CORRUPT or -errno
cdef int32_t unpack_records(const char *data, const BatchHeader *header, char **owned, const char **records,
                            int64_t *size_bytes) noexcept nogil
cdef int32_t control_type_of(const char *data, const BatchHeader *header) noexcept nogil      # -1: none

# Load all aborted transactions that overlap [start, end). 0 or -errno
cdef int32_t tracker_load(TxnTracker *tracker, SegmentList *view, int64_t start, int64_t end) noexcept nogil
cdef void tracker_free(TxnTracker *tracker) noexcept nogil
# 1: the batch's transaction was aborted; 0: it was not; -ENOMEM
cdef int32_t tracker_read_data(TxnTracker *tracker, const BatchHeader *header) noexcept nogil
# 1: no data of the marker's transaction remains, so it may be removed; 0; -ENOMEM. control_type -1: an emptied control
# batch. An aborted transaction whose marker stays is added to the new segment's transaction index (cleaned may be
# NULL).
cdef int32_t tracker_read_marker(TxnTracker *tracker, const BatchHeader *header, int32_t control_type,
                                 CleanedSegment *cleaned) noexcept nogil
