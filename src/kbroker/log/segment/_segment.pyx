"""Segment files: opened when needed and closed by a clock hand, searched through their index, sealed and removed."""
cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset, strdup
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_reserve
from kbroker._core.guarded cimport guarded_value
from kbroker._core.open_file cimport OpenFile, open_file_new, open_file_release, open_file_retain
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store, mutex_destroy, mutex_init, mutex_lock,
    mutex_unlock,
)
from kbroker.log.segment._index cimport (
    OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, index_destroy, index_ensure, index_init, index_seal,
    offset_index_append, offset_index_lookup, time_index_maybe_append,
)
from kbroker.log._posix cimport (
    ENOENT, ENOMEM, PATH_BYTES, io_close, io_descriptor_limit, io_memory_file, io_open, io_read, io_rename,
    io_reserve, io_truncate, io_unlink, log_path,
)
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._txn_index cimport txn_index_collect, txn_index_destroy, txn_index_init
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES
from kbroker.protocol._records cimport BatchHeader, batch_parse

cdef enum:
    MOST_OPEN = 16384           # or a quarter of the descriptor limit; acceptors keep as many free (KB_MOST_FILES)
    READER_BYTES = 1048576      # size of a BatchReader's reads
    FIND_BYTES = 4096           # size of reads during a search for a batch: about one index interval

# One cache for the process by default, since descriptors belong to the process.
cdef FileCache *process_cache = NULL


cdef Directory *directory_new(const char *path) noexcept nogil:
    cdef Directory *directory = <Directory *>calloc(1, sizeof(Directory))
    if directory is NULL:
        return NULL
    directory.path = strdup(path)
    if directory.path is NULL:
        free(directory)
        return NULL
    atomic_store(&directory.refs, 1)
    return directory


cdef Directory *directory_retain(Directory *directory) noexcept nogil:
    if directory is not NULL:
        atomic_add_fetch(&directory.refs, 1)
    return directory


cdef void directory_release(Directory *directory) noexcept nogil:
    if directory is not NULL and atomic_add_fetch(&directory.refs, -1) == 0:
        directory_release(directory.former)
        free(directory.path)
        free(directory)


# -------------------------------------------------------------------------------------------------------- file cache

