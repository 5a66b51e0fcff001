"""Indexes of a segment as Python objects, for tests. Threads: one writer, any number of readers."""
cimport cython
from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free

from kbroker._core.sync cimport Mutex, atomic_load, mutex_destroy, mutex_init
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._index cimport (
    INDEX_FULL, INDEX_OUT_OF_ORDER, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, Index, index_destroy, index_init,
    index_is_full, index_load, index_seal, index_truncate, offset_index_append, offset_index_lookup,
    offset_index_offset_after, time_index_lookup, time_index_maybe_append,
)
from kbroker.log.segment._txn_index cimport (
    TXN_INDEX_DAMAGED, TxnIndex, TxnSum, txn_index_append, txn_index_begin_rebuild, txn_index_collect,
    txn_index_destroy, txn_index_end_rebuild, txn_index_expect, txn_index_init, txn_index_sum,
)

import os

cdef int64_t MAX_INT32 = 2147483647


cdef int32_t check_entry(int32_t rc) except? -1:
    if rc == INDEX_OUT_OF_ORDER:
        raise ValueError("entry out of order or outside the index's range")
    if rc == INDEX_FULL:
        raise ValueError("index is full")
    if rc < 0:
        raise OSError(-rc, "index file")
    return rc


cdef class _FileIndex:
    cdef Index index
    cdef Mutex lock
    cdef bytes directory

    def __cinit__(self, directory, int64_t base_offset, int64_t max_bytes):
        mutex_init(&self.lock)
        if base_offset < 0:
            raise ValueError(f"base_offset must be >= 0, got {base_offset}")
        if max_bytes < TIME_ENTRY_BYTES:
            raise ValueError(f"max_bytes must hold an entry, got {max_bytes}")
        self.directory = os.fsencode(directory)
        if len(self.directory) > 4096:
            raise ValueError("directory name too long")
        index_init(&self.index, <const char *>self.directory, base_offset,
                   TIME_ENTRY_BYTES if isinstance(self, TimeIndex) else OFFSET_ENTRY_BYTES, max_bytes, True, &self.lock)

    def __dealloc__(self):
        index_destroy(&self.index)
        mutex_destroy(&self.lock)

    def __len__(self):
        return atomic_load(&self.index.entries)

    @property
    def is_full(self):
        return index_is_full(&self.index)

    def load(self, int64_t file_bytes=MAX_INT32):
        """Read the entry count of an existing file; return False if the file is missing or fails the sanity check."""
        return index_load(&self.index, -1, file_bytes) == 0

    def seal(self):
        check_entry(index_seal(&self.index))

    def truncate(self, int64_t offset):
        index_truncate(&self.index, offset)


cdef class OffsetIndex(_FileIndex):
    def append(self, int64_t offset, int64_t position):
        check_entry(offset_index_append(&self.index, offset, position))

    def lookup(self, int64_t target):
        cdef int64_t offset, position
        offset_index_lookup(&self.index, target, &offset, &position)
        return offset, position

    def offset_after(self, int64_t position):
        return offset_index_offset_after(&self.index, position)


cdef class TimeIndex(_FileIndex):
    def maybe_append(self, int64_t timestamp_ms, int64_t offset, bint is_closing=False):
        check_entry(time_index_maybe_append(&self.index, timestamp_ms, offset, is_closing))

    def lookup(self, int64_t target_ms):
        cdef int64_t timestamp, offset
        time_index_lookup(&self.index, target_ms, &timestamp, &offset)
        return timestamp, offset


@cython.final
cdef class TransactionIndex:
    cdef TxnIndex index
    cdef Mutex lock
    cdef bytes directory

    def __cinit__(self, directory, int64_t base_offset):
        mutex_init(&self.lock)
        self.directory = os.fsencode(directory)
        if len(self.directory) > 4096:
            raise ValueError("directory name too long")
        txn_index_init(&self.index, <const char *>self.directory, base_offset, &self.lock)

    def __dealloc__(self):
        txn_index_destroy(&self.index)
        mutex_destroy(&self.lock)

    def append(self, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset):
        cdef AbortedTxn entry
        entry.producer_id = producer_id
        entry.first_offset = first_offset
        entry.last_offset = last_offset
        entry.last_stable_offset = last_stable_offset
        check_entry(txn_index_append(&self.index, &entry))

    @property
    def entry_bytes(self):
        """Memory of the entries."""
        return self.index.entries.packed.size

    def begin_rebuild(self):
        check_entry(txn_index_begin_rebuild(&self.index))

    def end_rebuild(self):
        """Return whether the file differed."""
        cdef int32_t rc = txn_index_end_rebuild(&self.index)
        check_entry(min(rc, 0))
        return rc == 1

    def sum(self):
        """Return number and checksum of the entries."""
        cdef TxnSum found
        check_entry(txn_index_sum(&self.index, &found))
        return found.count, found.crc

    def expect(self, int64_t count, uint32_t crc):
        cdef TxnSum expected
        expected.count = count
        expected.crc = crc
        txn_index_expect(&self.index, &expected)

    def collect(self, int64_t fetch_offset, int64_t upper_bound):
        cdef AbortedTxn *found = NULL
        cdef int32_t count = 0, complete, slot
        complete = txn_index_collect(&self.index, fetch_offset, upper_bound, &found, &count)
        if complete < 0:
            free(found)
            raise OSError(EIO if complete == TXN_INDEX_DAMAGED else -complete, "transaction index")
        result = [(found[slot].producer_id, found[slot].first_offset, found[slot].last_offset,
                   found[slot].last_stable_offset) for slot in range(count)]
        free(found)
        return result, bool(complete)
