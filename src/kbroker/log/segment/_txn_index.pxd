"""Transaction index of a segment, in Kafka's format.

``lock`` (of the segment, for this index alone) guards the entries. It may span the first read of the file, but no write
of an append.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t
from kbroker._core.sync cimport Mutex
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._txn_entries cimport TxnCursor, TxnEntries

cdef enum:
    TXN_ENTRY_BYTES = 34        # int16 version 0, int64 producer id, first, last, last stable offset
    TXN_INDEX_DAMAGED = -10005  # the file differs from the one that was checked at opening

cdef struct TxnSum:             # identifies the content of an index file
    int64_t count               # entries
    uint32_t crc                # CRC-32C of the whole file

cdef struct TxnIndex:
    const char *directory       # borrowed; NULL: memory only
    int64_t base_offset
    TxnEntries entries
    TxnSum sum                  # of the entries; during a rebuild, of those that were appended
    TxnCursor rebuilt           # during a rebuild: behind the last entry that was appended
    bint is_compared            # during a rebuild: the entries from the cursor on are those of the file
    bint differs                # during a rebuild: the file differs from the batches
    bint is_loaded              # the file has been read
    bint is_unsynced            # entries were written since the last txn_index_sync
    bint has_sum                # sum is known before the file has been read, which must match it
    Mutex *lock

cdef void txn_entry_encode(const AbortedTxn *entry, char *out) noexcept nogil           # TXN_ENTRY_BYTES bytes
cdef void txn_entry_decode(const char *data, AbortedTxn *out) noexcept nogil
cdef TxnSum txn_sum_of(const char *data, int64_t size_bytes) noexcept nogil

cdef void txn_index_init(TxnIndex *index, const char *directory, int64_t base_offset, Mutex *lock) noexcept nogil
cdef void txn_index_destroy(TxnIndex *index) noexcept nogil
cdef int32_t txn_index_append(TxnIndex *index, const AbortedTxn *entry) noexcept nogil
# Sync the appended entries: 0, -EIO, or -errno where no sync was tried. Without it a power cut would expose aborted
# records.
cdef int32_t txn_index_sync(TxnIndex *index) noexcept nogil
# Recovery: append all entries between these two calls. The file is written only from the first difference on, so that a
# sound index can be used on a full disk. The end returns 1 when the file differed, 0 or -errno.
cdef int32_t txn_index_begin_rebuild(TxnIndex *index) noexcept nogil
cdef int32_t txn_index_end_rebuild(TxnIndex *index) noexcept nogil
# Set *out to the sum of the current entries: 0, TXN_INDEX_DAMAGED or -errno.
cdef int32_t txn_index_sum(TxnIndex *index, TxnSum *out) noexcept nogil
# Require this sum when the file is first read, which has not happened yet.
cdef void txn_index_expect(TxnIndex *index, const TxnSum *expected) noexcept nogil
# Compare the file with the sum: 1 equal, and required from now on, 0 different, or -errno.
cdef int32_t txn_index_matches(TxnIndex *index, const TxnSum *expected) noexcept nogil
# Add to *out (realloc'ed) the entries that overlap [fetch_offset, upper_bound). 1: no later segment can add more; 0:
# one may; TXN_INDEX_DAMAGED or -errno.
cdef int32_t txn_index_collect(TxnIndex *index, int64_t fetch_offset, int64_t upper_bound, AbortedTxn **out,
                               int32_t *count) noexcept nogil
