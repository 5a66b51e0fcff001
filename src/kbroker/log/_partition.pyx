# cython: freethreading_compatible=True
"""Append and read of one partition: UnifiedLog on plain C structs. Roll, retention, flush: _maintenance; opening:
_recovery.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup
from kbroker._core.clock cimport borrow_clock, clock_release, clock_retain, clock_wall_ms
from kbroker._core.request cimport OpenFile, open_file_release
from kbroker._core.sync cimport (
    atomic_add, atomic_load, atomic_store, cond_destroy, cond_init, mutex_destroy, mutex_init, mutex_lock,
    mutex_unlock,
)
from kbroker.log._config cimport LogConfig
from kbroker.log._index cimport offset_index_offset_after, txn_index_append, txn_index_collect
from kbroker.log._lookup cimport Found, find_timestamp
from kbroker.log._maintenance cimport (
    NEW_FILE, NEW_FOLDER, PendingSnapshot, advance_watermarks, apply_retention, flush_log, note_leader_epoch,
    purge_deleted, roll_segment, should_roll, store_snapshot, take_snapshot, view_acquire, write_leader_epochs,
)
from kbroker.log._posix cimport ENOENT, io_read, io_truncate, io_write, put_int32, put_int64
from kbroker.log._producer_state cimport (
    AbortedTxn, BatchFacts, Duplicate, PRODUCER_CHECK_DUPLICATE, producer_state_apply, producer_state_check,
    producer_state_count, producer_state_expire, producer_state_free, producer_state_new,
)
from kbroker.log._recovery cimport cut_partition, load_partition
from kbroker.log._segment cimport (
    LogSegment, OpenFileCache, SegmentList, directory_new, directory_release, file_cache_release, file_cache_retain,
    file_cache_shared, segment_close_file, segment_find, segment_find_indexed, segment_give_back, segment_list_floor,
    segment_list_release, segment_list_retain, segment_note_append, segment_open, segment_release, segment_reserve,
    segment_retain, segment_seal,
)
from kbroker.log._validate cimport (
    CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, OFFSET_OUT_OF_RANGE, RECORD_LIST_TOO_LARGE,
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, BatchCheck, validate_batch, whole_batch_bytes,
)
from kbroker.protocol._records cimport CODEC_LEVEL, BatchHeader

import base64
import os
import uuid
from kbroker.log.facts import AbortedTransaction, AppendInfo, OffsetAndTimestamp, ReadInfo, SegmentFacts
from kbroker.protocol.compression import CompressionType

cdef enum:
    MAX_BATCHES = 1024          # of one internal append
    READ_TRIES = 4


# ----------------------------------------------------------------------------------------------------- life and facts

cdef Partition *partition_retain(Partition *partition) noexcept nogil:
    atomic_add(&partition.refs, 1)
    return partition


cdef void partition_release(Partition *partition) noexcept nogil:
    cdef DeletedSegment *entry
    if partition is NULL or atomic_add(&partition.refs, -1) != 0:
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


cdef void call_hook(Partition *partition, bint dirty) noexcept nogil:
    cdef partition_hook hook
    cdef void *arg
    mutex_lock(&partition.view_lock)
    hook = partition.on_dirty if dirty else partition.on_high_watermark
    arg = partition.on_dirty_arg if dirty else partition.on_high_watermark_arg
    mutex_unlock(&partition.view_lock)
    if hook is not NULL:
        hook(arg, partition)


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


# ------------------------------------------------------------------------------------------------------------ append

cdef inline void refuse(AppendResult *out, int16_t error, const char *message) noexcept nogil:
    out.error = error
    out.message = message
    out.base_offset = -1
    out.last_offset = -1


cdef int32_t write_batches(Partition *partition, LogSegment *segment, const char *data, int64_t size_bytes,
                           int64_t position) noexcept nogil:
    """All bytes at position, or none: what a failed write left behind is cut off again."""
    cdef int32_t error = 0
    cdef int64_t rc, room = size_bytes
    cdef OpenFile *file = segment_open(segment, &error)
    if file is NULL:
        return error
    if atomic_load(&partition.write_fault) != 0:
        room = size_bytes // 2
    rc = io_write(file.fd, data, room, position)
    if rc >= 0 and room != size_bytes:
        rc = -atomic_load(&partition.write_fault)
    if rc < 0:
        io_truncate(file.fd, position)
    open_file_release(file)
    return 0 if rc >= 0 else <int32_t>rc


cdef void append_checked(Partition *partition, char *data, int64_t size_bytes, BatchCheck *checks, int32_t count,
                         int64_t now_ms, PendingSnapshot *snapshot, AppendResult *out) noexcept nogil:
    """Rows h to k of the specification; under the append lock."""
    cdef int64_t first, offset, position, largest = -1, offset_of_max = -1, flushed
    cdef int64_t at = 0
    cdef int32_t slot, rc, epoch = <int32_t>atomic_load(&partition.leader_epoch)
    cdef BatchFacts *facts
    cdef Duplicate duplicate
    cdef AbortedTxn aborted
    cdef LogSegment *segment
    cdef RecentAppend *recent
    if atomic_load(&partition.closed):
        refuse(out, UNKNOWN_TOPIC_OR_PARTITION, b"The partition is deleted or closed")
        return
    if atomic_load(&partition.is_failed):
        refuse(out, KAFKA_STORAGE_ERROR, b"A sync of this partition failed: no append until the broker restarts")
        return
    if atomic_load(&partition.damage_offset) != INT64_MAX:
        refuse(out, KAFKA_STORAGE_ERROR, b"The log of this partition is damaged: see kbroker log verify")
        return
    first = atomic_load(&partition.log_end)
    offset = first
    for slot in range(count):
        facts = &checks[slot].facts
        facts.base_offset = offset
        facts.last_offset = offset + facts.last_offset_delta
        put_int64(data + at, offset)
        put_int32(data + at + 12, epoch)
        at += checks[slot].size_bytes
        offset = facts.last_offset + 1
        if checks[slot].max_timestamp_ms > largest:
            largest = checks[slot].max_timestamp_ms
            offset_of_max = facts.last_offset
    if offset_of_max < 0:
        offset_of_max = offset - 1
    if size_bytes > partition.config.segment_bytes:
        refuse(out, RECORD_LIST_TOO_LARGE, b"The records are larger than segment.bytes")
        return
    rc = note_leader_epoch(partition, epoch, first)
    if rc == 1:
        rc = write_leader_epochs(partition)
        if rc != 0:
            partition.epoch_count -= 1
    if rc == 0 and should_roll(partition, size_bytes, largest, offset - 1, now_ms):
        rc = roll_segment(partition, first, now_ms, snapshot)
    if rc != 0:
        refuse(out, KAFKA_STORAGE_ERROR, b"The log cannot be written")
        return
    for slot in range(count):
        if checks[slot].facts.producer_id < 0:
            continue
        rc = producer_state_check(partition.producers, &checks[slot].facts, &duplicate)
        if rc == PRODUCER_CHECK_DUPLICATE:
            out.is_duplicate = True
            out.base_offset = duplicate.base_offset
            out.last_offset = duplicate.base_offset + checks[slot].facts.last_offset_delta
            out.log_append_time_ms = duplicate.timestamp_ms
            if out.last_offset >= atomic_load(&partition.high_watermark):
                out.flush_offset = out.last_offset + 1      # the original still waits for the disk: so does its repeat
            return
        if rc != 0:
            refuse(out, <int16_t>rc, b"The batch's producer epoch or sequence was refused")
            return
    segment = partition.active
    position = atomic_load(&segment.size_bytes)
    rc = write_batches(partition, segment, data, size_bytes, position)
    if rc != 0:
        refuse(out, KAFKA_STORAGE_ERROR, b"The log cannot be written")
        return
    mutex_lock(&partition.view_lock)
    recent = &partition.recent[partition.recent_count % RECENT_APPENDS]
    recent.base_offset = first
    recent.end_offset = offset
    recent.segment_base = segment.base_offset
    recent.position = position
    partition.recent_count += 1
    mutex_unlock(&partition.view_lock)
    # The end offset first, the size next: a reader loads them the other way round, so the bytes it sees are below
    # the end.
    atomic_store(&partition.log_end, offset)
    atomic_store(&segment.size_bytes, position + size_bytes)
    segment_note_append(segment, position, size_bytes, offset - 1, largest, offset_of_max,
                        partition.config.index_interval_bytes)
    for slot in range(count):
        if checks[slot].facts.producer_id >= 0 and producer_state_apply(partition.producers, &checks[slot].facts,
                                                                        &aborted):
            txn_index_append(&segment.aborted, &aborted)
    out.base_offset = first
    out.last_offset = offset - 1
    flushed = atomic_load(&partition.flushed)
    if offset - flushed >= partition.config.flush_messages:
        out.flush_offset = offset
    out.high_watermark_moved = advance_watermarks(partition)


cdef inline void hide_log_start(AppendResult *out, bint before_log) noexcept nogil:
    """Kafka answers these refusals with log start offset -1, all others with the real one."""
    if before_log or out.error in (CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE,
                                   RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR):
        out.log_start_offset = -1


cdef void release_checks(BatchCheck *checks, int32_t count, BatchCheck *grown) noexcept nogil:
    cdef int32_t slot
    for slot in range(count):
        free(checks[slot].rebuilt)
    free(grown)


cdef char *join_rebuilt(char *data, BatchCheck *checks, int32_t count, int64_t *size_bytes) noexcept nogil:
    """The bytes to append: data, or, if a batch was built anew, all of them in one piece that checks[0] owns."""
    cdef int64_t from_at = 0, to_at = 0, total = 0
    cdef int32_t slot
    cdef bint any_rebuilt = False
    cdef char *joined
    for slot in range(count):
        total += checks[slot].size_bytes
        any_rebuilt = any_rebuilt or checks[slot].rebuilt is not NULL
    size_bytes[0] = total
    if not any_rebuilt:
        return data
    if count == 1:
        return checks[0].rebuilt
    joined = <char *>malloc(total)
    if joined is NULL:
        return NULL
    for slot in range(count):
        memcpy(joined + to_at, data + from_at if checks[slot].rebuilt is NULL else checks[slot].rebuilt,
               checks[slot].size_bytes)
        from_at += checks[slot].taken_bytes
        to_at += checks[slot].size_bytes
        free(checks[slot].rebuilt)
        checks[slot].rebuilt = NULL
    checks[0].rebuilt = joined
    return joined


cdef void partition_append(Partition *partition, char *batch, int64_t size_bytes, int16_t acks, int16_t api_version,
                           bint is_client, AppendResult *out) noexcept nogil:
    cdef BatchCheck single
    cdef BatchCheck *checks = &single
    cdef BatchCheck *grown = NULL
    cdef LogConfig config
    cdef PendingSnapshot snapshot
    cdef int64_t now_ms = clock_wall_ms(partition.clock), at = 0, total
    cdef int32_t count = 0
    cdef bint rolled
    cdef int64_t active_base
    memset(out, 0, sizeof(AppendResult))
    memset(&snapshot, 0, sizeof(snapshot))
    out.base_offset = -1
    out.last_offset = -1
    out.log_append_time_ms = -1
    out.bad_record = -1
    out.log_start_offset = atomic_load(&partition.log_start)
    mutex_lock(&partition.view_lock)
    config = partition.config
    mutex_unlock(&partition.view_lock)
    if not is_client and whole_batch_bytes(batch, size_bytes) not in (0, -1, size_bytes):
        grown = <BatchCheck *>malloc(MAX_BATCHES * sizeof(BatchCheck))
        if grown is NULL:
            refuse(out, UNKNOWN_SERVER_ERROR, b"Out of memory")
            return
        checks = grown
    while True:
        validate_batch(batch + at, size_bytes - at, now_ms, &config, api_version, is_client, &checks[count])
        if checks[count].error != 0:
            refuse(out, checks[count].error, checks[count].message)
            out.bad_record = checks[count].bad_record
            out.bad_records = checks[count].bad_records
            out.bad_count = checks[count].bad_count
            hide_log_start(out, checks[count].before_log)
            release_checks(checks, count, grown)
            return
        at += checks[count].taken_bytes
        count += 1
        if is_client:
            break
        total = whole_batch_bytes(batch + at, size_bytes - at)
        if total == 0:
            break                               # trailing bytes that are no batch are left out, as Kafka does
        if count == MAX_BATCHES:
            refuse(out, MESSAGE_TOO_LARGE, b"Too many batches in one append")
            release_checks(checks, count, grown)
            return
    batch = join_rebuilt(batch, checks, count, &at)
    if batch is NULL:
        refuse(out, UNKNOWN_SERVER_ERROR, b"Out of memory")
        release_checks(checks, count, grown)
        return
    mutex_lock(&partition.append_lock)
    active_base = partition.active.base_offset
    append_checked(partition, batch, at, checks, count, now_ms, &snapshot, out)
    rolled = partition.active.base_offset != active_base
    out.log_start_offset = atomic_load(&partition.log_start)
    mutex_unlock(&partition.append_lock)
    hide_log_start(out, False)
    release_checks(checks, count, grown)
    if out.error == 0 and not out.is_duplicate and config.log_append_time:
        out.log_append_time_ms = now_ms
    store_snapshot(partition, &snapshot)
    if rolled or out.flush_offset > 0:
        call_hook(partition, True)


# -------------------------------------------------------------------------------------------------------------- read

cdef SegmentList *view_and_recent(Partition *partition, int64_t offset, RecentAppend *recent) noexcept nogil:
    """The view, and where the recent append that holds offset lies (segment_base -1: not among them)."""
    cdef SegmentList *view
    cdef RecentAppend *entry
    cdef int64_t slot, oldest
    recent.segment_base = -1
    mutex_lock(&partition.view_lock)
    view = segment_list_retain(partition.view)
    oldest = partition.recent_count - RECENT_APPENDS
    slot = partition.recent_count - 1
    while slot >= 0 and slot >= oldest:
        entry = &partition.recent[slot % RECENT_APPENDS]
        if entry.base_offset <= offset:
            if offset < entry.end_offset:
                recent[0] = entry[0]
            break
        slot -= 1
    mutex_unlock(&partition.view_lock)
    return view


cdef int32_t position_of(Partition *partition, SegmentList *view, int32_t slot, OpenFile *file, int64_t offset,
                         int64_t limit,
                         int64_t *position, int64_t *batch_bytes) noexcept nogil:
    """Where the batch containing offset begins in a segment: 1, 0 when all below limit is before offset, else an
    error.
    """
    cdef RecentAppend recent
    cdef BatchHeader header
    cdef LogSegment *segment = view.segments[slot]
    cdef int32_t rc
    cdef SegmentList *same = view_and_recent(partition, offset, &recent)
    segment_list_release(same)
    if recent.segment_base == segment.base_offset and recent.position < limit:
        rc = segment_find(segment, file, offset, recent.position, limit, position, &header)
    else:
        rc = segment_find_indexed(segment, file, offset, limit, position, &header)
    if rc == 1:
        batch_bytes[0] = <int64_t>header.batch_length + 12
    return rc


cdef struct Place:              # of an offset among the readable bytes
    LogSegment *segment         # counted; NULL: nothing to read
    OpenFile *file              # counted
    int32_t slot
    int64_t position
    int64_t batch_bytes
    int64_t limit               # readable bytes of its segment
    bint is_cut_short           # the upper bound lies in a later segment


cdef int16_t locate(Partition *partition, int64_t offset, int64_t upper, SegmentList *view,
                    Place *place) noexcept nogil:
    cdef int64_t end, unused, size
    cdef int32_t slot = segment_list_floor(view, offset), rc = 0, error = 0
    cdef LogSegment *segment
    cdef OpenFile *file
    memset(place, 0, sizeof(Place))
    if slot < 0:
        slot = 0
    while slot < view.count:
        segment = view.segments[slot]
        if segment.base_offset >= upper:
            return 0
        size = atomic_load(&segment.size_bytes)
        end = atomic_load(&partition.log_end)   # after the size: what was seen lies below it
        if size > 0:
            file = segment_open(segment, &error)
            if file is NULL:
                return -1 if error == -ENOENT else KAFKA_STORAGE_ERROR
            rc = position_of(partition, view, slot, file, offset, size, &place.position, &place.batch_bytes)
            if rc == 1:
                place.limit = size
                place.is_cut_short = slot + 1 < view.count and view.segments[slot + 1].base_offset < upper
                if upper < end and not place.is_cut_short:
                    rc = position_of(partition, view, slot, file, upper, size, &place.limit, &unused)
                    if rc == 0:
                        place.limit = size
                if rc >= 0:
                    place.segment = segment_retain(segment)
                    place.file = file
                    place.slot = slot
                    return 0
            open_file_release(file)
            if rc < 0:
                return KAFKA_STORAGE_ERROR
        slot += 1
    return 0


cdef void collect_aborted(SegmentList *view, const Place *place, int64_t offset, int64_t size_bytes, int64_t log_end,
                          ReadResult *out) noexcept nogil:
    cdef int64_t upper = offset_index_offset_after(&place.segment.offsets, place.position + size_bytes)
    cdef int32_t slot, rc
    if upper < 0:
        upper = view.segments[place.slot + 1].base_offset if place.slot + 1 < view.count else log_end
    for slot in range(place.slot, view.count):
        rc = txn_index_collect(&view.segments[slot].aborted, offset, upper, &out.aborted, &out.aborted_count)
        if rc != 0:
            if rc < 0:
                out.error = KAFKA_STORAGE_ERROR
            return


cdef void partition_read(Partition *partition, int64_t offset, int64_t max_bytes, bint min_one, int8_t isolation,
                         ReadResult *out) noexcept nogil:
    cdef SegmentList *view
    cdef Place place
    cdef int64_t upper, end, size
    cdef int32_t tries = 0
    cdef int16_t error
    memset(out, 0, sizeof(ReadResult))
    while True:
        out.last_stable_offset = atomic_load(&partition.last_stable)
        out.high_watermark = atomic_load(&partition.high_watermark)
        end = atomic_load(&partition.log_end)
        out.log_start_offset = atomic_load(&partition.log_start)
        upper = out.last_stable_offset if isolation == 1 else out.high_watermark
        if offset < out.log_start_offset or offset > end:
            out.error = OFFSET_OUT_OF_RANGE
            return
        if offset >= atomic_load(&partition.damage_offset):
            out.error = KAFKA_STORAGE_ERROR
            return
        if offset >= upper:
            return
        if upper > atomic_load(&partition.damage_offset):
            upper = atomic_load(&partition.damage_offset)
        view = view_acquire(partition)
        error = locate(partition, offset, upper, view, &place)
        if error == -1:                         # its file went away: retention or deletion was faster than this view
            segment_list_release(view)
            tries += 1
            if tries < READ_TRIES:
                continue
            error = KAFKA_STORAGE_ERROR
            out.error = error
            return
        break
    out.error = error
    if place.segment is not NULL:
        size = max_bytes
        if min_one and size < place.batch_bytes:
            size = place.batch_bytes
        elif size < place.batch_bytes:
            size = 0                            # not even the first batch fits: Kafka sends none, rather than a cut one
        if size > place.limit - place.position:
            size = place.limit - place.position
        if size > 0:
            out.file = place.file
            place.file = NULL
            out.position = place.position
            out.size_bytes = size
            if isolation == 1:
                collect_aborted(view, &place, offset, size, end, out)
        if place.file is not NULL:
            open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)
    if out.error != 0 and out.file is not NULL:
        open_file_release(out.file)
        out.file = NULL
        out.size_bytes = 0


cdef void partition_probe(Partition *partition, int64_t offset, int64_t max_bytes, int8_t isolation,
                          ReadProbe *out) noexcept nogil:
    """No file is opened while the offset and the bound are among the recent appends; else as a read would."""
    cdef SegmentList *view
    cdef Place place
    cdef RecentAppend recent
    cdef int64_t upper, end, size
    cdef LogSegment *active
    memset(out, 0, sizeof(ReadProbe))
    upper = atomic_load(&partition.last_stable) if isolation == 1 else atomic_load(&partition.high_watermark)
    end = atomic_load(&partition.log_end)
    if atomic_load(&partition.closed):
        out.error = UNKNOWN_TOPIC_OR_PARTITION
        return
    if offset < atomic_load(&partition.log_start) or offset > end:
        out.error = OFFSET_OUT_OF_RANGE
        return
    if offset >= atomic_load(&partition.damage_offset):
        out.error = KAFKA_STORAGE_ERROR
        return
    if offset >= upper:
        return
    view = view_and_recent(partition, offset, &recent)
    active = view.segments[view.count - 1]
    if recent.segment_base == active.base_offset and offset == recent.base_offset:
        size = atomic_load(&active.size_bytes)
        end = atomic_load(&partition.log_end)
        if upper >= end:
            out.available_bytes = size - recent.position
            if out.available_bytes > max_bytes:
                out.available_bytes = max_bytes
            segment_list_release(view)
            return
    if upper > atomic_load(&partition.damage_offset):
        upper = atomic_load(&partition.damage_offset)
    out.error = locate(partition, offset, upper, view, &place)
    if out.error == -1:
        out.error = 0
        out.crosses_segment = True              # its file went away: let a read find out
    if place.segment is not NULL:
        out.available_bytes = place.limit - place.position
        if out.available_bytes > max_bytes:
            out.available_bytes = max_bytes
        out.crosses_segment = place.is_cut_short
        open_file_release(place.file)
        segment_release(place.segment)
    segment_list_release(view)


# ---------------------------------------------------------------------------------------------------- Python's handle

DEFAULTS = {
    "segment.bytes": 1073741824, "segment.ms": 604800000, "segment.jitter.ms": 0, "index.interval.bytes": 4096,
    "segment.index.bytes": 10485760, "max.message.bytes": 1048588, "retention.ms": 604800000, "retention.bytes": -1,
    "file.delete.delay.ms": 60000, "flush.messages": 9223372036854775807,
    "message.timestamp.before.max.ms": 9223372036854775807, "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.type": "CreateTime", "cleanup.policy": "delete", "producer.id.expiration.ms": 86400000,
    "compression.type": "producer",
    "max.compaction.lag.ms": 9223372036854775807,
}


cdef int parse_config(values, LogConfig *out) except -1:
    """Kafka's topic settings by name; absent ones have Kafka's defaults, unknown ones belong to others."""
    def number(name: str, least: int, most: int = 9223372036854775807) -> int:
        given = values.get(name)
        value = int(DEFAULTS[name] if given is None else given)
        if not least <= value <= most:
            raise ValueError(f"{name} must be between {least} and {most}, got {value}")
        return value
    if not hasattr(values, "get"):
        raise TypeError(f"config must be a mapping of setting names to values, got {type(values).__name__}")
    out.segment_bytes = number("segment.bytes", 61, 2147483647)
    out.segment_ms = number("segment.ms", 1)
    out.segment_jitter_ms = min(number("segment.jitter.ms", 0), out.segment_ms)
    out.index_interval_bytes = number("index.interval.bytes", 0)
    out.segment_index_bytes = number("segment.index.bytes", 24, 2147483647)
    out.max_message_bytes = number("max.message.bytes", 0, 2147483647)
    out.retention_ms = number("retention.ms", -1)
    out.retention_bytes = number("retention.bytes", -1)
    out.file_delete_delay_ms = number("file.delete.delay.ms", 0)
    out.flush_messages = number("flush.messages", 1)
    out.timestamp_before_max_ms = number("message.timestamp.before.max.ms", 0)
    out.timestamp_after_max_ms = number("message.timestamp.after.max.ms", 0)
    out.producer_expiration_ms = number("producer.id.expiration.ms", 1)
    out.decompress_cap_bytes = max(16 * out.max_message_bytes, 16777216)
    kind = values.get("message.timestamp.type") or DEFAULTS["message.timestamp.type"]
    if kind not in ("CreateTime", "LogAppendTime"):
        raise ValueError(f"message.timestamp.type must be CreateTime or LogAppendTime, got {kind!r}")
    out.log_append_time = kind == "LogAppendTime"
    codec = values.get("compression.type") or DEFAULTS["compression.type"]
    out.target_codec = -1 if codec == "producer" else CompressionType.of_config_name(codec)
    level = values.get(f"compression.{codec}.level")
    out.compression_level = CODEC_LEVEL if level is None else int(level)
    out.preallocate = values.get("preallocate") in (True, "true")
    policy = values.get("cleanup.policy") or DEFAULTS["cleanup.policy"]
    policies = [part.strip() for part in policy.split(",")] if isinstance(policy, str) else list(policy)
    out.compacted = "compact" in policies
    out.delete_by_age = "delete" in policies
    out.has_gaps = out.compacted or bool(values.get("was.compacted"))
    if out.compacted:
        out.segment_ms = min(out.segment_ms, number("max.compaction.lag.ms", 1))
        out.segment_jitter_ms = min(out.segment_jitter_ms, out.segment_ms)
    return 0


def topic_id_bytes(topic_id) -> bytes:
    """16 bytes of a topic id given as bytes, UUID, or Kafka's URL-safe base64 text."""
    if isinstance(topic_id, uuid.UUID):
        return topic_id.bytes
    if isinstance(topic_id, str):
        try:
            topic_id = base64.urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4))
        except ValueError:
            raise ValueError(f"topic_id is not URL-safe base64: {topic_id!r}") from None
    if not isinstance(topic_id, bytes) or len(topic_id) != 16:
        raise ValueError("topic_id must be 16 bytes, a uuid.UUID or its 22-character base64 text")
    return topic_id


