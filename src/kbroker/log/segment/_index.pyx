"""Offset and time index of a segment: Kafka's OffsetIndex and TimeIndex over mapped files."""
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memset
from kbroker._core.codec.bytes cimport load_i32, load_i64, store_32, store_64
from kbroker._core.sync cimport Mutex, atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._posix cimport (
    EIO, ENOENT, ENOMEM, PATH_BYTES, io_close, io_fd_size, io_map, io_open, io_path_size, io_read, io_truncate,
    io_unlink, io_unmap, io_write, log_path,
)

cdef enum:
    RESERVE_BYTES = 4096


cdef inline void index_path(const Index *index, char *out) noexcept nogil:
    log_path(out, PATH_BYTES, index.directory, index.base_offset,
             b".index" if index.entry_bytes == OFFSET_ENTRY_BYTES else b".timeindex")


cdef void index_init(Index *index, const char *directory, int64_t base_offset, int32_t entry_bytes, int64_t max_bytes,
                     bint writable, Mutex *lock) noexcept nogil:
    index.directory = directory
    index.base_offset = base_offset
    index.entry_bytes = entry_bytes
    index.writable = writable
    index.max_entries = max_bytes // entry_bytes
    index.map_bytes = 0
    index.reserved_bytes = 0
    index.lock = lock
    atomic_store(&index.map, 0)
    atomic_store(&index.entries, 0)


cdef void index_destroy(Index *index) noexcept nogil:
    cdef int64_t address = atomic_load(&index.map)
    if address != 0:
        io_unmap(<char *>address, index.map_bytes)
        atomic_store(&index.map, 0)


cdef int32_t index_ensure(Index *index) noexcept nogil:
    """Map the file outside the lock, for which reads wait: a file of a slow disk takes long to create or resize."""
    cdef char path[PATH_BYTES]
    cdef int fd = -1
    cdef int64_t size, want
    cdef char *address = NULL
    cdef int32_t rc = 0
    cdef bint writable, is_published = False, is_sealed
    if atomic_load(&index.map) != 0:
        return 0
    mutex_lock(index.lock)
    writable = index.writable
    mutex_unlock(index.lock)
    want = (index.max_entries if writable else atomic_load(&index.entries)) * index.entry_bytes
    if want <= 0:
        return -ENOENT
    if index.directory is not NULL:
        index_path(index, path)
        fd = io_open(path, writable)
        if fd < 0:
            return fd
        size = io_fd_size(fd)
        if size < 0:
            rc = <int32_t>size
        elif writable and size != want:
            rc = io_truncate(fd, want)
        elif size < want:
            rc = -EIO
    if rc == 0:
        address = io_map(fd, want, writable or fd < 0)
        if address is NULL:
            rc = -ENOMEM
    mutex_lock(index.lock)
    if address is not NULL and atomic_load(&index.map) == 0:
        index.map_bytes = want
        atomic_store(&index.map, <int64_t>address)
        is_published = True
    is_sealed = writable and not index.writable
    mutex_unlock(index.lock)
    if is_sealed and fd >= 0:
        io_truncate(fd, atomic_load(&index.entries) * index.entry_bytes)    # again, as index_seal did
    if fd >= 0:
        io_close(fd)
    if address is not NULL and not is_published:
        io_unmap(address, want)                 # another thread mapped it first
    return rc


cdef int32_t index_load(Index *index, int64_t end_offset, int64_t file_bytes) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef char first[TIME_ENTRY_BYTES]
    cdef char last[TIME_ENTRY_BYTES]
    cdef int64_t size, count, offset
    cdef int fd
    cdef bint ok, is_repeated
    if index.directory is NULL:
        return INDEX_MISSING
    index_path(index, path)
    size = io_path_size(path)
    if size == -ENOENT:
        return INDEX_MISSING
    if size < 0:
        return <int32_t>size
    count = size // index.entry_bytes
    if size % index.entry_bytes != 0 or (index.writable and count > index.max_entries):
        return INDEX_CORRUPT
    if count > 0:
        fd = io_open(path, False)
        if fd < 0:
            return fd
        ok = (io_read(fd, first, index.entry_bytes, 0) == index.entry_bytes
              and io_read(fd, last, index.entry_bytes, (count - 1) * index.entry_bytes) == index.entry_bytes)
        io_close(fd)
        if not ok:
            return -EIO
        if index.entry_bytes == OFFSET_ENTRY_BYTES:
            offset = load_i32(last)
            if (load_i32(last + 4) < 0 or load_i32(last + 4) >= file_bytes or load_i32(first) < 0
                    or (count > 1 and offset <= load_i32(first))):
                return INDEX_CORRUPT
        else:
            offset = load_i32(last + 8)
            is_repeated = count > 1 and load_i64(last) == load_i64(first)
            if load_i64(last) < load_i64(first) or load_i64(first) < -1 or is_repeated:
                return INDEX_CORRUPT
        if offset < 0 or (end_offset >= 0 and index.base_offset + offset >= end_offset):
            return INDEX_CORRUPT
    index.reserved_bytes = size
    atomic_store(&index.entries, count)
    return 0


