"""Segments written by the cleaner, and their swap without disturbing readers: LocalLog.replaceSegments."""
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
from libc.string cimport memset
from kbroker._core.codec.bytes cimport load_i32, load_i64, store_32, store_64
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_put, buffer_reserve
from kbroker._core.open_file cimport open_file_new
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log.segment._index cimport (
    OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, index_seal, offset_index_append, time_index_maybe_append,
)
from kbroker.log._partition cimport RECENT_APPENDS, Partition, view_publish, write_txn_checkpoint
from kbroker.log._posix cimport (
    ENOENT, ENOMEM, PATH_BYTES, io_close, io_memory_file, io_open, io_rename, io_sync, io_sync_directory, io_truncate,
    io_unlink, io_write, log_path,
)
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_list_new, segment_list_release, segment_new, segment_path, segment_pin,
    segment_release, segment_retain,
)
from kbroker.log.segment._txn_index cimport (
    TXN_ENTRY_BYTES, TxnSum, txn_entry_decode, txn_entry_encode, txn_index_append, txn_index_expect, txn_sum_of,
)
from kbroker.protocol._records cimport BatchHeader, batch_parse

cdef extern from *:
    """
    #include <cerrno>
    #include <fcntl.h>
    #include <sys/stat.h>
    static inline int kb_copy_modified(const char *from, int to) {      /* the file's age decides its retention */
    #ifdef _WIN32
        WIN32_FILE_ATTRIBUTE_DATA f;
        int rc = kb_win_facts(from, &f);
        if (rc) return rc;
        return SetFileTime(kb_handle(to), NULL, &f.ftLastAccessTime, &f.ftLastWriteTime) ? 0 : kb_win_error();
    #else
        struct stat s;
        if (stat(from, &s)) return -errno;
    #ifdef __APPLE__
        struct timespec t[2] = {s.st_atimespec, s.st_mtimespec};
    #else
        struct timespec t[2] = {s.st_atim, s.st_mtim};
    #endif
        return futimens(to, t) ? -errno : 0;
    #endif
    }
    """
    int copy_modified "kb_copy_modified"(const char *source, int fd) noexcept nogil

cdef extern from *:
    """
    /* Indexes first, the log last: the log's name means that all are complete. */
    #define KB_SUFFIXES(state) {".index" state, ".timeindex" state, ".txnindex" state, ".log" state}
    static const char *const KB_SUFFIX[][4] = {
        KB_SUFFIXES(""), KB_SUFFIXES(".cleaned"), KB_SUFFIXES(".swap"), KB_SUFFIXES(".deleted")};
    """
    const char *SUFFIX "KB_SUFFIX"[4][4]        # by state and slot

cdef enum:
    WRITE_BYTES = 1048576       # size of the buffer before a write
    OFFSET_INDEX = 0            # slots: the files of a segment
    TIME_INDEX = 1
    TXN_INDEX = 2
    LOG = 3
    SUFFIXES = 4
    FINAL = 0                   # states of a file
    CLEANED = 1
    SWAP = 2
    DELETED = 3


cdef bint crash_point(CrashPoint *crash) noexcept nogil:
    if crash.left <= 0:
        return False
    crash.left -= 1
    return crash.left == 0


# ------------------------------------------------------------------------------------------------------------ writing

cdef int32_t cleaned_open(CleanedSegment *cleaned, Partition *partition, int64_t base_offset) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int32_t rc
    memset(cleaned, 0, sizeof(CleanedSegment))
    cleaned.directory = partition.directory
    cleaned.base_offset = base_offset
    mutex_lock(&partition.view_lock)
    cleaned.index_bytes = partition.config.segment_index_bytes
    cleaned.index_interval = partition.config.index_interval_bytes
    mutex_unlock(&partition.view_lock)
    cleaned.max_timestamp_ms = -1
    cleaned.offset_of_max = base_offset
    cleaned.last_time_entry_ms = -1
    if cleaned.directory is NULL:
        cleaned.fd = io_memory_file()
        return 0 if cleaned.fd >= 0 else cleaned.fd
    log_path(path, PATH_BYTES, cleaned.directory.path, base_offset, SUFFIX[CLEANED][LOG])
    cleaned.fd = io_open(path, True)
    if cleaned.fd < 0:
        return cleaned.fd
    rc = io_truncate(cleaned.fd, 0)             # left by a round that failed
    return rc


