"""Roll and retention of a partition's segments: UnifiedLog.maybeRoll with its producer snapshot, deleteOldSegments.

Readers keep the view that they acquired.
"""
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._partition cimport (
    NEW_FILE, DeletedSegment, LogConfig, Partition, advance_watermarks, call_hook, view_publish, write_txn_checkpoint,
)
from kbroker.log._posix cimport EIO, ENOMEM, PATH_BYTES, io_modified_ms, io_unlink, io_write_file, log_path
from kbroker.log.producers._producer_table cimport producer_state_encode_snapshot
from kbroker.log.segment._index cimport index_is_full
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_create_file, segment_give_back, segment_list_new, segment_list_release,
    segment_new, segment_path, segment_release, segment_remove, segment_reserve, segment_retain, segment_seal,
)

# ---------------------------------------------------------------------------------------------------------------- roll

cdef enum:
    DELETED_AT_ONCE = 16        # segments at a time, since appends wait while their files are renamed


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
    if last_offset - active.base_offset > INT32_MAX:
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
        return                                  # never written to; thousands of such partitions may close at once
    snapshot.data = producer_state_encode_snapshot(partition.producers, &snapshot.size_bytes)
    snapshot.offset = end
    if snapshot.data is not NULL:
        partition.snapshot_offset = end


cdef void store_snapshot(Partition *partition, PendingSnapshot *snapshot) noexcept nogil:
    cdef char path[PATH_BYTES]
    if snapshot.data is not NULL:
        log_path(path, PATH_BYTES, partition.directory.path, snapshot.offset, b".snapshot")
        # If this fails, recovery replays from an older snapshot.
        io_write_file(path, snapshot.data, snapshot.size_bytes, True)
        free(snapshot.data)
        snapshot.data = NULL


cdef int32_t roll_segment(Partition *partition, int64_t new_base, int64_t now_ms,
                          PendingSnapshot *snapshot) noexcept nogil:
    cdef SegmentList *old = partition.view       # borrowed: only the holder of the append lock replaces it
    cdef SegmentList *grown
    cdef LogSegment *fresh
    cdef int32_t slot, keep = old.count, rc
    cdef LogSegment *active = partition.active
    if active.base_offset == new_base:
        if atomic_load(&active.size_bytes) > 0:
            return -EIO
        active.created_ms = now_ms              # an empty segment with the same base stays active
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
        segment_remove(fresh, True)             # a batch that fits into the old segment may still be appended to it
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
    write_txn_checkpoint(partition, False)
    atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE)
    partition.jitter_ms = next_jitter(partition, now_ms, new_base)
    return 0


# ----------------------------------------------------------------------------------------------------------- retention

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
    """Return the number of oldest segments to delete: each rule (start offset, size, age) begins where the previous
    rule ended.
    """
    cdef SegmentList *view = partition.view
    cdef LogConfig *config = &partition.config
    cdef int64_t mark = atomic_load(&partition.high_watermark), start = atomic_load(&partition.log_start)
    cdef int64_t total = 0, end, size
    cdef int32_t slot, rule, count = 0
    cdef bint last
    for slot in range(view.count):
        total += atomic_load(&view.segments[slot].size_bytes)
    for rule in range(3):
        if rule > 0 and not config.delete_by_age:
            break
        if (rule == 1 and config.retention_bytes < 0) or (rule == 2 and config.retention_ms < 0):
            continue
        while count < view.count:
            last = count == view.count - 1
            end = atomic_load(&partition.log_end) if last else view.segments[count + 1].base_offset
            size = atomic_load(&view.segments[count].size_bytes)
            if mark < end or (last and size == 0):
                break
            if rule == 0:
                if last or end > start:
                    break
            elif rule == 1:
                if total - config.retention_bytes - size < 0:
                    break
            elif not now_ms - largest_timestamp(view.segments[count], now_ms) > config.retention_ms:
                break
            total -= size
            count += 1
    return count


cdef int32_t delete_some(Partition *partition, int64_t now_ms, bint *has_more) noexcept nogil:
    """Delete the oldest segments that are due, at most DELETED_AT_ONCE; return their number, or -errno."""
    cdef LogSegment *deleted[DELETED_AT_ONCE]
    cdef SegmentList *kept
    cdef SegmentList *old
    cdef DeletedSegment *entry
    cdef LogSegment *segment
    cdef PendingSnapshot snapshot
    cdef char path[PATH_BYTES]
    cdef int32_t count, slot, rc, result, deleted_count = 0
    cdef int64_t stable
    cdef bint stable_moved = False
    memset(&snapshot, 0, sizeof(snapshot))
    has_more[0] = False
    mutex_lock(&partition.append_lock)
    if atomic_load(&partition.closed) or atomic_load(&partition.damage_offset) != INT64_MAX:
        mutex_unlock(&partition.append_lock)     # a damaged log deletes nothing, since the repair may need it
        return 0
    count = deletable_count(partition, now_ms)
    if count > DELETED_AT_ONCE:
        count = DELETED_AT_ONCE
        has_more[0] = True
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
                # Set before the files are renamed, so that readers return OFFSET_OUT_OF_RANGE.
                atomic_store(&partition.log_start, kept.segments[0].base_offset)
            for slot in range(count):
                segment = segment_retain(old.segments[slot])
                rc = segment_remove(segment, False)
                if rc < 0 and result > 0:       # a start would find the segment, and a gap after it
                    result = rc
                deleted[deleted_count] = segment_retain(segment)
                deleted_count += 1
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
    for slot in range(deleted_count):           # without the lock, so that appends continue meanwhile
        if partition.directory is not NULL:
            segment_path(deleted[slot], b".snapshot", path)
            io_unlink(path)
        segment_release(deleted[slot])
    store_snapshot(partition, &snapshot)
    if stable_moved:
        call_hook(partition, False)
    return result


cdef int32_t apply_retention(Partition *partition, int64_t now_ms) noexcept nogil:
    cdef bint has_more = True
    cdef int32_t count, total = 0
    while has_more:
        count = delete_some(partition, now_ms, &has_more)
        if count < 0:
            return count
        total += count
    return total


cdef int32_t purge_deleted(Partition *partition, int64_t now_ms, bint all_of_them) noexcept nogil:
    """Remove the files of deleted segments after their delay, or of all at once; return the number of segments."""
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
