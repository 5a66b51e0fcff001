"""The watermarks of a partition, and UnifiedLog.flush, which moves the flushed offset and the high watermark."""
from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport strdup, strrchr
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.sync cimport (
    atomic_load, atomic_store, atomic_swap, cond_broadcast, cond_wait, mutex_lock, mutex_unlock,
)
from kbroker.log._failures cimport FAILED_SYNC, count_failure
from kbroker.log._partition cimport NEW_FOLDER, NEW_TOPIC_ID, Partition, call_hook, view_acquire
from kbroker.log._posix cimport (
    EIO, EMFILE, ENFILE, ENOENT, ENOMEM, PATH_BYTES, io_close, io_open, io_sync, io_sync_directory,
)
from kbroker.log.producers._producer_state cimport (
    producer_state_first_unstable_offset, producer_state_set_high_watermark,
)
from kbroker.log.segment._segment cimport SegmentList, segment_list_release, segment_open
from kbroker.log.segment._txn_index cimport txn_index_sync


cdef bint advance_watermarks(Partition *partition) noexcept nogil:
    """Move the high watermark to the log end, or less while log.flush.interval.messages unflushed records limit it."""
    cdef int64_t end = atomic_load(&partition.log_end), flushed = atomic_load(&partition.flushed)
    cdef int64_t old = atomic_load(&partition.high_watermark), start = atomic_load(&partition.log_start)
    cdef int64_t mark, unstable
    mark = end if end - flushed < partition.config.flush_messages else flushed
    if mark < old:
        mark = old
    producer_state_set_high_watermark(partition.producers, mark)
    unstable = producer_state_first_unstable_offset(partition.producers)
    if 0 <= unstable < start:
        unstable = start                        # the first records of the transaction are deleted
    atomic_store(&partition.high_watermark, mark)
    atomic_store(&partition.last_stable, unstable if 0 <= unstable < mark else mark)
    return mark > old


# ------------------------------------------------------------------------------------------------------------- flush

cdef int32_t sync_topic_id(const char *directory) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int fd, rc
    snprintf(path, PATH_BYTES, b"%s/partition.metadata", directory)
    fd = io_open(path, False)
    if fd < 0:
        return 0 if fd == -ENOENT else fd       # a log opened without a manager has no such file
    rc = io_sync(fd)
    io_close(fd)
    return rc


cdef int32_t sync_names(Partition *partition) noexcept nogil:
    """Sync the folder with the topic's id, and its parent when the folder itself is new."""
    cdef int64_t names = atomic_swap(&partition.new_names, 0)
    cdef char *parent
    cdef char *slash
    cdef int32_t rc = 0
    if names == 0 or partition.directory is NULL:
        return 0
    if names & NEW_TOPIC_ID:
        rc = sync_topic_id(partition.directory.path)
    if rc == 0:
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
            continue                            # retention deleted it, so no later start reads it
        file = segment_open(view.segments[slot], &rc)
        if file is NULL:
            if atomic_load(&view.segments[slot].is_deleted):
                rc = 0
                continue
            break
        rc = io_sync(file.fd)
        open_file_release(file)
        if rc != 0:
            rc = -EIO                           # any error: a failed sync must not be retried
            break
        rc = txn_index_sync(&view.segments[slot].aborted)
        if rc != 0:
            break
    segment_list_release(view)
    if rc == 0:
        rc = sync_names(partition)
    if atomic_load(&partition.sync_fault) != 0:
        rc = -<int32_t>atomic_load(&partition.sync_fault)
    return rc


cdef inline bint was_deleted(Partition *partition, int32_t rc) noexcept nogil:
    """Return whether the folder was renamed or removed meanwhile, so that no disk has failed."""
    return rc == -ENOENT and atomic_load(&partition.closed) != 0


cdef void hold_flushes(Partition *partition) noexcept nogil:
    mutex_lock(&partition.flush_lock)
    while partition.is_flushing:
        cond_wait(&partition.flush_done, &partition.flush_lock)
    partition.is_flushing = True
    mutex_unlock(&partition.flush_lock)


cdef void release_flushes(Partition *partition) noexcept nogil:
    mutex_lock(&partition.flush_lock)
    partition.is_flushing = False
    cond_broadcast(&partition.flush_done)
    mutex_unlock(&partition.flush_lock)


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
    if rc != 0 and not was_deleted(partition, rc):
        count_failure(partition, FAILED_SYNC, -rc)
    if rc == 0:
        mutex_lock(&partition.append_lock)
        if target > atomic_load(&partition.log_end):
            target = atomic_load(&partition.log_end)            # truncated meanwhile
        if target > atomic_load(&partition.flushed):
            atomic_store(&partition.flushed, target)
        moved = advance_watermarks(partition)
        mutex_unlock(&partition.append_lock)
    elif rc != -ENOMEM and rc != -EMFILE and rc != -ENFILE:     # no sync was tried, so a later flush may succeed
        # The kernel may have dropped the pages: a second sync would wrongly succeed.
        atomic_store(&partition.is_failed, 1)
    release_flushes(partition)
    return rc if rc != 0 else (1 if moved else 0)


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
    if rc != 0:                 # moved or failed: operations that wait for the disk complete either way
        call_hook(partition, False)
    return 0 if rc == 1 else rc