cdef void cleaned_close(CleanedSegment *cleaned) noexcept nogil:
    if cleaned.fd >= 0:
        io_close(cleaned.fd)
    cleaned.fd = -1
    buffer_free(&cleaned.pending)
    buffer_free(&cleaned.offsets)
    buffer_free(&cleaned.times)
    buffer_free(&cleaned.aborted)


cdef void cleaned_discard(CleanedSegment *cleaned) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int32_t slot
    if cleaned.directory is not NULL:
        for slot in range(SUFFIXES - 1, -1, -1):
            log_path(path, PATH_BYTES, cleaned.directory.path, cleaned.base_offset, SUFFIX[SWAP][slot])
            io_unlink(path)
            log_path(path, PATH_BYTES, cleaned.directory.path, cleaned.base_offset, SUFFIX[CLEANED][slot])
            io_unlink(path)
    cleaned_close(cleaned)


cdef int32_t write_pending(CleanedSegment *cleaned) noexcept nogil:
    cdef int64_t rc
    if cleaned.pending.size == 0:
        return 0
    rc = io_write(cleaned.fd, cleaned.pending.data, cleaned.pending.size,
                  cleaned.size_bytes - cleaned.pending.size)
    if rc < 0:
        return <int32_t>rc
    cleaned.pending.size = 0
    return 0


