"""Selection of the records of a batch that compaction keeps: by the offset of the last record of each key in a log's
dirty part, and without the data of aborted transactions.

Source: MemoryRecords.filterTo, Cleaner.cleanInto, CleanedTransactionMetadata. One thread at a time.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.log.compaction._cleaned_segment cimport CleanedSegment
from kbroker.log.producers._producer_state cimport AbortedTxn, ProducerFacts
from kbroker.log.segment._segment cimport SegmentList
from kbroker.protocol._records cimport BatchHeader

cdef struct OffsetSlot:         # 24 bytes, like Kafka's SkimpyOffsetMap
    uint64_t first_half         # of the key's hash
    uint64_t second_half
    int64_t next_offset         # offset + 1; 0: the slot is free

cdef struct OffsetMap:
    OffsetSlot *slots           # owned
    int64_t most_slots          # limit of capacity, from the given memory
    int64_t capacity            # current number of slots: as many as the round needs
    int64_t limit               # maximum number of keys: capacity times the load factor
    int64_t entries
    double load_factor
    uint64_t secret[2]          # key of the hash, so that clients cannot choose keys that collide

# Hash a key: keys are distinguished by 128 bits of SipHash-2-4 alone, as Kafka does with MD5.
cdef void key_hash(const char *key, int64_t size_bytes, const uint64_t *secret, uint64_t *out) noexcept nogil
cdef void offset_map_init(OffsetMap *map, int64_t memory_bytes, double load_factor, uint64_t secret0,
                          uint64_t secret1) noexcept nogil
cdef void offset_map_destroy(OffsetMap *map) noexcept nogil
# Empty the map and size it for the given number of keys, as far as the memory allows. False: out of memory
cdef bint offset_map_reset(OffsetMap *map, int64_t keys) noexcept nogil
# Put a key; false: the map is full and does not contain it
cdef bint offset_map_put(OffsetMap *map, const char *key, int32_t size_bytes, int64_t offset) noexcept nogil
# Return the last offset of a key, -1 if the key is not in the map
cdef int64_t offset_map_get(const OffsetMap *map, const char *key, int32_t size_bytes) noexcept nogil

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
    int64_t end_offset          # end of the round: the map covers the offsets below it
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
# Set the active producers. Takes ownership of rows.
cdef void filter_set_producers(BatchFilter *filter, ProducerFacts *rows, int64_t count) noexcept nogil
# Append to cleaned what the rules leave of the batch, if anything. 0, CLEAN_CORRUPT or -errno
cdef int32_t filter_batch(BatchFilter *filter, const char *data, const BatchHeader *header,
                          CleanedSegment *cleaned) noexcept nogil
# Set *records to the records of a batch: in its own bytes, or in *owned (malloc'ed). 0, CLEAN_CORRUPT or -errno
cdef int32_t unpack_records(const char *data, const BatchHeader *header, char **owned, const char **records,
                            int64_t *size_bytes) noexcept nogil
cdef int32_t control_type_of(const char *data, const BatchHeader *header) noexcept nogil      # -1: none

# Load all aborted transactions that overlap [start, end). 0 or -errno
cdef int32_t tracker_load(TxnTracker *tracker, SegmentList *view, int64_t start, int64_t end) noexcept nogil
cdef void tracker_free(TxnTracker *tracker) noexcept nogil
# Track a data batch. 1: its transaction was aborted; 0: it was not; -ENOMEM
cdef int32_t tracker_read_data(TxnTracker *tracker, const BatchHeader *header) noexcept nogil
# Track a control batch. 1: no data of its transaction remains, so it may be removed; 0: some does; -ENOMEM.
# control_type -1: an emptied batch. An aborted transaction whose marker stays is added to cleaned's transaction index
# (cleaned may be NULL).
cdef int32_t tracker_read_marker(TxnTracker *tracker, const BatchHeader *header, int32_t control_type,
                                 CleanedSegment *cleaned) noexcept nogil
