"""Transaction index of one segment, in Kafka's format. ``lock`` (the segment's leaf lock) guards the entries."""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.sync cimport Mutex
from kbroker.log.producers._producer_state cimport AbortedTxn

cdef enum:
    TXN_ENTRY_BYTES = 34        # int16 version 0, int64 producer id, first, last, last stable offset

cdef struct TxnIndex:
    const char *directory       # borrowed; NULL: memory only
    int64_t base_offset
    AbortedTxn *entries         # owned
    int32_t count
    int32_t capacity
    int32_t rebuilt_count       # while it is rebuilt: entries of the file, those behind count are compared; else 0
    bint is_loaded              # the file has been read
    bint is_unsynced            # entries were written since the last txn_index_sync
    Mutex *lock

cdef void txn_index_init(TxnIndex *index, const char *directory, int64_t base_offset, Mutex *lock) noexcept nogil
cdef void txn_index_destroy(TxnIndex *index) noexcept nogil
cdef int32_t txn_index_append(TxnIndex *index, const AbortedTxn *entry) noexcept nogil
# What was appended is on disk after it: 0, -EIO, or -errno where no sync was tried. A power cut would else bring
# aborted records to light.
cdef int32_t txn_index_sync(TxnIndex *index) noexcept nogil
cdef int32_t txn_index_truncate(TxnIndex *index, int64_t offset) noexcept nogil
# Recovery: append all entries between the two. The file is written only from where it differs: a full disk keeps no
# sound index from being used.
cdef int32_t txn_index_begin_rebuild(TxnIndex *index) noexcept nogil
cdef int32_t txn_index_end_rebuild(TxnIndex *index) noexcept nogil
# Adds to *out (realloc'ed) what overlaps [fetch_offset, upper_bound). 1: no later segment can add more; 0; or -errno
cdef int32_t txn_index_collect(TxnIndex *index, int64_t fetch_offset, int64_t upper_bound, AbortedTxn **out,
                               int32_t *count) noexcept nogil
