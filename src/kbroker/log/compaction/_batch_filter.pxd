"""What stays of one batch when a log is compacted (MemoryRecords.filterTo, Cleaner.cleanInto)."""
from libc.stdint cimport int32_t, int64_t
from kbroker.log.compaction._cleaned_segment cimport Bytes, CleanedSegment
from kbroker.log.compaction._cleaner_txn cimport TxnTracker
from kbroker.log.compaction._offset_map cimport OffsetMap
from kbroker.log.producers._producer_state cimport ProducerFacts
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    CLEAN_CORRUPT = -20003      # a batch that cannot be what was written: nothing of the log is changed

cdef struct BatchFilter:        # of one round; one thread's
    const OffsetMap *latest
    int64_t end_offset          # of the round: the map knows what lies below it
    int64_t now_ms
    int64_t delete_retention_ms
    TxnTracker transactions
    ProducerFacts *producers    # owned: by id
    int64_t producer_count
    Bytes unpacked_flags        # one byte a record: kept
    Bytes records               # of the batch being rebuilt
    Bytes batch
    int64_t records_read
    int64_t records_kept

cdef void filter_free(BatchFilter *filter) noexcept nogil
cdef void filter_set_producers(BatchFilter *filter, ProducerFacts *rows, int64_t count) noexcept nogil    # takes rows
# Writes to cleaned what is left of the batch, if anything. 0, CLEAN_CORRUPT or -errno
cdef int32_t filter_batch(BatchFilter *filter, const char *data, const BatchHeader *header,
                          CleanedSegment *cleaned) noexcept nogil
# Records of a batch: its own bytes, or *owned (malloc'ed). 0, CLEAN_CORRUPT or -errno
cdef int32_t unpack_records(const char *data, const BatchHeader *header, char **owned, const char **records,
                            int64_t *size_bytes) noexcept nogil
cdef int32_t control_type_of(const char *data, const BatchHeader *header) noexcept nogil      # -1: none