cdef int64_t default_capacity() noexcept nogil:
    return min(max(io_descriptor_limit() // 4, 16), MOST_OPEN)


cdef FileCache *file_cache_new(int64_t capacity) noexcept nogil:
    """Return a cache. Args: ``capacity``: 0 for a quarter of the descriptor limit."""
    cdef FileCache *files = <FileCache *>calloc(1, sizeof(FileCache))
    if files is NULL:
        return NULL
    atomic_store(&files.refs, 1)
    mutex_init(&files.lock)
    files.capacity = capacity if capacity > 0 else default_capacity()
    return files


cdef FileCache *file_cache_shared() noexcept nogil:
    """Return a counted reference to the process's cache, at its current capacity: a broker's start raises the limit."""
    mutex_lock(&process_cache.lock)
    process_cache.capacity = default_capacity()
    mutex_unlock(&process_cache.lock)
    return file_cache_retain(process_cache)


cdef FileCache *file_cache_retain(FileCache *files) noexcept nogil:
    if files is not NULL:
        atomic_add_fetch(&files.refs, 1)
    return files


cdef void file_cache_release(FileCache *files) noexcept nogil:
    if files is not NULL and atomic_add_fetch(&files.refs, -1) == 0:
        mutex_destroy(&files.lock)
        free(files)


cdef void ring_remove(FileCache *files, LogSegment *segment) noexcept nogil:
    """Remove a segment from the ring; under the cache lock."""
    if segment.ring_next is NULL:
        return
    if segment.ring_next == segment:
        files.hand = NULL
    else:
        segment.ring_prev.ring_next = segment.ring_next
        segment.ring_next.ring_prev = segment.ring_prev
        if files.hand == segment:
            files.hand = segment.ring_next
    segment.ring_next = NULL
    segment.ring_prev = NULL
    files.open_files -= 1


cdef void ring_add(FileCache *files, LogSegment *segment) noexcept nogil:
    """Add a segment behind the hand, which reaches it last; under the cache lock."""
    if files.hand is NULL:
        segment.ring_next = segment
        segment.ring_prev = segment
        files.hand = segment
    else:
        segment.ring_next = files.hand
        segment.ring_prev = files.hand.ring_prev
        segment.ring_prev.ring_next = segment
        files.hand.ring_prev = segment
    files.open_files += 1


cdef OpenFile *evict_one(FileCache *files) noexcept nogil:
    """Take the first file that was not used since the hand's last visit out of the cache; under the cache lock.

    NULL: the cache is empty.
    """
    cdef LogSegment *segment
    cdef OpenFile *file
    cdef int64_t visits = files.open_files * 2 + 1
    while files.hand is not NULL and visits > 0:
        visits -= 1
        segment = files.hand
        if visits > 0 and atomic_load_relaxed(&segment.used) != 0:
            atomic_store(&segment.used, 0)
            files.hand = segment.ring_next
            continue
        mutex_lock(&segment.lock)
        file = segment.file
        segment.file = NULL
        mutex_unlock(&segment.lock)
        ring_remove(files, segment)
        return file
    return NULL


cdef OpenFile *segment_open(LogSegment *segment, int32_t *error) noexcept nogil:
    cdef OpenFile *file
    cdef OpenFile *extra = NULL
    cdef OpenFile *evicted
    cdef FileCache *files = segment.files
    cdef char path[PATH_BYTES]
    cdef int fd
    error[0] = 0
    mutex_lock(&segment.lock)
    if segment.file is not NULL:
        file = open_file_retain(segment.file)
        mutex_unlock(&segment.lock)
        if atomic_load_relaxed(&segment.used) == 0:
            atomic_store(&segment.used, 1)
        return file
    if segment.directory is NULL:               # in memory: created at the first append, never evicted
        fd = io_memory_file() if atomic_load(&segment.is_deleted) == 0 else -ENOENT
        file = open_file_new(fd) if fd >= 0 else NULL
        if file is NULL:
            error[0] = fd if fd < 0 else -ENOMEM
            if fd >= 0:
                io_close(fd)
        else:
            segment.file = open_file_retain(file)
        mutex_unlock(&segment.lock)
        return file
    mutex_unlock(&segment.lock)
    segment_path(segment, b".log", path)
    fd = io_open(path, False)
    if fd == -ENOENT and atomic_load(&segment.is_deleted):      # the flag is set before the file is renamed
        segment_path(segment, b".log.deleted", path)
        fd = io_open(path, False)
    if fd < 0:
        error[0] = fd
        return NULL
    file = open_file_new(fd)
    if file is NULL:
        io_close(fd)
        error[0] = -ENOMEM
        return NULL
    mutex_lock(&files.lock)
    mutex_lock(&segment.lock)
    if segment.file is NULL:
        segment.file = open_file_retain(file)
        atomic_store(&segment.used, 1)
        ring_add(files, segment)
    else:
        extra = file                            # another thread opened it first
        file = open_file_retain(segment.file)
    mutex_unlock(&segment.lock)
    mutex_unlock(&files.lock)
    if extra is not NULL:
        open_file_release(extra)
    while True:
        mutex_lock(&files.lock)
        evicted = evict_one(files) if files.open_files > files.capacity else NULL
        mutex_unlock(&files.lock)
        if evicted is NULL:
            return file
        open_file_release(evicted)


cdef void segment_close_file(LogSegment *segment) noexcept nogil:
    cdef OpenFile *file
    cdef FileCache *files = segment.files
    mutex_lock(&files.lock)
    ring_remove(files, segment)
    mutex_lock(&segment.lock)
    file = segment.file
    segment.file = NULL
    mutex_unlock(&segment.lock)
    mutex_unlock(&files.lock)
    if file is not NULL:
        open_file_release(file)


cdef int32_t segment_pin(LogSegment *segment) noexcept nogil:
    cdef FileCache *files = segment.files
    cdef OpenFile *file
    cdef AbortedTxn *none = NULL
    cdef int32_t error = 0, count = 0
    cdef bint is_open = False
    if segment.directory is NULL:
        return 0
    while not is_open:                          # the clock hand may close it between the two
        file = segment_open(segment, &error)
        if file is NULL:
            return error
        mutex_lock(&files.lock)
        mutex_lock(&segment.lock)
        is_open = segment.file is not NULL
        if is_open:
            ring_remove(files, segment)
        mutex_unlock(&segment.lock)
        mutex_unlock(&files.lock)
        open_file_release(file)
    if atomic_load(&segment.offsets.entries) > 0:
        error = index_ensure(&segment.offsets)
    if error == 0 and atomic_load(&segment.times.entries) > 0:
        error = index_ensure(&segment.times)
    if error != 0:
        return error
    return min(txn_index_collect(&segment.aborted, INT64_MAX, 0, &none, &count), 0)


# ----------------------------------------------------------------------------------------------------------- segment

cdef LogSegment *segment_new(Directory *directory, FileCache *files, int64_t base_offset, int64_t index_bytes,
                             bint writable,
                             int64_t now_ms) noexcept nogil:
    cdef LogSegment *segment = <LogSegment *>calloc(1, sizeof(LogSegment))
    cdef const char *path = directory.path if directory is not NULL else NULL
    if segment is NULL:
        return NULL
    atomic_store(&segment.refs, 1)
    mutex_init(&segment.lock)
    mutex_init(&segment.aborted_lock)
    segment.directory = directory_retain(directory)
    segment.files = file_cache_retain(files)
    segment.base_offset = base_offset
    segment.created_ms = now_ms
    segment.first_timestamp_ms = -1
    atomic_store(&segment.max_timestamp_ms, -1)
    atomic_store(&segment.offset_of_max, base_offset)
    index_init(&segment.offsets, path, base_offset, OFFSET_ENTRY_BYTES, index_bytes, writable, &segment.lock)
    index_init(&segment.times, path, base_offset, TIME_ENTRY_BYTES, index_bytes, writable, &segment.lock)
    txn_index_init(&segment.aborted, path, base_offset, &segment.aborted_lock)
    return segment


cdef LogSegment *segment_retain(LogSegment *segment) noexcept nogil:
    atomic_add_fetch(&segment.refs, 1)
    return segment


cdef void segment_release(LogSegment *segment) noexcept nogil:
    if segment is NULL or atomic_add_fetch(&segment.refs, -1) != 0:
        return
    segment_close_file(segment)
    index_destroy(&segment.offsets)
    index_destroy(&segment.times)
    txn_index_destroy(&segment.aborted)
    directory_release(segment.directory)
    file_cache_release(segment.files)
    mutex_destroy(&segment.lock)
    mutex_destroy(&segment.aborted_lock)
    free(segment)


cdef void segment_path(const LogSegment *segment, const char *suffix, char *out) noexcept nogil:
    log_path(out, PATH_BYTES, segment.directory.path, segment.base_offset, suffix)


cdef int32_t segment_create_file(LogSegment *segment) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int fd
    if segment.directory is NULL:
        return 0
    segment_path(segment, b".log", path)
    fd = io_open(path, True)
    if fd < 0:
        return fd
    return io_close(fd)


cdef int32_t segment_reserve(LogSegment *segment, int64_t size_bytes) noexcept nogil:
    cdef int32_t rc = 0
    cdef OpenFile *file
    if segment.directory is NULL:
        return 0
    file = segment_open(segment, &rc)
    if file is NULL:
        return rc
    rc = io_reserve(file.fd, size_bytes)
    open_file_release(file)
    return rc


cdef void segment_give_back(LogSegment *segment) noexcept nogil:
    cdef int32_t rc = 0
    cdef OpenFile *file
    if segment.directory is NULL:
        return
    file = segment_open(segment, &rc)
    if file is not NULL:
        io_truncate(file.fd, atomic_load(&segment.size_bytes))   # truncating to the same size frees later blocks
        open_file_release(file)


cdef void segment_note_append(LogSegment *segment, int64_t position, int64_t size_bytes, int64_t last_offset,
                              int64_t max_timestamp_ms, int64_t offset_of_max, int64_t index_interval) noexcept nogil:
    if position == 0:
        segment.first_timestamp_ms = max_timestamp_ms
    if max_timestamp_ms > atomic_load(&segment.max_timestamp_ms):
        atomic_store(&segment.offset_of_max, offset_of_max)
        atomic_store(&segment.max_timestamp_ms, max_timestamp_ms)
    if segment.bytes_since_index > index_interval:
        # Without an entry (disk full, no descriptor) the index is sparser, not wrong; the next append retries.
        if offset_index_append(&segment.offsets, last_offset, position) == 0:
            time_index_maybe_append(&segment.times, atomic_load(&segment.max_timestamp_ms),
                                    atomic_load(&segment.offset_of_max), False)
            segment.bytes_since_index = 0
    segment.bytes_since_index += size_bytes


cdef int32_t segment_seal(LogSegment *segment) noexcept nogil:
    cdef int32_t rc, second
    if atomic_load(&segment.max_timestamp_ms) >= 0:
        time_index_maybe_append(&segment.times, atomic_load(&segment.max_timestamp_ms),
                                atomic_load(&segment.offset_of_max), True)
    rc = index_seal(&segment.offsets)
    second = index_seal(&segment.times)
    return rc if rc != 0 else second


cdef int32_t segment_remove(LogSegment *segment, bint at_once) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef char renamed[PATH_BYTES]
    cdef const char *suffixes[4]
    cdef const char *deleted[4]
    cdef int32_t slot, rc, result = 0
    suffixes[0], suffixes[1], suffixes[2], suffixes[3] = b".log", b".index", b".timeindex", b".txnindex"
    deleted[0], deleted[1], deleted[2], deleted[3] = (
        b".log.deleted", b".index.deleted", b".timeindex.deleted", b".txnindex.deleted")
    # Set first: a thread that does not find the file by its old name checks the flag.
    atomic_store(&segment.is_deleted, 1)
    for slot in range(4 if segment.directory is not NULL else 0):
        segment_path(segment, suffixes[slot], path)
        segment_path(segment, deleted[slot], renamed)
        if at_once:
            io_unlink(renamed)
            rc = io_unlink(path)
        else:
            rc = io_rename(path, renamed)
        if rc != 0 and rc != -ENOENT and result == 0:
            result = rc
    if at_once:
        segment_close_file(segment)
    return result


# ------------------------------------------------------------------------------------------------------------ search

cdef int32_t segment_find(LogSegment *segment, OpenFile *file, int64_t offset, int64_t from_position, int64_t limit,
                          int64_t *position, BatchHeader *header) noexcept nogil:
    cdef char buffer[FIND_BYTES]
    cdef int64_t at = from_position, start = 0, filled = 0, total, want
    while at + BATCH_HEADER_BYTES <= limit:
        if at < start or at + BATCH_HEADER_BYTES > start + filled:
            want = limit - at if limit - at < FIND_BYTES else FIND_BYTES
            filled = io_read(file.fd, buffer, want, at)
            if filled < 0:
                return <int32_t>filled
            if filled < BATCH_HEADER_BYTES:
                return -1
            start = at
        if not batch_parse(buffer + (at - start), BATCH_HEADER_BYTES, header):
            return -1
        total = <int64_t>header.batch_length + 12
        if (header.magic != 2 or total < BATCH_HEADER_BYTES or at + total > limit
                or header.base_offset < segment.base_offset):
            return -1
        if header.base_offset + header.last_offset_delta >= offset:
            position[0] = at
            return 1
        at += total
    return 0 if at == limit else -1


cdef int32_t segment_find_indexed(LogSegment *segment, OpenFile *file, int64_t offset, int64_t limit, int64_t *position,
                                  BatchHeader *header) noexcept nogil:
    cdef int64_t entry_offset, entry_position
    cdef int32_t rc
    offset_index_lookup(&segment.offsets, offset, &entry_offset, &entry_position)
    if entry_position > 0 and entry_position < limit:
        # A sound entry points at the batch (or the first batch of an append) that ends at or before its offset.
        rc = segment_find(segment, file, segment.base_offset, entry_position, limit, position, header)
        if rc == 1 and header.base_offset <= entry_offset:
            rc = segment_find(segment, file, offset, entry_position, limit, position, header)
            if rc >= 0:
                return rc
    return segment_find(segment, file, offset, 0, limit, position, header)


# ------------------------------------------------------------------------------------------------------------ reader

cdef void batch_reader_begin(BatchReader *reader, OpenFile *file, int64_t position, int64_t limit,
                             int64_t next_offset) noexcept nogil:
    if reader.file is not NULL:
        open_file_release(reader.file)
    reader.file = file
    reader.at = reader.start = position
    reader.limit = limit
    reader.next_offset = next_offset
    reader.buffer.size = 0


cdef void batch_reader_free(BatchReader *reader) noexcept nogil:
    if reader.file is not NULL:
        open_file_release(reader.file)
    buffer_free(&reader.buffer)
    memset(reader, 0, sizeof(BatchReader))


cdef int32_t fill(BatchReader *reader, int64_t size_bytes) noexcept nogil:
    """Fill the buffer with size_bytes from reader.at on: 0, 1 the file ends before, or -errno."""
    cdef Buffer *buffer = &reader.buffer
    cdef int64_t got, want, skipped = reader.at - reader.start
    if skipped + size_bytes > buffer.size:
        if reader.at + size_bytes > reader.limit:
            return 1
        buffer.size = max(buffer.size - skipped, 0)
        if buffer.size > 0:
            memmove(buffer.data, buffer.data + skipped, buffer.size)
        reader.start = reader.at
        if not buffer_reserve(buffer, max(size_bytes, READER_BYTES) - buffer.size):
            return -ENOMEM
        want = min(reader.limit - reader.start, buffer.capacity) - buffer.size
        got = io_read(reader.file.fd, buffer.data + buffer.size, want, reader.start + buffer.size)
        if got < 0:
            return <int32_t>got
        buffer.size += got
        if buffer.size < size_bytes:
            return 1
    reader.batch = reader.buffer.data + (reader.at - reader.start)
    return 0


cdef int32_t batch_reader_header(BatchReader *reader) noexcept nogil:
    cdef int32_t rc = fill(reader, BATCH_HEADER_BYTES)
    if rc == 0:
        batch_parse(reader.batch, BATCH_HEADER_BYTES, &reader.header)
    return rc


cdef int32_t batch_reader_body(BatchReader *reader) noexcept nogil:
    return fill(reader, <int64_t>reader.header.batch_length + 12)


cdef void batch_reader_advance(BatchReader *reader) noexcept nogil:
    reader.at += <int64_t>reader.header.batch_length + 12
    reader.next_offset = reader.header.base_offset + reader.header.last_offset_delta + 1


# -------------------------------------------------------------------------------------------------------------- view

cdef SegmentList *segment_list_new(int32_t count) noexcept nogil:
    cdef SegmentList *segments = <SegmentList *>calloc(1, sizeof(SegmentList))
    if segments is NULL:
        return NULL
    segments.segments = <LogSegment **>calloc(count if count > 0 else 1, sizeof(LogSegment *))
    if segments.segments is NULL:
        free(segments)
        return NULL
    atomic_store(&segments.refs, 1)
    segments.count = count
    return segments


cdef SegmentList *segment_list_retain(SegmentList *segments) noexcept nogil:
    atomic_add_fetch(&segments.refs, 1)
    return segments


cdef void segment_list_release(SegmentList *segments) noexcept nogil:
    cdef int32_t slot
    if segments is NULL or atomic_add_fetch(&segments.refs, -1) != 0:
        return
    for slot in range(segments.count):
        segment_release(segments.segments[slot])
    free(segments.segments)
    free(segments)


cdef int32_t segment_list_floor(const SegmentList *segments, int64_t offset) noexcept nogil:
    cdef int32_t low = 0, high = segments.count - 1, middle
    while low <= high:
        middle = low + (high - low) // 2
        if segments.segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle - 1
    return low - 1


@cython.final
cdef class OpenFileCache:
    def __cinit__(self, int64_t capacity=0):
        if capacity < 0:
            raise ValueError(f"capacity must be >= 0 (0: a quarter of the descriptor limit), got {capacity}")
        self.files = file_cache_new(capacity)
        if self.files is NULL:
            raise MemoryError

    def __dealloc__(self):
        file_cache_release(self.files)

    @property
    def capacity(self):
        return self.files.capacity

    @property
    def open_files(self):
        return guarded_value(&self.files.lock, &self.files.open_files)


process_cache = file_cache_new(0)
if process_cache is NULL:
    raise MemoryError
