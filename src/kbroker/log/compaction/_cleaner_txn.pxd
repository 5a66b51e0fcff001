"""Which data of a log being read from its start belongs to aborted transactions: Kafka's CleanedTransactionMetadata."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log.compaction._cleaned_segment cimport CleanedSegment
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._segment cimport SegmentList
from kbroker.protocol._records cimport BatchHeader

cdef struct OpenAborted:
    AbortedTxn txn
    bint has_data               # a batch of it was met

cdef struct TxnTracker:         # one thread's; zeroed, then tracker_load
    AbortedTxn *known           # owned: by first offset
    int32_t known_count
    int32_t next_known
    OpenAborted *aborted        # owned: those that have begun
    int32_t aborted_count
    int32_t aborted_capacity
    int64_t *committed          # owned: producers of whose open transaction a batch was met
    int32_t committed_count
    int32_t committed_capacity

# All aborted transactions that touch [start, end). 0, -ENOMEM or -EIO
cdef int32_t tracker_load(TxnTracker *tracker, SegmentList *view, int64_t start, int64_t end) noexcept nogil
cdef void tracker_free(TxnTracker *tracker) noexcept nogil
# 1: the batch's transaction was aborted; 0; -ENOMEM
cdef int32_t tracker_read_data(TxnTracker *tracker, const BatchHeader *header) noexcept nogil
# 1: no data of the marker's transaction is left: it may go; 0; -ENOMEM. control_type -1: an emptied control batch.
# An abort that must stay is entered into the new segment's transaction index (cleaned may be NULL).
cdef int32_t tracker_read_marker(TxnTracker *tracker, const BatchHeader *header, int32_t control_type,
                                 CleanedSegment *cleaned) noexcept nogil