def write_partition_metadata(directory: str, topic_id: bytes) -> None:
    """``partition.metadata`` as Kafka writes it; a file that names another topic is refused, an empty one written
    anew.
    """
    path = os.path.join(directory, "partition.metadata")
    text = base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
    try:
        with open(path, encoding="ascii") as file:
            lines = dict(line.split(": ", 1) for line in file.read().splitlines() if ": " in line)
        if lines:
            if lines.get("topic_id") not in (text, "A" * 22) and topic_id != bytes(16):
                raise ValueError(f"{path} belongs to topic id {lines.get('topic_id')}, not {text}")
            return
    except FileNotFoundError:
        pass
    except UnicodeDecodeError:
        pass
    with open(path + ".tmp", "w", encoding="ascii") as file:
        file.write(f"version: 0\ntopic_id: {text}\n")
    os.replace(path + ".tmp", path)


cdef Partition *open_state(PartitionLog log) except NULL:
    if atomic_load(&log.partition.closed):
        raise ValueError(f"{log.topic}-{log.partition_id} is closed")
    return log.partition


@cython.final
cdef class PartitionLog:
    """One partition's log. See _partition.pyi for the contract of each method."""

    def __cinit__(self, directory, str topic not None, int32_t partition, topic_id, config, clock, *,
                  bint in_memory=False,
                  bint clean=False, int64_t recovery_point=0, int64_t log_start_offset=0, int32_t leader_epoch=0,
                  OpenFileCache files=None, bint is_prepared=False):
        cdef Partition *state
        cdef bytes identity = topic_id_bytes(topic_id)
        cdef bytes path
        if partition < 0:
            raise ValueError(f"partition must be >= 0, got {partition}")
        if recovery_point < 0 or log_start_offset < 0 or leader_epoch < 0:
            raise ValueError("recovery_point, log_start_offset and leader_epoch must be >= 0")
        if directory is None and not in_memory:
            raise TypeError("directory may be None only with in_memory=True")
        state = <Partition *>calloc(1, sizeof(Partition))
        if state is NULL:
            raise MemoryError
        atomic_store(&state.refs, 1)
        mutex_init(&state.append_lock)
        mutex_init(&state.view_lock)
        mutex_init(&state.flush_lock)
        cond_init(&state.flush_done)
        self.partition = state
        atomic_store(&state.damage_offset, INT64_MAX)
        atomic_store(&state.leader_epoch, leader_epoch)
        state.index = partition
        state.snapshot_offset = -1
        memcpy(state.topic_id, <const char *>identity, 16)
        state.clock = clock_retain(borrow_clock(clock))
        state.files = file_cache_retain(files.files) if files is not None else file_cache_shared()
        state.producers = producer_state_new()
        if state.producers is NULL or state.files is NULL:
            raise MemoryError
        parse_config(config, &state.config)
        self.topic = topic
        self.partition_id = partition
        self.in_memory = in_memory
        self.directory = None
        if not in_memory:
            self.directory = os.fspath(directory)
            path = os.fsencode(self.directory)
            if len(path) > 4096 or b"\0" in path:
                raise ValueError(f"directory name too long or not legal: {self.directory!r}")
            if not is_prepared and not os.path.isdir(self.directory):
                os.makedirs(self.directory)
                atomic_store(&state.new_names, NEW_FILE | NEW_FOLDER)
            state.directory = directory_new(<const char *>path)
            if state.directory is NULL:
                raise MemoryError
            if not is_prepared:
                write_partition_metadata(self.directory, identity)
        load_partition(state, self.directory, clean, recovery_point, log_start_offset)
        if state.config.preallocate and atomic_load(&state.active.size_bytes) == 0:
            reserved = segment_reserve(state.active, state.config.segment_bytes)
            if reserved != 0:
                raise OSError(-reserved, os.strerror(-reserved), self.directory)

    def __dealloc__(self):
        cdef Partition *state = self.partition
        if state is not NULL:
            with nogil:
                partition_release(state)

    def append(self, records, *, int16_t acks=-1, int16_t api_version=11, bint is_client=True):
        cdef Partition *state = self.partition
        cdef bytes data = bytes(records)
        cdef int64_t size = len(data)
        cdef char *copy = <char *>malloc(size if size > 0 else 1)
        cdef AppendResult result
        cdef int32_t slot
        if copy is NULL:
            raise MemoryError
        memcpy(copy, <const char *>data, size)
        with nogil:
            partition_append(state, copy, size, acks, api_version, is_client, &result)
            free(copy)
            if result.high_watermark_moved:
                call_hook(state, False)         # the lane looks after its own appends; nobody else after these
        bad_records = tuple([result.bad_records[slot] for slot in range(result.bad_count)])
        free(result.bad_records)
        return AppendInfo(result.error, result.base_offset, result.last_offset, result.log_append_time_ms,
                          result.log_start_offset, result.bad_record,
                          None if result.message is NULL else (<bytes>result.message).decode(),
                          bool(result.is_duplicate), bool(result.high_watermark_moved), result.flush_offset,
                          bad_records)

    def read(self, int64_t offset, int64_t max_bytes=1048576, *, bint min_one=True, int8_t isolation=0):
        cdef Partition *state = self.partition
        cdef ReadResult result
        cdef bytes data = b""
        cdef char *target
        cdef int32_t slot
        cdef int64_t got = 0
        if isolation not in (0, 1):
            raise ValueError(f"isolation must be 0 (read_uncommitted) or 1 (read_committed), got {isolation}")
        with nogil:
            partition_read(state, offset, max_bytes, min_one, isolation, &result)
        try:
            if result.file is not NULL:
                data = bytes(bytearray(result.size_bytes))
                target = <char *>data
                with nogil:
                    got = io_read(result.file.fd, target, result.size_bytes, result.position)
                if got < 0:
                    raise OSError(-got, "log read")
            aborted = [AbortedTransaction(result.aborted[slot].producer_id, result.aborted[slot].first_offset,
                                          result.aborted[slot].last_offset, result.aborted[slot].last_stable_offset)
                       for slot in range(result.aborted_count)]
            return ReadInfo(result.error, result.high_watermark, result.last_stable_offset, result.log_start_offset,
                            data[:got], result.position, aborted)
        finally:
            if result.file is not NULL:
                open_file_release(result.file)
            free(result.aborted)

    def probe(self, int64_t offset, int64_t max_bytes=1048576, *, int8_t isolation=0):
        cdef Partition *state = self.partition
        cdef ReadProbe result
        with nogil:
            partition_probe(state, offset, max_bytes, isolation, &result)
        return result.error, result.available_bytes, bool(result.crosses_segment)

    def offset_for_timestamp(self, int64_t timestamp_ms, *, int8_t isolation=0):
        cdef Partition *state = open_state(self)
        cdef Found found
        cdef int32_t rc
        cdef int64_t upper = atomic_load(&state.last_stable) if isolation == 1 else atomic_load(&state.high_watermark)
        with nogil:
            rc = find_timestamp(state, timestamp_ms, upper, &found)
        if rc < 0:
            raise OSError(-rc, "log read")
        return OffsetAndTimestamp(found.offset, found.timestamp_ms, found.leader_epoch)

    # ---- maintenance

    def flush(self, int64_t up_to=-1):
        cdef Partition *state = open_state(self)
        cdef int32_t rc
        with nogil:
            rc = partition_flush(state, up_to)
        if rc != 0:
            raise OSError(-rc, os.strerror(-rc), self.directory)
        return atomic_load(&state.flushed)

    def roll(self):
        cdef Partition *state = open_state(self)
        cdef PendingSnapshot snapshot
        cdef int32_t rc
        memset(&snapshot, 0, sizeof(snapshot))
        with nogil:
            mutex_lock(&state.append_lock)
            rc = roll_segment(state, atomic_load(&state.log_end), clock_wall_ms(state.clock), &snapshot)
            mutex_unlock(&state.append_lock)
            store_snapshot(state, &snapshot)
        if rc != 0:
            raise OSError(-rc, os.strerror(-rc), self.directory)

    def apply_retention(self, int64_t now_ms):
        cdef Partition *state = open_state(self)
        cdef int32_t rc
        with nogil:
            rc = apply_retention(state, now_ms)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc), self.directory)
        return rc

    def purge_deleted(self, int64_t now_ms):
        cdef Partition *state = self.partition
        cdef int32_t count
        with nogil:
            count = purge_deleted(state, now_ms, False)
        return count

    def delete_records(self, int64_t offset):
        cdef Partition *state = open_state(self)
        cdef int64_t mark, start
        with nogil:
            mutex_lock(&state.append_lock)
            mark = atomic_load(&state.high_watermark)
            if offset == -1:
                offset = mark
            if 0 <= offset <= mark and offset > atomic_load(&state.log_start):
                atomic_store(&state.log_start, offset)
            start = atomic_load(&state.log_start)
            mutex_unlock(&state.append_lock)
        if offset < 0 or offset > mark:
            raise ValueError(f"offset {offset} is not between 0 and the high watermark {mark}")
        return start

    def truncate_to(self, int64_t offset):
        cdef Partition *state = open_state(self)
        cdef int64_t start = atomic_load(&state.log_start), flushed = atomic_load(&state.flushed)
        if self.in_memory:
            raise ValueError("an in-memory log cannot be truncated")
        if offset < start:
            raise ValueError(f"offset {offset} is below the log start {start}")
        with nogil:
            mutex_lock(&state.append_lock)
        try:
            if offset < atomic_load(&state.log_end) or atomic_load(&state.damage_offset) != INT64_MAX:
                cut_partition(state, self.directory, offset)
                atomic_store(&state.high_watermark, 0)
                load_partition(state, self.directory, True, 0, start)
                atomic_store(&state.flushed, min(flushed, atomic_load(&state.log_end)))
        finally:
            mutex_unlock(&state.append_lock)

    def expire_producers(self, int64_t now_ms):
        cdef Partition *state = open_state(self)
        with nogil:
            mutex_lock(&state.append_lock)
            producer_state_expire(state.producers, now_ms, state.config.producer_expiration_ms)
            mutex_unlock(&state.append_lock)

    def update_config(self, config):
        cdef Partition *state = self.partition
        cdef LogConfig fresh
        cdef bint moved
        parse_config(config, &fresh)
        with nogil:
            mutex_lock(&state.append_lock)
            mutex_lock(&state.view_lock)
            state.config = fresh
            mutex_unlock(&state.view_lock)
            moved = advance_watermarks(state)
            mutex_unlock(&state.append_lock)
            if moved:
                call_hook(state, False)

    def close(self, bint clean=True):
        cdef Partition *state = self.partition
        cdef PendingSnapshot snapshot
        cdef SegmentList *view
        cdef int32_t slot, rc = 0
        if atomic_load(&state.closed):
            return
        memset(&snapshot, 0, sizeof(snapshot))
        with nogil:
            if clean:
                rc = flush_log(state, -1)
            mutex_lock(&state.append_lock)
            atomic_store(&state.closed, 1)
            if clean and rc >= 0:
                take_snapshot(state, &snapshot)
                if state.directory is not NULL and atomic_load(&state.active.size_bytes) > 0:
                    segment_seal(state.active)
                    if state.config.preallocate:
                        segment_give_back(state.active)
            mutex_unlock(&state.append_lock)
            call_hook(state, False)     # who waits for its records or for the disk need not wait longer
            store_snapshot(state, &snapshot)
            view = view_acquire(state)
            for slot in range(view.count):
                if state.directory is not NULL:
                    segment_close_file(view.segments[slot])
            segment_list_release(view)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc), self.directory)

    def delete(self):
        cdef Partition *state = self.partition
        with nogil:
            mutex_lock(&state.append_lock)
            atomic_store(&state.closed, 1)
            mutex_unlock(&state.append_lock)
            call_hook(state, False)     # waiting fetches are answered: the partition is gone
            purge_deleted(state, 0, True)
        if self.directory is not None and os.path.isdir(self.directory):
            import shutil
            gone = f"{self.directory}.{uuid.uuid4().hex}-delete"
            if len(os.path.basename(gone)) > 255:
                gone = os.path.join(os.path.dirname(self.directory), f"{uuid.uuid4().hex}-delete")
            os.rename(self.directory, gone)
            shutil.rmtree(gone)

    def _inject_fault(self, int32_t write_errno=0, int32_t sync_errno=0):
        """Tests: the next writes stop half way with write_errno, the next syncs fail with sync_errno; 0 ends it."""
        atomic_store(&self.partition.write_fault, write_errno)
        atomic_store(&self.partition.sync_fault, sync_errno)

    # ---- facts

    @property
    def topic_id(self):
        return (<char *>self.partition.topic_id)[:16]

    @property
    def log_end_offset(self):
        return atomic_load(&self.partition.log_end)

    @property
    def high_watermark(self):
        return atomic_load(&self.partition.high_watermark)

    @property
    def last_stable_offset(self):
        return atomic_load(&self.partition.last_stable)

    @property
    def log_start_offset(self):
        return atomic_load(&self.partition.log_start)

    @property
    def flushed_offset(self):
        return atomic_load(&self.partition.flushed)

    @property
    def flush_target(self):
        cdef Partition *state = self.partition
        cdef int64_t target
        with nogil:
            target = partition_flush_target(state)
        return target

    @property
    def leader_epoch(self):
        return atomic_load(&self.partition.leader_epoch)

    @property
    def is_closed(self):
        return atomic_load(&self.partition.closed) != 0

    @property
    def is_failed(self):
        return atomic_load(&self.partition.is_failed) != 0

    @property
    def producer_count(self):
        cdef Partition *state = self.partition
        cdef int64_t count
        with nogil:
            mutex_lock(&state.append_lock)
            count = producer_state_count(state.producers)
            mutex_unlock(&state.append_lock)
        return count

    @property
    def damage(self):
        cdef Partition *state = self.partition
        cdef char *text = NULL
        if atomic_load(&state.damage_offset) == INT64_MAX:
            return None
        with nogil:
            mutex_lock(&state.view_lock)
            if state.damage_text is not NULL:
                text = strdup(state.damage_text)
            mutex_unlock(&state.view_lock)
        if text is NULL:
            return "damaged"
        try:
            return (<bytes>text).decode()
        finally:
            free(text)

    @property
    def cut(self):
        cdef Partition *state = self.partition      # written while it is opened only
        return None if state.cut_text is NULL else (<bytes>state.cut_text).decode()

    @property
    def damage_offset(self):
        cdef int64_t offset = atomic_load(&self.partition.damage_offset)
        return None if offset == INT64_MAX else offset

    def segments(self):
        cdef Partition *state = self.partition
        cdef SegmentList *view
        cdef LogSegment *segment
        cdef int32_t slot
        with nogil:
            view = view_acquire(state)
        try:
            facts = []
            for slot in range(view.count):
                segment = view.segments[slot]
                facts.append(SegmentFacts(segment.base_offset, atomic_load(&segment.size_bytes),
                                          atomic_load(&segment.max_timestamp_ms), atomic_load(&segment.offsets.entries),
                                          atomic_load(&segment.times.entries)))
            return facts
        finally:
            segment_list_release(view)

    @property
    def size_bytes(self):
        return sum(facts.size_bytes for facts in self.segments())

    def leader_epochs(self):
        """[(epoch, first offset)], oldest first."""
        cdef Partition *state = self.partition
        cdef int32_t slot, count
        cdef int64_t *pairs
        with nogil:
            mutex_lock(&state.append_lock)
            count = state.epoch_count
            pairs = <int64_t *>malloc(<size_t>(2 * count + 1) * sizeof(int64_t))
            if pairs is not NULL:
                for slot in range(count):
                    pairs[2 * slot] = state.epochs[slot]
                    pairs[2 * slot + 1] = state.epoch_starts[slot]
            mutex_unlock(&state.append_lock)
        if pairs is NULL:
            raise MemoryError
        result = [(pairs[2 * slot], pairs[2 * slot + 1]) for slot in range(count)]
        free(pairs)
        return result
