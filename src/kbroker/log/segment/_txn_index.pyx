"""Transaction index of a segment: Kafka's TransactionIndex, the aborted transactions of its batches in a file."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kbroker._core.codec.bytes cimport load_i64, store_16, store_64
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.sync cimport Mutex, mutex_lock, mutex_unlock
from kbroker.log.segment._index cimport INDEX_OUT_OF_ORDER
from kbroker.log.segment._txn_entries cimport (
    TxnCursor, txn_cursor_next, txn_cursor_take, txn_entries_add, txn_entries_cut, txn_entries_find, txn_entries_free,
    txn_entries_reserve,
)
from kbroker.log._posix cimport (
    EIO, ENOENT, ENOMEM, PATH_BYTES, io_close, io_fd_size, io_open, io_read, io_sync, io_truncate, io_unlink, io_write,
    log_path,
)


cdef void txn_index_init(TxnIndex *index, const char *directory, int64_t base_offset, Mutex *lock) noexcept nogil:
    memset(index, 0, sizeof(TxnIndex))
    index.directory = directory
    index.base_offset = base_offset
    index.is_loaded = directory is NULL
    index.lock = lock


cdef void txn_index_destroy(TxnIndex *index) noexcept nogil:
    txn_entries_free(&index.entries)


cdef void txn_entry_encode(const AbortedTxn *entry, char *out) noexcept nogil:
    store_16(out, 0)
    store_64(out + 2, entry.producer_id)
    store_64(out + 10, entry.first_offset)
    store_64(out + 18, entry.last_offset)
    store_64(out + 26, entry.last_stable_offset)


cdef void txn_entry_decode(const char *data, AbortedTxn *out) noexcept nogil:
    out.producer_id = load_i64(data + 2)
    out.first_offset = load_i64(data + 10)
    out.last_offset = load_i64(data + 18)
    out.last_stable_offset = load_i64(data + 26)


cdef TxnSum txn_sum_of(const char *data, int64_t size_bytes) noexcept nogil:
    cdef TxnSum result
    result.count = size_bytes // TXN_ENTRY_BYTES
    result.crc = crc32c(0, data, size_bytes)
    return result


cdef inline bint is_same(const TxnSum *one, const TxnSum *other) noexcept nogil:
    return one.count == other.count and one.crc == other.crc


cdef int32_t read_index(TxnIndex *index, char **data, int64_t *size_bytes) noexcept nogil:
    """Read the whole file into malloc'ed memory; a missing file is an empty one. 0 or -errno."""
    cdef char path[PATH_BYTES]
    cdef int64_t size, got = 0
    cdef int fd
    data[0] = NULL
    size_bytes[0] = 0
    log_path(path, PATH_BYTES, index.directory, index.base_offset, b".txnindex")
    fd = io_open(path, False)
    if fd < 0:
        return 0 if fd == -ENOENT else fd
    size = io_fd_size(fd)
    if size > 0:
        data[0] = <char *>malloc(size)
        got = io_read(fd, data[0], size, 0) if data[0] is not NULL else -ENOMEM
    io_close(fd)
    if size < 0:
        return <int32_t>size
    if got == size:
        size_bytes[0] = size
        return 0
    free(data[0])
    data[0] = NULL
    return <int32_t>got if got < 0 else -EIO


cdef inline bint is_next(const TxnIndex *index, const AbortedTxn *entry) noexcept nogil:
    return index.entries.count == 0 or entry.last_offset > index.entries.last.last_offset


