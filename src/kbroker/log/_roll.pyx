"""Roll of a partition's active segment: UnifiedLog.maybeRoll, and its producer snapshot."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from kbroker._core.sync cimport atomic_load, atomic_store
from kbroker.log.segment._index cimport index_is_full
from kbroker.log._partition cimport NEW_FILE, Partition, view_publish, write_txn_checkpoint
from kbroker.log._posix cimport EIO, ENOMEM, PATH_BYTES, log_path
from kbroker.log.producers._producer_table cimport producer_state_encode_snapshot, producer_state_store_snapshot
from kbroker.log.segment._segment cimport (
    LogSegment, SegmentList, segment_create_file, segment_give_back, segment_list_new, segment_list_release,
    segment_new, segment_release, segment_reserve, segment_retain, segment_seal,
)

cdef enum:
    MAX_INT32 = 2147483647


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
        producer_state_store_snapshot(path, snapshot.data, snapshot.size_bytes)
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
