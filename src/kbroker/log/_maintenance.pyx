# cython: freethreading_compatible=True
"""Roll, retention and flush of one partition: UnifiedLog.maybeRoll, deleteOldSegments and flush, with readers left
alone.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.stdio cimport snprintf
from libc.string cimport memset, strdup, strrchr
from kbroker._core.requests.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport (
    atomic_load, atomic_store, atomic_swap, cond_broadcast, cond_wait, mutex_lock, mutex_unlock,
)
from kbroker.log._config cimport LogConfig
from kbroker.log._failures cimport FAILED_SYNC, count_failure
from kbroker.log.segment._index cimport index_is_full
from kbroker.log._partition cimport DeletedSegment, Partition, partition_hook
from kbroker.log._posix cimport (
    EIO, EMFILE, ENFILE, ENOMEM, PATH_BYTES, io_modified_ms, io_sync, io_sync_directory, io_unlink, io_write_file,
    log_path,
)
from kbroker.log.producers._producer_snapshot cimport producer_state_encode_snapshot, producer_state_store_snapshot
from kbroker.log.producers._producer_state cimport (
    producer_state_first_unstable_offset, producer_state_set_high_watermark,
)
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_create_file, segment_give_back, segment_list_new, segment_list_release,
    segment_list_retain, segment_new, segment_open, segment_path, segment_release, segment_remove, segment_reserve,
    segment_retain, segment_seal,
)

cdef enum:
    MAX_INT32 = 2147483647


cdef SegmentList *view_acquire(Partition *partition) noexcept nogil:
    cdef SegmentList *view
    mutex_lock(&partition.view_lock)
    view = segment_list_retain(partition.view)
    mutex_unlock(&partition.view_lock)
    return view


cdef void view_publish(Partition *partition, SegmentList *segments) noexcept nogil:
    cdef SegmentList *old
    mutex_lock(&partition.view_lock)
    old = partition.view
    partition.view = segments
    mutex_unlock(&partition.view_lock)
    partition.active = segments.segments[segments.count - 1]
    segment_list_release(old)


cdef bint advance_watermarks(Partition *partition) noexcept nogil:
    """The high watermark is the log end, unless so much is unflushed that log.flush.interval.messages holds it back."""
    cdef int64_t end = atomic_load(&partition.log_end), flushed = atomic_load(&partition.flushed)
    cdef int64_t old = atomic_load(&partition.high_watermark), mark, unstable
    mark = end if end - flushed < partition.config.flush_messages else flushed
    if mark < old:
        mark = old
    producer_state_set_high_watermark(partition.producers, mark)
    unstable = producer_state_first_unstable_offset(partition.producers)
    atomic_store(&partition.high_watermark, mark)
    atomic_store(&partition.last_stable, unstable if 0 <= unstable < mark else mark)
    return mark > old


cdef void call_hook(Partition *partition, bint dirty) noexcept nogil:
    cdef partition_hook hook
    cdef void *arg
    mutex_lock(&partition.view_lock)
    hook = partition.on_dirty if dirty else partition.on_high_watermark
    arg = partition.on_dirty_arg if dirty else partition.on_high_watermark_arg
    mutex_unlock(&partition.view_lock)
    if hook is not NULL:
        hook(arg, partition)


# -------------------------------------------------------------------------------------------------------------- roll

cdef bint should_roll(Partition *partition, int64_t size_bytes, int64_t max_timestamp_ms, int64_t last_offset,
                      int64_t now_ms) noexcept nogil:
    cdef LogSegment *active = partition.active
    cdef int64_t size = atomic_load(&active.size_bytes), waited
    if size > partition.config.segment_bytes - size_bytes:
        return True
    if size > 0:
        if active.first_timestamp_ms >= 0:
            waited = max_timestamp_ms - active.first_timestamp_ms
        else:
            waited = now_ms - active.created_ms
        if waited > partition.config.segment_ms - partition.jitter_ms:
            return True
    if last_offset - active.base_offset > MAX_INT32:
        return True
    return index_is_full(&active.offsets) or index_is_full(&active.times)


cdef int64_t next_jitter(Partition *partition, int64_t now_ms, int64_t base) noexcept nogil:
    cdef uint64_t x = <uint64_t>now_ms * 6364136223846793005ULL + <uint64_t>base * 1442695040888963407ULL
    x += <uint64_t>partition.index
    if partition.config.segment_jitter_ms <= 0:
        return 0
    x ^= x >> 33
    x *= 0xff51afd7ed558ccdULL
    x ^= x >> 33
    return <int64_t>(x % <uint64_t>partition.config.segment_jitter_ms)


cdef void take_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil:
    cdef int64_t end = atomic_load(&partition.log_end)
    if partition.directory is NULL or partition.snapshot_offset == end or snapshot.data is not NULL:
        return
    if end == partition.view.segments[0].base_offset:
        return                                  # nothing was ever written: thousands of such partitions close at once
    snapshot.data = producer_state_encode_snapshot(partition.producers, &snapshot.size_bytes)
    snapshot.offset = end
    if snapshot.data is not NULL:
        partition.snapshot_offset = end


cdef void store_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil:
    cdef char path[PATH_BYTES]
    if snapshot.data is not NULL:
        log_path(path, PATH_BYTES, partition.directory.path, snapshot.offset, b".snapshot")
        # lost: recovery replays from an older one
        producer_state_store_snapshot(path, snapshot.data, snapshot.size_bytes)
        free(snapshot.data)
        snapshot.data = NULL


cdef int32_t roll_segment(Partition *partition, int64_t new_base, int64_t now_ms,
                          PendingSnapshot *snapshot) noexcept nogil:
    cdef SegmentList *old = partition.view       # ours to read: only the append lock's holder replaces it
    cdef SegmentList *grown
    cdef LogSegment *fresh
    cdef int32_t slot, keep = old.count, rc
    cdef LogSegment *active = partition.active
    if active.base_offset == new_base:
        if atomic_load(&active.size_bytes) > 0:
            return -EIO
        active.created_ms = now_ms              # an empty one with the same base serves on
        return 0
    fresh = segment_new(partition.directory, partition.files, new_base, partition.config.segment_index_bytes, True,
                        now_ms)
    grown = segment_list_new(keep + 1)
    if fresh is NULL or grown is NULL:
        segment_release(fresh)
        segment_list_release(grown)
        return -ENOMEM
    rc = segment_create_file(fresh)
    if rc == 0 and partition.config.preallocate:
        rc = segment_reserve(fresh, partition.config.segment_bytes)
    if rc == 0:
        rc = segment_seal(active)
    if rc != 0:
        segment_release(fresh)
        segment_list_release(grown)
        return rc
    for slot in range(keep):
        grown.segments[slot] = segment_retain(old.segments[slot])
    grown.segments[keep] = fresh
    if partition.config.preallocate:
        segment_give_back(active)
    take_snapshot(partition, snapshot)
    view_publish(partition, grown)
    atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE)
    partition.jitter_ms = next_jitter(partition, now_ms, new_base)
    return 0


cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef char *text
    cdef int64_t room, used
    cdef int32_t slot, rc
    if partition.directory is NULL:
        return 0
    room = 64 + 40 * <int64_t>partition.epoch_count
    text = <char *>malloc(room)
    if text is NULL:
        return -ENOMEM
    used = snprintf(text, room, b"0\n%d\n", partition.epoch_count)
    for slot in range(partition.epoch_count):
        used += snprintf(text + used, room - used, b"%d %lld\n", partition.epochs[slot],
                         <long long>partition.epoch_starts[slot])
    snprintf(path, PATH_BYTES, b"%s/leader-epoch-checkpoint", partition.directory.path)
    rc = io_write_file(path, text, used)
    free(text)
    return rc


cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil:
    """Under the append lock: remember where an epoch began. Later files are written from this list."""
    cdef int32_t count = partition.epoch_count
    cdef int32_t *epochs
    cdef int64_t *starts
    if count > 0 and partition.epochs[count - 1] >= epoch:
        return 0
    if count & (count - 1) == 0:
        epochs = <int32_t *>realloc(partition.epochs, <size_t>(count * 2 if count > 0 else 1) * sizeof(int32_t))
        if epochs is NULL:
            return -ENOMEM
        partition.epochs = epochs
        starts = <int64_t *>realloc(partition.epoch_starts, <size_t>(count * 2 if count > 0 else 1) * sizeof(int64_t))
        if starts is NULL:
            return -ENOMEM
        partition.epoch_starts = starts
    partition.epochs[count] = epoch
    partition.epoch_starts[count] = start_offset
    partition.epoch_count = count + 1
    return 1


# --------------------------------------------------------------------------------------------------------- retention

cdef int64_t largest_timestamp(LogSegment *segment, int64_t now_ms) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int64_t known = atomic_load(&segment.max_timestamp_ms)
    if known >= 0:
        return known
    if segment.directory is NULL:
        return segment.created_ms
    segment_path(segment, b".log", path)
    known = io_modified_ms(path)
    return known if known >= 0 else now_ms


cdef int32_t deletable_count(Partition *partition, int64_t now_ms) noexcept nogil:
    """How many of the oldest segments each rule in turn lets go (start offset, size, age); the largest of the three."""
    cdef SegmentList *view = partition.view
    cdef LogConfig *config = &partition.config
    cdef int64_t mark = atomic_load(&partition.high_watermark), start = atomic_load(&partition.log_start)
    cdef int64_t total = 0, diff, end, size
    cdef int32_t slot, rule, best = 0
    cdef bint last
    for slot in range(view.count):
        total += atomic_load(&view.segments[slot].size_bytes)
    for rule in range(3):
        if rule > 0 and not config.delete_by_age:
            break
        if (rule == 1 and config.retention_bytes < 0) or (rule == 2 and config.retention_ms < 0):
            continue
        diff = total - config.retention_bytes
        for slot in range(view.count):
            last = slot == view.count - 1
            end = atomic_load(&partition.log_end) if last else view.segments[slot + 1].base_offset
            size = atomic_load(&view.segments[slot].size_bytes)
            if mark < end or (last and size == 0):
                break
            if rule == 0:
                if last or end > start:
                    break
            elif rule == 1:
                if diff - size < 0:
                    break
                diff -= size
            elif not now_ms - largest_timestamp(view.segments[slot], now_ms) > config.retention_ms:
                break
            if slot + 1 > best:
                best = slot + 1
    return best


cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil:
    cdef SegmentList *kept
    cdef SegmentList *old
    cdef DeletedSegment *entry
    cdef LogSegment *segment
    cdef PendingSnapshot snapshot
    cdef char path[PATH_BYTES]
    cdef int32_t count, slot, rc, result
    memset(&snapshot, 0, sizeof(snapshot))
    mutex_lock(&partition.append_lock)
    if atomic_load(&partition.closed) or atomic_load(&partition.damage_offset) != INT64_MAX:
        mutex_unlock(&partition.append_lock)     # a damaged log keeps everything: it may be needed for the repair
        return 0
    count = deletable_count(partition, now_ms)
    result = count
    if count > 0 and count == partition.view.count:
        rc = roll_segment(partition, atomic_load(&partition.log_end), now_ms, &snapshot)
        if rc != 0:                             # a full disk has no room for a new one: the others go all the same
            count -= 1
            result = count if count > 0 else rc
    if count > 0:
        old = partition.view
        kept = segment_list_new(old.count - count)
        if kept is NULL:
            result = -ENOMEM
        else:
            for slot in range(kept.count):
                kept.segments[slot] = segment_retain(old.segments[slot + count])
            if atomic_load(&partition.log_start) < kept.segments[0].base_offset:
                # first: readers then say out of range
                atomic_store(&partition.log_start, kept.segments[0].base_offset)
            for slot in range(count):
                segment = segment_retain(old.segments[slot])
                segment_remove(segment, False)
                if partition.directory is not NULL:
                    segment_path(segment, b".snapshot", path)
                    io_unlink(path)
                entry = <DeletedSegment *>calloc(1, sizeof(DeletedSegment))
                if entry is NULL:
                    segment_release(segment)     # the file stays under its .deleted name until the next opening
                    continue
                entry.segment = segment
                entry.deleted_ms = now_ms
                entry.next = partition.deleted
                partition.deleted = entry
            view_publish(partition, kept)
    mutex_unlock(&partition.append_lock)
    store_snapshot(partition, &snapshot)
    return result


cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil:
    """Remove files whose delay is over; the number of segments removed."""
    cdef DeletedSegment *due = NULL
    cdef DeletedSegment *entry
    cdef DeletedSegment **link
    cdef int32_t count = 0
    mutex_lock(&partition.append_lock)
    link = &partition.deleted
    while link[0] is not NULL:
        entry = link[0]
        if all_of_them or now_ms - entry.deleted_ms >= partition.config.file_delete_delay_ms:
            link[0] = entry.next
            entry.next = due
            due = entry
        else:
            link = &entry.next
    mutex_unlock(&partition.append_lock)
    while due is not NULL:                      # unlinking a big file takes its time: no lock
        entry = due
        due = entry.next
        segment_remove(entry.segment, True)
        segment_release(entry.segment)
        free(entry)
        count += 1
    return count


# ------------------------------------------------------------------------------------------------------------- flush

cdef int32_t sync_names(Partition *partition) noexcept nogil:
    """The folder, and its parent when the folder itself is new."""
    cdef int64_t names = atomic_swap(&partition.new_names, 0)
    cdef char *parent
    cdef char *slash
    cdef int32_t rc = 0
    if names == 0 or partition.directory is NULL:
        return 0
    rc = io_sync_directory(partition.directory.path)
    if rc == 0 and names & NEW_FOLDER:
        parent = strdup(partition.directory.path)
        if parent is NULL:
            rc = -ENOMEM
        else:
            slash = strrchr(parent, c'/')
            if slash is not NULL and slash != parent:
                slash[0] = 0
                rc = io_sync_directory(parent)
            free(parent)
    if rc != 0:
        atomic_store(&partition.new_names, names | atomic_load(&partition.new_names))
    return rc


cdef int32_t sync_files(Partition *partition, int64_t from_offset, int64_t up_to) noexcept nogil:
    cdef SegmentList *view = view_acquire(partition)
    cdef OpenFile *file
    cdef int32_t slot, rc = 0
    for slot in range(view.count):
        if view.segments[slot].base_offset >= up_to:
            break
        if slot + 1 < view.count and view.segments[slot + 1].base_offset <= from_offset:
            continue
        if atomic_load(&view.segments[slot].is_deleted):
            continue                            # retention took it: nobody reads it again
        file = segment_open(view.segments[slot], &rc)
        if file is NULL:
            if atomic_load(&view.segments[slot].is_deleted):
                rc = 0
                continue
            break
        rc = io_sync(file.fd)
        open_file_release(file)
        if rc != 0:
            rc = -EIO                           # whatever it says: a sync was tried, and is not to be tried again
            break
    segment_list_release(view)
    if rc == 0:
        rc = sync_names(partition)
    if atomic_load(&partition.sync_fault) != 0:
        rc = -<int32_t>atomic_load(&partition.sync_fault)
    return rc


cdef int32_t flush_log(Partition *partition, int64_t up_to) noexcept nogil:
    cdef int64_t target, flushed
    cdef int32_t rc = 0
    cdef bint moved = False
    while True:
        mutex_lock(&partition.flush_lock)
        while partition.is_flushing:
            cond_wait(&partition.flush_done, &partition.flush_lock)
        flushed = atomic_load(&partition.flushed)
        target = atomic_load(&partition.log_end)
        if 0 <= up_to < target:
            target = up_to
        if atomic_load(&partition.is_failed):
            rc = -EIO
        if rc != 0 or target <= flushed:
            mutex_unlock(&partition.flush_lock)
            return rc
        partition.is_flushing = True
        mutex_unlock(&partition.flush_lock)
        break
    if partition.directory is not NULL:
        rc = sync_files(partition, flushed, target)
    if rc != 0:
        count_failure(partition, FAILED_SYNC, -rc)
    if rc == 0:
        mutex_lock(&partition.append_lock)
        if target > atomic_load(&partition.log_end):
            target = atomic_load(&partition.log_end)            # truncated meanwhile
        if target > atomic_load(&partition.flushed):
            atomic_store(&partition.flushed, target)
        moved = advance_watermarks(partition)
        mutex_unlock(&partition.append_lock)
    elif rc != -ENOMEM and rc != -EMFILE and rc != -ENFILE:     # nothing was tried, a later flush may succeed
        # the kernel may have dropped the pages: a second sync would lie
        atomic_store(&partition.is_failed, 1)
    mutex_lock(&partition.flush_lock)
    partition.is_flushing = False
    cond_broadcast(&partition.flush_done)
    mutex_unlock(&partition.flush_lock)
    return rc if rc != 0 else (1 if moved else 0)