cdef int32_t txn_load(TxnIndex *index) noexcept nogil:
    """Load the entries; under the lock. 0, TXN_INDEX_DAMAGED or another error.

    Without a required sum the file is valid up to its first torn or foreign entry, since it will be rebuilt.
    """
    cdef int64_t size, slot
    cdef char *data
    cdef const char *at
    cdef AbortedTxn entry
    cdef TxnSum found
    cdef int32_t rc
    if index.is_loaded:
        return 0
    txn_entries_free(&index.entries)
    rc = read_index(index, &data, &size)
    if rc != 0:
        return rc
    found = txn_sum_of(data, size)
    if index.has_sum and not is_same(&found, &index.sum):
        free(data)
        return TXN_INDEX_DAMAGED
    for slot in range(size // TXN_ENTRY_BYTES):
        at = data + slot * TXN_ENTRY_BYTES
        txn_entry_decode(at, &entry)
        if at[0] != 0 or at[1] != 0 or entry.last_offset < index.base_offset or not is_next(index, &entry):
            break
        if not txn_entries_reserve(&index.entries):
            free(data)
            return -ENOMEM
        txn_entries_add(&index.entries, &entry)
    index.differs = size != index.entries.count * TXN_ENTRY_BYTES
    index.sum = txn_sum_of(data, index.entries.count * TXN_ENTRY_BYTES) if index.differs else found
    free(data)
    index.is_loaded = True
    return 0


cdef int32_t write_entry(const TxnIndex *index, const char *data) noexcept nogil:
    """Write an encoded entry at the end of the file: 0, or -errno with no part of it left."""
    cdef char path[PATH_BYTES]
    cdef int64_t rc, size = index.entries.count * TXN_ENTRY_BYTES
    cdef int fd
    log_path(path, PATH_BYTES, index.directory, index.base_offset, b".txnindex")
    fd = io_open(path, True)
    if fd < 0:
        return fd
    rc = io_write(fd, data, TXN_ENTRY_BYTES, size)
    if rc < 0:
        io_truncate(fd, size)
    io_close(fd)
    return <int32_t>min(rc, 0)


cdef inline void add_to_sum(TxnIndex *index, const char *data) noexcept nogil:
    index.sum.count += 1
    index.sum.crc = crc32c(index.sum.crc, data, TXN_ENTRY_BYTES)


cdef inline void end_comparison(TxnIndex *index) noexcept nogil:
    if index.is_compared:
        txn_entries_cut(&index.entries, &index.rebuilt)
        index.is_compared = False


cdef int32_t txn_index_append(TxnIndex *index, const AbortedTxn *entry) noexcept nogil:
    """Write the file outside the lock, for which reads wait: there is one writer, which alone changes the count."""
    cdef char data[TXN_ENTRY_BYTES]
    cdef int32_t rc
    txn_entry_encode(entry, data)
    mutex_lock(index.lock)
    rc = txn_load(index)
    if index.is_compared and txn_cursor_take(&index.entries, &index.rebuilt, entry):
        add_to_sum(index, data)                 # the file already has it
        mutex_unlock(index.lock)
        return 0
    end_comparison(index)
    index.differs = True
    if rc == 0 and not is_next(index, entry):
        rc = INDEX_OUT_OF_ORDER
    if rc == 0 and not txn_entries_reserve(&index.entries):     # before the file is written
        rc = -ENOMEM
    mutex_unlock(index.lock)
    if rc == 0 and index.directory is not NULL:
        rc = write_entry(index, data)
    if rc == 0:
        mutex_lock(index.lock)
        txn_entries_add(&index.entries, entry)
        add_to_sum(index, data)
        index.is_unsynced = index.directory is not NULL
        mutex_unlock(index.lock)
    return rc


cdef int32_t txn_index_sync(TxnIndex *index) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef bint is_unsynced
    cdef int32_t rc = 0
    cdef int fd
    mutex_lock(index.lock)
    is_unsynced = index.is_unsynced
    index.is_unsynced = False
    mutex_unlock(index.lock)
    if not is_unsynced:
        return 0
    log_path(path, PATH_BYTES, index.directory, index.base_offset, b".txnindex")
    fd = io_open(path, False)
    if fd == -ENOENT:
        return 0                    # retention, or a truncation, has removed it meanwhile
    if fd < 0:
        mutex_lock(index.lock)
        index.is_unsynced = True
        mutex_unlock(index.lock)
        return fd
    rc = 0 if io_sync(fd) == 0 else -EIO
    io_close(fd)
    return rc


cdef int32_t cut_file(TxnIndex *index) noexcept nogil:
    """Cut the file after the valid entries, or remove it if there are none; under the lock. 0 or -errno."""
    cdef char path[PATH_BYTES]
    cdef int32_t rc
    cdef int fd
    if index.directory is NULL:
        return 0
    log_path(path, PATH_BYTES, index.directory, index.base_offset, b".txnindex")
    if index.entries.count == 0:
        rc = io_unlink(path)
        return 0 if rc == -ENOENT else rc
    fd = io_open(path, False)
    if fd < 0:
        return fd
    rc = io_truncate(fd, index.entries.count * TXN_ENTRY_BYTES)
    io_close(fd)
    return rc


cdef int32_t txn_index_begin_rebuild(TxnIndex *index) noexcept nogil:
    cdef int32_t rc
    mutex_lock(index.lock)
    index.differs = False
    rc = txn_load(index)
    index.has_sum = False
    index.is_compared = rc == 0
    memset(&index.rebuilt, 0, sizeof(TxnCursor))
    memset(&index.sum, 0, sizeof(TxnSum))
    mutex_unlock(index.lock)
    return rc


cdef int32_t txn_index_end_rebuild(TxnIndex *index) noexcept nogil:
    cdef int32_t rc
    cdef bint differs
    mutex_lock(index.lock)
    differs = index.differs or index.rebuilt.slot < index.entries.count
    end_comparison(index)
    index.is_unsynced = index.entries.count > 0 and index.directory is not NULL     # it may exist only in the cache
    rc = cut_file(index) if differs else 0
    mutex_unlock(index.lock)
    return differs if rc == 0 else rc


cdef int32_t txn_index_sum(TxnIndex *index, TxnSum *out) noexcept nogil:
    cdef int32_t rc
    mutex_lock(index.lock)
    rc = 0 if index.has_sum else txn_load(index)
    out[0] = index.sum
    mutex_unlock(index.lock)
    return rc


cdef void txn_index_expect(TxnIndex *index, const TxnSum *expected) noexcept nogil:
    mutex_lock(index.lock)
    index.sum = expected[0]
    index.has_sum = True
    mutex_unlock(index.lock)


cdef int32_t txn_index_matches(TxnIndex *index, const TxnSum *expected) noexcept nogil:
    cdef int64_t size
    cdef char *data
    cdef TxnSum found
    cdef int32_t rc = read_index(index, &data, &size)
    if rc != 0:
        return rc
    found = txn_sum_of(data, size)
    free(data)
    if not is_same(&found, expected):
        return 0
    txn_index_expect(index, expected)
    return 1


cdef int32_t txn_index_collect(TxnIndex *index, int64_t fetch_offset, int64_t upper_bound, AbortedTxn **out,
                               int32_t *count) noexcept nogil:
    cdef int32_t rc
    cdef AbortedTxn *entry
    cdef TxnCursor cursor
    mutex_lock(index.lock)
    rc = txn_load(index)
    if rc != 0:
        mutex_unlock(index.lock)
        return rc
    entry = &cursor.entry
    cursor = txn_entries_find(&index.entries, fetch_offset)
    while rc == 0 and cursor.slot < index.entries.count:
        txn_cursor_next(&index.entries, &cursor)
        # A transaction that ended before fetch_offset has a last stable offset at or below it, so it cannot complete
        # the search either.
        if entry.last_offset < fetch_offset:
            continue
        if entry.first_offset < upper_bound:
            if not array_reserve(out, count[0]):
                rc = -ENOMEM
                break
            out[0][count[0]] = entry[0]
            count[0] += 1
        rc = entry.last_stable_offset >= upper_bound
    mutex_unlock(index.lock)
    return rc