cdef bint add_time_entry(CleanedSegment *cleaned, bint is_closing) noexcept nogil:
    """Add an entry for a larger timestamp; the last place is for the closing entry. False: out of memory."""
    cdef int64_t max_entries = cleaned.index_bytes // TIME_ENTRY_BYTES - (0 if is_closing else 1)
    cdef char *at
    if (cleaned.max_timestamp_ms <= cleaned.last_time_entry_ms
            or cleaned.times.size // TIME_ENTRY_BYTES >= max_entries):
        return True
    if not buffer_reserve(&cleaned.times, TIME_ENTRY_BYTES):
        return False
    at = cleaned.times.data + cleaned.times.size
    store_64(at, cleaned.max_timestamp_ms)
    store_32(at + 8, <int32_t>(cleaned.offset_of_max - cleaned.base_offset))
    cleaned.times.size += TIME_ENTRY_BYTES
    cleaned.last_time_entry_ms = cleaned.max_timestamp_ms
    return True


cdef int32_t cleaned_append(CleanedSegment *cleaned, const char *batch, int64_t size_bytes) noexcept nogil:
    cdef BatchHeader header
    cdef int64_t last_offset
    cdef char *at
    batch_parse(batch, size_bytes, &header)
    last_offset = header.base_offset + header.last_offset_delta
    if header.max_timestamp_ms > cleaned.max_timestamp_ms:
        cleaned.max_timestamp_ms = header.max_timestamp_ms
        cleaned.offset_of_max = last_offset
    if cleaned.bytes_since_index > cleaned.index_interval and cleaned.size_bytes <= INT32_MAX and (
            cleaned.offsets.size // OFFSET_ENTRY_BYTES < cleaned.index_bytes // OFFSET_ENTRY_BYTES):
        if not buffer_reserve(&cleaned.offsets, OFFSET_ENTRY_BYTES):
            return -ENOMEM
        at = cleaned.offsets.data + cleaned.offsets.size
        store_32(at, <int32_t>(last_offset - cleaned.base_offset))
        store_32(at + 4, <int32_t>cleaned.size_bytes)
        cleaned.offsets.size += OFFSET_ENTRY_BYTES
        if not add_time_entry(cleaned, False):
            return -ENOMEM
        cleaned.bytes_since_index = 0
    cleaned.bytes_since_index += size_bytes
    if not buffer_put(&cleaned.pending, batch, size_bytes):
        return -ENOMEM
    cleaned.size_bytes += size_bytes
    return write_pending(cleaned) if cleaned.pending.size >= WRITE_BYTES else 0


cdef int32_t cleaned_add_aborted(CleanedSegment *cleaned, const AbortedTxn *entry) noexcept nogil:
    if not buffer_reserve(&cleaned.aborted, TXN_ENTRY_BYTES):
        return -ENOMEM
    txn_entry_encode(entry, cleaned.aborted.data + cleaned.aborted.size)
    cleaned.aborted.size += TXN_ENTRY_BYTES
    return 0


cdef int32_t write_index(CleanedSegment *cleaned, int32_t slot, const Buffer *entries) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int64_t rc
    cdef int fd
    log_path(path, PATH_BYTES, cleaned.directory.path, cleaned.base_offset, SUFFIX[CLEANED][slot])
    fd = io_open(path, True)
    if fd < 0:
        return fd
    rc = io_truncate(fd, 0)
    if rc == 0 and entries.size > 0:
        rc = io_write(fd, entries.data, entries.size, 0)
    if rc >= 0:
        rc = io_sync(fd)
    io_close(fd)
    return 0 if rc >= 0 else <int32_t>rc


cdef int32_t cleaned_finish(CleanedSegment *cleaned, LogSegment *newest, CrashPoint *crash) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int32_t rc = write_pending(cleaned)
    if rc == 0 and not add_time_entry(cleaned, True):
        rc = -ENOMEM
    if rc != 0 or cleaned.directory is NULL:
        return rc
    if crash_point(crash):
        return REPLACE_STOPPED
    # an empty transaction index is written too: recovery uses it to distinguish the two segments of this name
    rc = write_index(cleaned, OFFSET_INDEX, &cleaned.offsets)
    if rc == 0:
        rc = write_index(cleaned, TIME_INDEX, &cleaned.times)
    if rc == 0 and crash_point(crash):
        return REPLACE_STOPPED
    if rc == 0:
        rc = write_index(cleaned, TXN_INDEX, &cleaned.aborted)
    if rc == 0:
        segment_path(newest, b".log", path)
        rc = copy_modified(path, cleaned.fd)
    return io_sync(cleaned.fd) if rc == 0 else rc


# ------------------------------------------------------------------------------------------------------------ swapping

cdef LogSegment *segment_of(Partition *partition, CleanedSegment *cleaned, int64_t now_ms) noexcept nogil:
    """Return the new segment for readers, NULL without memory. Its files have their final names before it is published.
    """
    cdef LogSegment *segment = segment_new(partition.directory, partition.files, cleaned.base_offset,
                                           cleaned.index_bytes, cleaned.directory is NULL, now_ms)
    cdef AbortedTxn entry
    cdef TxnSum expected
    cdef const char *at
    cdef int64_t slot
    cdef int32_t rc = 0
    if segment is NULL:
        return NULL
    atomic_store(&segment.max_timestamp_ms, cleaned.max_timestamp_ms)
    atomic_store(&segment.offset_of_max, cleaned.offset_of_max)
    atomic_store(&segment.size_bytes, cleaned.size_bytes)
    if cleaned.directory is not NULL:
        atomic_store(&segment.offsets.entries, cleaned.offsets.size // OFFSET_ENTRY_BYTES)
        atomic_store(&segment.times.entries, cleaned.times.size // TIME_ENTRY_BYTES)
        expected = txn_sum_of(cleaned.aborted.data, cleaned.aborted.size)
        txn_index_expect(&segment.aborted, &expected)
        return segment
    for slot in range(cleaned.offsets.size // OFFSET_ENTRY_BYTES):
        at = cleaned.offsets.data + slot * OFFSET_ENTRY_BYTES
        if rc == 0:
            rc = offset_index_append(&segment.offsets, cleaned.base_offset + load_i32(at), load_i32(at + 4))
    for slot in range(cleaned.times.size // TIME_ENTRY_BYTES):
        at = cleaned.times.data + slot * TIME_ENTRY_BYTES
        if rc == 0:
            rc = time_index_maybe_append(&segment.times, load_i64(at), cleaned.base_offset + load_i32(at + 8), True)
    for slot in range(cleaned.aborted.size // TXN_ENTRY_BYTES):
        at = cleaned.aborted.data + slot * TXN_ENTRY_BYTES
        txn_entry_decode(at, &entry)
        if rc == 0:
            rc = txn_index_append(&segment.aborted, &entry)
    index_seal(&segment.offsets)
    index_seal(&segment.times)
    segment.file = open_file_new(cleaned.fd)
    if segment.file is not NULL:
        cleaned.fd = -1                         # owned by the segment now
    if rc != 0 or segment.file is NULL:
        segment_release(segment)
        return NULL
    return segment


cdef int32_t place_in_view(Partition *partition, LogSegment **old, int32_t count) noexcept nogil:
    """Return the slot of old[0] when old is adjacent and below the active segment, else -1; under the append lock."""
    cdef SegmentList *view = partition.view
    cdef int32_t slot, first = -1
    for slot in range(view.count):
        if view.segments[slot] == old[0]:
            first = slot
            break
    if first < 0 or first + count >= view.count:
        return -1
    for slot in range(count):
        if view.segments[first + slot] != old[slot]:
            return -1
    return first


cdef int32_t rename_one(LogSegment *segment, int32_t slot, bint is_old, bint is_undone) noexcept nogil:
    """Rename a file of an old segment to .deleted, or of the new segment to its final name; or undo that.

    Returns: 0, also for an old segment without that file, unless it is the log; or -errno.
    """
    cdef char final[PATH_BYTES]
    cdef char other[PATH_BYTES]
    cdef int32_t rc
    segment_path(segment, SUFFIX[FINAL][slot], final)
    segment_path(segment, SUFFIX[DELETED][slot] if is_old else SUFFIX[SWAP][slot], other)
    rc = io_rename(final, other) if is_old != is_undone else io_rename(other, final)
    return 0 if rc == -ENOENT and is_old and slot != LOG else rc


cdef int32_t swap_names(Partition *partition, LogSegment **old, int32_t count, LogSegment *fresh,
                        CrashPoint *crash) noexcept nogil:
    """Rename the files of the old segments, then those of the new one, the log of each last; undo all after a failure.

    Returns: 0, REPLACE_STOPPED at a crash point, or -errno.
    """
    cdef int32_t step = 0, rc = 0, number
    while rc == 0 and step < (count + 1) * SUFFIXES:
        if crash_point(crash):
            return REPLACE_STOPPED
        number = step // SUFFIXES
        rc = rename_one(old[number] if number < count else fresh, step % SUFFIXES, number < count, False)
        step += 1
    if rc == 0:
        return 0
    for step in range(step - 2, -1, -1):
        number = step // SUFFIXES
        if rename_one(old[number] if number < count else fresh, step % SUFFIXES, number < count, True) != 0:
            # Readers continue with the old files, which are open. The names are mixed until the next opening.
            atomic_store(&partition.is_failed, 1)
            return rc
    return rc


cdef inline void forget_recent(Partition *partition, LogSegment **old, int32_t count) noexcept nogil:
    """Clear recent appends whose positions are those of the old files."""
    cdef int32_t slot, which
    mutex_lock(&partition.view_lock)
    for slot in range(RECENT_APPENDS if partition.recent is not NULL else 0):
        for which in range(count):
            if partition.recent[slot].segment_base == old[which].base_offset:
                partition.recent[slot].segment_base = -1
    mutex_unlock(&partition.view_lock)


cdef int32_t publish(Partition *partition, LogSegment **old, int32_t count, LogSegment *fresh,
                     CrashPoint *crash) noexcept nogil:
    """Swap the file names and publish the new view; under the append lock.

    Returns: 0; REPLACE_STALE if the log is closed, damaged or has other segments; REPLACE_STOPPED; or -errno.
    """
    cdef SegmentList *view = partition.view
    cdef SegmentList *changed
    cdef int32_t first, slot, rc = 0
    if atomic_load(&partition.closed) or atomic_load(&partition.damage_offset) != INT64_MAX:
        return REPLACE_STALE
    first = place_in_view(partition, old, count)
    if first < 0:
        return REPLACE_STALE
    changed = segment_list_new(view.count - count + 1)
    if changed is NULL:
        return -ENOMEM
    if partition.directory is not NULL:
        rc = swap_names(partition, old, count, fresh, crash)
        if rc == REPLACE_STOPPED:
            atomic_store(&partition.is_failed, 1)
        if rc != 0:
            segment_list_release(changed)
            return rc
    for slot in range(first):
        changed.segments[slot] = segment_retain(view.segments[slot])
    changed.segments[first] = segment_retain(fresh)
    for slot in range(first + 1, changed.count):
        changed.segments[slot] = segment_retain(view.segments[slot + count - 1])
    forget_recent(partition, old, count)
    view_publish(partition, changed)
    write_txn_checkpoint(partition, False)
    for slot in range(count):
        atomic_store(&old[slot].is_deleted, 1)
    return 0


cdef int32_t name_swap(CleanedSegment *cleaned, CrashPoint *crash) noexcept nogil:
    cdef char source[PATH_BYTES]
    cdef char target[PATH_BYTES]
    cdef int32_t slot, rc
    for slot in range(SUFFIXES):
        if crash_point(crash):
            return REPLACE_STOPPED
        log_path(source, PATH_BYTES, cleaned.directory.path, cleaned.base_offset, SUFFIX[CLEANED][slot])
        log_path(target, PATH_BYTES, cleaned.directory.path, cleaned.base_offset, SUFFIX[SWAP][slot])
        rc = io_rename(source, target)
        if rc != 0:
            return rc
    return io_sync_directory(cleaned.directory.path)


cdef int32_t remove_old(Partition *partition, LogSegment **old, int32_t count, bint no_aborted,
                        CrashPoint *crash) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int32_t slot, which
    io_sync_directory(partition.directory.path)
    for slot in range(count):
        if crash_point(crash):
            return REPLACE_STOPPED
        for which in range(SUFFIXES):
            segment_path(old[slot], SUFFIX[DELETED][which], path)
            io_unlink(path)
        if slot > 0:
            segment_path(old[slot], b".snapshot", path)
            io_unlink(path)
    if no_aborted:
        segment_path(old[0], b".txnindex", path)
        io_unlink(path)
    return 0


cdef int32_t replace_segments(Partition *partition, LogSegment **old, int32_t count, CleanedSegment *cleaned,
                              int64_t now_ms, CrashPoint *crash) noexcept nogil:
    cdef LogSegment *fresh = NULL
    cdef int32_t slot, rc = 0
    cdef bint on_disk = partition.directory is not NULL
    cdef bint no_aborted = cleaned.aborted.size == 0
    if on_disk:
        rc = name_swap(cleaned, crash)
    for slot in range(count):                   # an old view must never open a new file by an old name
        if rc == 0:
            rc = segment_pin(old[slot])
    if rc == 0:
        fresh = segment_of(partition, cleaned, now_ms)
        if fresh is NULL:
            rc = -ENOMEM
    if rc == 0:
        mutex_lock(&partition.append_lock)
        rc = publish(partition, old, count, fresh, crash)
        mutex_unlock(&partition.append_lock)
        segment_release(fresh)
    if rc == 0 and on_disk:
        rc = remove_old(partition, old, count, no_aborted, crash)
    if rc == 0 or rc == REPLACE_STOPPED or atomic_load(&partition.is_failed):
        cleaned_close(cleaned)                  # the next opening finishes the renames
    else:
        cleaned_discard(cleaned)
    return rc
