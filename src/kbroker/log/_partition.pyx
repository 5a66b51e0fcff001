"""A partition's lifetime, offsets, published view of its segments, and leader epochs.

Append: _append; read: _read; roll: _roll; retention: _retention; watermarks and flush: _watermarks; opening: _recovery;
Python's handle: _partition_log.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from kbroker._core.clock cimport clock_release
from kbroker._core.codec.crc32c cimport crc32c
from kbroker._core.containers.array cimport array_reserve
from kbroker._core.sync cimport atomic_add_fetch, atomic_load, cond_destroy, mutex_destroy, mutex_lock, mutex_unlock
from kbroker.log._posix cimport ENOMEM, PATH_BYTES, io_write_file
from kbroker.log.producers._producer_state cimport producer_state_free
from kbroker.log.segment._segment cimport (
    SegmentList, directory_release, file_cache_release, segment_list_release, segment_list_retain, segment_release,
)
from kbroker.log.segment._txn_index cimport TxnSum, txn_index_sum


cdef Partition *partition_retain(Partition *partition) noexcept nogil:
    atomic_add_fetch(&partition.refs, 1)
    return partition


cdef void partition_release(Partition *partition) noexcept nogil:
    cdef DeletedSegment *entry
    if partition is NULL or atomic_add_fetch(&partition.refs, -1) != 0:
        return
    while partition.deleted is not NULL:
        entry = partition.deleted
        partition.deleted = entry.next
        segment_release(entry.segment)
        free(entry)
    segment_list_release(partition.view)
    producer_state_free(partition.producers)
    directory_release(partition.directory)
    file_cache_release(partition.files)
    clock_release(partition.clock)
    free(partition.epochs)
    free(partition.epoch_starts)
    free(partition.damage_text)
    free(partition.cut_text)
    mutex_destroy(&partition.append_lock)
    mutex_destroy(&partition.view_lock)
    mutex_destroy(&partition.flush_lock)
    cond_destroy(&partition.flush_done)
    free(partition)


cdef bint partition_is_closed(Partition *partition) noexcept nogil:
    return atomic_load(&partition.closed) != 0


cdef int64_t partition_log_end_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.log_end)


cdef int64_t partition_flushed_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.flushed)


cdef int32_t partition_leader_epoch(Partition *partition) noexcept nogil:
    return <int32_t>atomic_load(&partition.leader_epoch)


cdef void partition_set_high_watermark_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil:
    mutex_lock(&partition.view_lock)
    partition.on_high_watermark = hook
    partition.on_high_watermark_arg = arg
    mutex_unlock(&partition.view_lock)


cdef void partition_set_dirty_hook(Partition *partition, partition_hook hook, void *arg) noexcept nogil:
    mutex_lock(&partition.view_lock)
    partition.on_dirty = hook
    partition.on_dirty_arg = arg
    mutex_unlock(&partition.view_lock)


cdef void call_hook(Partition *partition, bint dirty) noexcept nogil:
    cdef partition_hook hook
    cdef void *arg
    mutex_lock(&partition.view_lock)
    hook = partition.on_dirty if dirty else partition.on_high_watermark
    arg = partition.on_dirty_arg if dirty else partition.on_high_watermark_arg
    mutex_unlock(&partition.view_lock)
    if hook is not NULL:
        hook(arg, partition)


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


# ----------------------------------------------------------------------------------------------------- leader epochs

cdef int32_t write_leader_epochs(Partition *partition) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef char *text
    cdef int64_t capacity, used
    cdef int32_t slot, rc
    if partition.directory is NULL:
        return 0
    capacity = 64 + 40 * <int64_t>partition.epoch_count
    text = <char *>malloc(capacity)
    if text is NULL:
        return -ENOMEM
    used = snprintf(text, capacity, b"0\n%d\n", partition.epoch_count)
    for slot in range(partition.epoch_count):
        used += snprintf(text + used, capacity - used, b"%d %lld\n", partition.epochs[slot],
                         <long long>partition.epoch_starts[slot])
    snprintf(path, PATH_BYTES, b"%s/leader-epoch-checkpoint", partition.directory.path)
    rc = io_write_file(path, text, used)
    free(text)
    return rc


cdef int32_t note_leader_epoch(Partition *partition, int32_t epoch, int64_t start_offset) noexcept nogil:
    """Remember the start of an epoch, under the append lock. Later files are written from this list."""
    cdef int32_t count = partition.epoch_count
    if count > 0 and partition.epochs[count - 1] >= epoch:
        return 0
    if not array_reserve(&partition.epochs, count) or not array_reserve(&partition.epoch_starts, count):
        return -ENOMEM
    partition.epochs[count] = epoch
    partition.epoch_starts[count] = start_offset
    partition.epoch_count = count + 1
    return 1


# -------------------------------------------------------------------------------------------------- transaction indexes

cdef void write_txn_checkpoint(Partition *partition, bint with_active) noexcept nogil:
    """Write txnindex-checkpoint, without a sync: a start compares it, so losing it only costs a scan.

    Content: version, end (segments based at or past it are not covered), then base, entries and CRC of each covered
    index that is not empty.
    """
    cdef SegmentList *view = partition.view
    cdef int32_t slot, covered = view.count if with_active else view.count - 1
    cdef int64_t capacity = 64 + 64 * <int64_t>covered, used, end, crc
    cdef char path[PATH_BYTES]
    cdef char *text
    cdef TxnSum found
    if partition.directory is NULL or atomic_load(&partition.damage_offset) != INT64_MAX:
        return
    text = <char *>malloc(capacity)
    if text is NULL:
        return
    end = view.segments[covered].base_offset if covered < view.count else atomic_load(&partition.log_end)
    used = snprintf(text, capacity, b"0\n%lld\n", <long long>end)
    for slot in range(covered):
        if txn_index_sum(&view.segments[slot].aborted, &found) != 0:
            free(text)
            return
        if found.count > 0:
            used += snprintf(text + used, capacity - used, b"%lld %lld %u\n",
                             <long long>view.segments[slot].base_offset, <long long>found.count, found.crc)
    crc = crc32c(0, text, used)
    if crc != partition.txn_checkpoint:
        snprintf(path, PATH_BYTES, b"%s/txnindex-checkpoint", partition.directory.path)
        partition.txn_checkpoint = crc if io_write_file(path, text, used) == 0 else -1
    free(text)
