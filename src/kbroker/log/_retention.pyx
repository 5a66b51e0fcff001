"""Retention of one partition: UnifiedLog.deleteOldSegments. Readers keep the view they hold."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._config cimport LogConfig
from kbroker.log._partition cimport DeletedSegment, Partition, call_hook, view_publish
from kbroker.log._posix cimport ENOMEM, PATH_BYTES, io_modified_ms, io_unlink
from kbroker.log._roll cimport PendingSnapshot, roll_segment, store_snapshot
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_list_new, segment_path, segment_release, segment_remove, segment_retain,
)
from kbroker.log._watermarks cimport advance_watermarks


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
    """Return the number of oldest segments to delete: the maximum over the rules (start offset, size, age)."""
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
    cdef int64_t stable
    cdef bint stable_moved = False
    memset(&snapshot, 0, sizeof(snapshot))
    mutex_lock(&partition.append_lock)
    if atomic_load(&partition.closed) or atomic_load(&partition.damage_offset) != INT64_MAX:
        mutex_unlock(&partition.append_lock)     # a damaged log deletes nothing, since the repair may need it
        return 0
    count = deletable_count(partition, now_ms)
    result = count
    if count > 0 and count == partition.view.count:
        rc = roll_segment(partition, atomic_load(&partition.log_end), now_ms, &snapshot)
        if rc != 0:                             # a full disk has no space for a new segment: delete only the others
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
                # Set first: readers then return OFFSET_OUT_OF_RANGE.
                atomic_store(&partition.log_start, kept.segments[0].base_offset)
            for slot in range(count):
                segment = segment_retain(old.segments[slot])
                segment_remove(segment, False)
                if partition.directory is not NULL:
                    segment_path(segment, b".snapshot", path)
                    io_unlink(path)
                entry = <DeletedSegment *>calloc(1, sizeof(DeletedSegment))
                if entry is NULL:
                    segment_release(segment)     # the file keeps its .deleted name until the next opening
                    continue
                entry.segment = segment
                entry.deleted_ms = now_ms
                entry.next = partition.deleted
                partition.deleted = entry
            view_publish(partition, kept)
            stable = atomic_load(&partition.last_stable)
            advance_watermarks(partition)       # keeps the last stable offset at or above the start
            stable_moved = atomic_load(&partition.last_stable) > stable
    mutex_unlock(&partition.append_lock)
    store_snapshot(partition, &snapshot)
    if stable_moved:
        call_hook(partition, False)
    return result


cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil:
    """Remove files whose delay is over; return the number of segments."""
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
    while due is not NULL:                      # unlinking a big file is slow, so no lock is held
        entry = due
        due = entry.next
        segment_remove(entry.segment, True)
        segment_release(entry.segment)
        free(entry)
        count += 1
    return count