cdef int32_t index_reset(Index *index) noexcept nogil:
    """Empty the index and remove its file. Only during opening, while there are no readers."""
    cdef char path[PATH_BYTES]
    cdef int rc
    atomic_store(&index.entries, 0)
    index.reserved_bytes = 0
    index_destroy(index)
    index.map_bytes = 0
    if index.directory is NULL:
        return 0
    index_path(index, path)
    rc = io_unlink(path)
    return 0 if rc == -ENOENT else rc


cdef int32_t index_seal(Index *index) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int fd, rc
    mutex_lock(index.lock)
    index.writable = False
    mutex_unlock(index.lock)
    if index.directory is NULL:
        return 0
    index_path(index, path)
    fd = io_open(path, True)
    if fd < 0:
        return fd
    rc = io_truncate(fd, atomic_load(&index.entries) * index.entry_bytes)
    io_close(fd)
    return rc


cdef bint index_is_full(Index *index) noexcept nogil:
    cdef int64_t usable = index.max_entries - (1 if index.entry_bytes == TIME_ENTRY_BYTES else 0)
    return atomic_load(&index.entries) >= usable


cdef int32_t index_reserve(Index *index, int64_t end_bytes) noexcept nogil:
    """Allocate blocks of the file up to end_bytes, so that a store into the mapping cannot meet a full disk."""
    cdef char path[PATH_BYTES]
    cdef char zeros[RESERVE_BYTES]
    cdef int64_t target, chunk, done
    cdef int fd
    if index.directory is NULL or end_bytes <= index.reserved_bytes:
        return 0
    target = (end_bytes + RESERVE_BYTES - 1) // RESERVE_BYTES * RESERVE_BYTES
    if target > index.map_bytes:
        target = index.map_bytes
    index_path(index, path)
    fd = io_open(path, True)
    if fd < 0:
        return fd
    memset(zeros, 0, RESERVE_BYTES)
    while index.reserved_bytes < target:
        chunk = target - index.reserved_bytes
        if chunk > RESERVE_BYTES:
            chunk = RESERVE_BYTES
        done = io_write(fd, zeros, chunk, index.reserved_bytes)
        if done < 0:
            io_close(fd)
            return <int32_t>done
        index.reserved_bytes += done
    io_close(fd)
    return 0


cdef inline int64_t key_at(const Index *index, const char *entries, int64_t slot) noexcept nogil:
    if index.entry_bytes == OFFSET_ENTRY_BYTES:
        return index.base_offset + load_i32(entries + slot * OFFSET_ENTRY_BYTES)
    return load_i64(entries + slot * TIME_ENTRY_BYTES)


cdef int64_t floor_slot(Index *index, int64_t target, int64_t count) noexcept nogil:
    """Return the slot of the largest key <= target among the first count entries, -1: none (or unreadable index)."""
    cdef const char *entries
    cdef int64_t low = 0, high = count - 1, middle
    if count <= 0 or index_ensure(index) != 0:
        return -1
    entries = <const char *>atomic_load(&index.map)
    while low <= high:
        middle = low + (high - low) // 2
        if key_at(index, entries, middle) <= target:
            low = middle + 1
        else:
            high = middle - 1
    return low - 1


cdef void index_truncate(Index *index, int64_t offset) noexcept nogil:
    cdef int64_t count = atomic_load(&index.entries)
    cdef int32_t at = 0 if index.entry_bytes == OFFSET_ENTRY_BYTES else 8
    cdef const char *entries
    if count == 0 or index_ensure(index) != 0:
        return
    entries = <const char *>atomic_load(&index.map)
    while count > 0 and index.base_offset + load_i32(entries + (count - 1) * index.entry_bytes + at) >= offset:
        count -= 1
    atomic_store(&index.entries, count)


