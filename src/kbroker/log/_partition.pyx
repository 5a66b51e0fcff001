# cython: freethreading_compatible=True
"""A partition's life and facts. Append: _append; read: _read; roll, retention, flush: _maintenance; opening: _recovery;
Python's handle: _partition_log.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from kbroker._core.clock cimport clock_release
from kbroker._core.sync cimport atomic_add_fetch, atomic_load, cond_destroy, mutex_destroy, mutex_lock, mutex_unlock
from kbroker.log._maintenance cimport call_hook, flush_log
from kbroker.log.producers._producer_state cimport producer_state_free
from kbroker.log.segment._segment cimport directory_release, file_cache_release, segment_list_release, segment_release


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


cdef int32_t partition_index(Partition *partition) noexcept nogil:
    return partition.index


cdef int64_t partition_log_end_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.log_end)


cdef int64_t partition_high_watermark(Partition *partition) noexcept nogil:
    return atomic_load(&partition.high_watermark)


cdef int64_t partition_last_stable_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.last_stable)


cdef int64_t partition_log_start_offset(Partition *partition) noexcept nogil:
    return atomic_load(&partition.log_start)


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


cdef int64_t partition_flush_target(Partition *partition) noexcept nogil:
    cdef int64_t target
    cdef int64_t end = atomic_load(&partition.log_end)
    mutex_lock(&partition.view_lock)
    if end - atomic_load(&partition.flushed) >= partition.config.flush_messages:
        target = end
    else:
        target = partition.view.segments[partition.view.count - 1].base_offset      # sealed segments
    mutex_unlock(&partition.view_lock)
    return target


cdef int32_t partition_flush(Partition *partition, int64_t up_to) noexcept nogil:
    cdef int32_t rc = flush_log(partition, up_to)
    if rc != 0:                 # moved, or failed: who waits for the disk must be told either way
        call_hook(partition, False)
    return 0 if rc == 1 else rc