cdef int32_t offset_index_append(Index *index, int64_t offset, int64_t position) noexcept nogil:
    cdef int64_t count = atomic_load(&index.entries)
    cdef int64_t relative = offset - index.base_offset
    cdef char *entry
    cdef int32_t rc
    if count >= index.max_entries:
        return INDEX_FULL
    if relative < 0 or relative > INT32_MAX or position < 0 or position > INT32_MAX:
        return INDEX_OUT_OF_ORDER
    rc = index_ensure(index)
    if rc != 0:
        return rc
    if count > 0 and offset <= key_at(index, <const char *>atomic_load(&index.map), count - 1):
        return INDEX_OUT_OF_ORDER
    rc = index_reserve(index, (count + 1) * OFFSET_ENTRY_BYTES)
    if rc != 0:
        return rc
    entry = <char *>atomic_load(&index.map) + count * OFFSET_ENTRY_BYTES
    store_32(entry, <int32_t>relative)
    store_32(entry + 4, <int32_t>position)
    atomic_store(&index.entries, count + 1)
    return 0


cdef void offset_index_lookup(Index *index, int64_t target, int64_t *offset, int64_t *position) noexcept nogil:
    cdef int64_t slot = floor_slot(index, target, atomic_load(&index.entries))
    cdef const char *entry
    offset[0] = index.base_offset
    position[0] = 0
    if slot >= 0:
        entry = <const char *>atomic_load(&index.map) + slot * OFFSET_ENTRY_BYTES
        offset[0] = index.base_offset + load_i32(entry)
        position[0] = load_i32(entry + 4)


cdef int64_t offset_index_offset_after(Index *index, int64_t position) noexcept nogil:
    cdef int64_t count = atomic_load(&index.entries), low = 0, high, middle
    cdef const char *entries
    if count == 0 or index_ensure(index) != 0:
        return -1
    entries = <const char *>atomic_load(&index.map)
    high = count
    while low < high:                       # find the first slot whose position >= the given one
        middle = low + (high - low) // 2
        if load_i32(entries + middle * OFFSET_ENTRY_BYTES + 4) >= position:
            high = middle
        else:
            low = middle + 1
    if low == count:
        return -1
    return index.base_offset + load_i32(entries + low * OFFSET_ENTRY_BYTES)


cdef bint time_index_last(Index *index, int64_t *timestamp_ms, int64_t *offset) noexcept nogil:
    cdef int64_t count = atomic_load(&index.entries)
    cdef const char *entry
    timestamp_ms[0] = -1
    offset[0] = index.base_offset
    if count == 0:
        return False
    if index_ensure(index) != 0:
        return False
    entry = <const char *>atomic_load(&index.map) + (count - 1) * TIME_ENTRY_BYTES
    timestamp_ms[0] = load_i64(entry)
    offset[0] = index.base_offset + load_i32(entry + 8)
    return True


cdef int32_t time_index_maybe_append(Index *index, int64_t timestamp_ms, int64_t offset,
                                     bint is_closing) noexcept nogil:
    cdef int64_t count = atomic_load(&index.entries), last_timestamp, last_offset
    cdef int64_t relative = offset - index.base_offset
    cdef char *entry
    cdef int32_t rc
    if count >= index.max_entries or (not is_closing and index_is_full(index)):
        return INDEX_FULL
    if relative < 0 or relative > INT32_MAX:
        return INDEX_OUT_OF_ORDER
    if time_index_last(index, &last_timestamp, &last_offset):
        if offset < last_offset or timestamp_ms < last_timestamp:
            return INDEX_OUT_OF_ORDER
    if timestamp_ms <= last_timestamp:
        return 0                            # not newer than the last entry; an empty index counts as -1
    rc = index_ensure(index)
    if rc != 0:
        return rc
    rc = index_reserve(index, (count + 1) * TIME_ENTRY_BYTES)
    if rc != 0:
        return rc
    entry = <char *>atomic_load(&index.map) + count * TIME_ENTRY_BYTES
    store_64(entry, timestamp_ms)
    store_32(entry + 8, <int32_t>relative)
    atomic_store(&index.entries, count + 1)
    return 0


cdef void time_index_lookup(Index *index, int64_t target_ms, int64_t *timestamp_ms, int64_t *offset) noexcept nogil:
    cdef int64_t slot = floor_slot(index, target_ms, atomic_load(&index.entries))
    cdef const char *entry
    timestamp_ms[0] = -1
    offset[0] = index.base_offset
    if slot >= 0:
        entry = <const char *>atomic_load(&index.map) + slot * TIME_ENTRY_BYTES
        timestamp_ms[0] = load_i64(entry)
        offset[0] = index.base_offset + load_i32(entry + 8)
