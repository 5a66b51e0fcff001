"""Append to a partition (UnifiedLog.append): from the bytes of a Produce request to the new high watermark."""
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from kbroker._core.clock cimport clock_wall_ms
from kbroker._core.codec.bytes cimport store_16, store_32, store_64
from kbroker._core.containers.buffer cimport Buffer
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.common._errors cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS,
    RECORD_LIST_TOO_LARGE, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker.log._partition cimport (
    FAILED_APPEND, NEW_FILE, RECENT_APPENDS, AppendResult, LogConfig, Partition, RecentAppend, advance_watermarks,
    call_hook, count_failure, forget_latest_epoch, note_leader_epoch, write_leader_epochs,
)
from kbroker.log._posix cimport ENOMEM, io_truncate, io_write, io_write_parts, iovec
from kbroker.log._retention cimport PendingSnapshot, roll_segment, should_roll, store_snapshot
from kbroker.log._validate cimport BatchCheck, accept_prevalidated_batch, validate_batch, whole_batch_bytes
from kbroker.log.producers._producer_state cimport (
    PRODUCER_CHECK_DUPLICATE, AbortedTxn, BatchFacts, Duplicate, producer_state_aborts, producer_state_apply,
    producer_state_check, producer_state_verify,
)
from kbroker.log.producers._producer_table cimport NO_GUARD, NOT_VERIFIED
from kbroker.log.segment._segment cimport LogSegment, segment_note_append, segment_open
from kbroker.log.segment._txn_index cimport txn_index_append
from kbroker.protocol._batch_format cimport (
    BATCH_HEADER_BYTES, CONTROL_BIT, PARTITION_LEADER_EPOCH_AT, TRANSACTIONAL_BIT,
)
from kbroker.protocol._records cimport BatchHeader, batch_put_header, record_put

cdef enum:
    MAX_BATCHES = 1024          # limit for one internal append
    PARTS_AT_ONCE = 64          # buffers of one system call
    END_MARKER_BYTES = 78       # header 61, then one record: length, attributes, two deltas, key 4, value 6, headers


cdef inline void refuse(AppendResult *out, int16_t error, const char *message) noexcept nogil:
    out.error = error
    out.message = message
    out.base_offset = -1
    out.last_offset = -1


cdef int64_t write_parts(int fd, const BatchCheck *checks, int32_t count, int64_t position) noexcept nogil:
    cdef iovec parts[PARTS_AT_ONCE]
    cdef int64_t rc, done = 0
    cdef int32_t at = 0, n
    while at < count:
        n = 0
        while n < PARTS_AT_ONCE and at < count:
            parts[n].iov_base = checks[at].data
            parts[n].iov_len = <size_t>checks[at].size_bytes
            n += 1
            at += 1
        rc = io_write_parts(fd, parts, n, position + done)
        if rc < 0:
            return rc
        done += rc
    return done


cdef int32_t write_batches(Partition *partition, LogSegment *segment, const BatchCheck *checks, int32_t count,
                           int64_t position) noexcept nogil:
    """Write all batches at position; return 0, or -errno after a partial write was cut off again."""
    cdef int32_t error = 0
    cdef int64_t rc
    cdef OpenFile *file = segment_open(segment, &error)
    if file is NULL:
        return error
    if atomic_load(&partition.write_fault) != 0:
        rc = io_write(file.fd, checks[0].data, checks[0].size_bytes // 2, position)
        rc = -atomic_load(&partition.write_fault)
    elif count == 1:
        rc = io_write(file.fd, checks[0].data, checks[0].size_bytes, position)
    else:
        rc = write_parts(file.fd, checks, count, position)
    if rc < 0:
        io_truncate(file.fd, position)
    open_file_release(file)
    return 0 if rc >= 0 else <int32_t>rc


cdef int32_t index_aborted(Partition *partition, LogSegment *segment, const AbortedTxn *aborted,
                           int64_t position) noexcept nogil:
    """Index an aborted transaction before readers see the marker at position; return 0 or -errno.

    Without the entry, readers would take the aborted records for committed ones. On a failure the marker is cut off,
    and the coordinator writes it later.
    """
    cdef int32_t rc = txn_index_append(&segment.aborted, aborted), error = 0
    cdef OpenFile *file
    if rc == 0:
        atomic_store(&partition.new_names, atomic_load(&partition.new_names) | NEW_FILE)
        return 0
    file = segment_open(segment, &error)
    if file is not NULL:
        io_truncate(file.fd, position)
        open_file_release(file)
    return rc


cdef struct Placed:             # totals of batches with assigned offsets
    int64_t size_bytes
    int64_t first               # offset of the first record
    int64_t end                 # offset after the last record
    int64_t largest_ms          # largest timestamp; -1: none


cdef bint refuse_closed(Partition *partition, AppendResult *out) noexcept nogil:
    """Return whether the partition refuses all appends; if so, set the error in out."""
    if atomic_load(&partition.closed):
        refuse(out, UNKNOWN_TOPIC_OR_PARTITION, b"The partition is deleted or closed")
        return True
    if atomic_load(&partition.is_failed):
        count_failure(partition, FAILED_APPEND, 0)
        refuse(out, KAFKA_STORAGE_ERROR, b"A sync of this partition failed: no append until the broker restarts")
        return True
    if atomic_load(&partition.damage_offset) != INT64_MAX:
        count_failure(partition, FAILED_APPEND, 0)
        refuse(out, KAFKA_STORAGE_ERROR, b"The log of this partition is damaged: see kbroker log verify")
        return True
    return False


cdef inline bint refuse_under_min_isr(Partition *partition, int16_t acks, AppendResult *out) noexcept nogil:
    """Return whether an append with acks=all is refused for too few replicas in sync, which Kafka checks first."""
    if acks != -1 or not atomic_load(&partition.is_under_min_isr):
        return False
    refuse(out, NOT_ENOUGH_REPLICAS, NULL)
    return True


cdef void place_batches(Partition *partition, BatchCheck *checks, int32_t count, int32_t epoch,
                        Placed *out) noexcept nogil:
    """Write offsets and the leader epoch into the batches; set out."""
    cdef int32_t slot
    cdef BatchFacts *facts
    out.first = out.end = atomic_load(&partition.log_end)
    out.size_bytes = 0
    out.largest_ms = -1
    for slot in range(count):
        facts = &checks[slot].facts
        facts.base_offset = out.end
        facts.last_offset = out.end + facts.last_offset_delta
        store_64(checks[slot].data, out.end)
        store_32(checks[slot].data + PARTITION_LEADER_EPOCH_AT, epoch)
        out.size_bytes += checks[slot].size_bytes
        out.end = facts.last_offset + 1
        if checks[slot].max_timestamp_ms > out.largest_ms:
            out.largest_ms = checks[slot].max_timestamp_ms


cdef int32_t prepare_segment(Partition *partition, const Placed *placed, int32_t epoch, int64_t now_ms,
                             PendingSnapshot *snapshot) noexcept nogil:
    """Record a new leader epoch, and roll the segment if that is due; return 0 or -errno."""
    cdef int32_t rc = note_leader_epoch(partition, epoch, placed.first)
    if rc == 1:
        rc = write_leader_epochs(partition)
        if rc != 0:
            forget_latest_epoch(partition)
    if rc == 0 and should_roll(partition, placed.size_bytes, placed.largest_ms, placed.end - 1, now_ms):
        rc = roll_segment(partition, placed.first, now_ms, snapshot)
    return rc


cdef bint check_producers(Partition *partition, const BatchCheck *checks, int32_t count,
                          AppendResult *out) noexcept nogil:
    """Return whether epochs and sequences allow the append; if not, out has the error, or a duplicate's offsets."""
    cdef int32_t slot, rc
    cdef Duplicate duplicate
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
                out.flush_offset = out.last_offset + 1  # the original still waits for the disk, and so does its repeat
            return False
        if rc != 0:
            if rc == KAFKA_STORAGE_ERROR:       # no memory for the producer's entry
                count_failure(partition, FAILED_APPEND, ENOMEM)
            refuse(out, <int16_t>rc, b"The batch's producer epoch or sequence was refused")
            return False
    return True


cdef void publish_append(Partition *partition, const Placed *placed, int64_t position, const BatchCheck *checks,
                         int32_t count) noexcept nogil:
    """Make written batches visible to readers, and apply them to the indexes and to the producers."""
    cdef LogSegment *segment = partition.active
    cdef RecentAppend *recent
    cdef AbortedTxn aborted
    cdef const BatchFacts *facts
    cdef int64_t at = position, largest_ms
    cdef int32_t slot
    mutex_lock(&partition.view_lock)
    if partition.recent is NULL:
        partition.recent = <RecentAppend *>calloc(RECENT_APPENDS, sizeof(RecentAppend))
    if partition.recent is not NULL:
        for slot in range(count):
            facts = &checks[slot].facts
            recent = &partition.recent[partition.recent_count % RECENT_APPENDS]
            recent.base_offset = facts.base_offset
            recent.end_offset = facts.last_offset + 1
            recent.segment_base = segment.base_offset
            recent.position = at
            partition.recent_count += 1
            at += checks[slot].size_bytes
    at = position + placed.size_bytes
    mutex_unlock(&partition.view_lock)
    # Store the end offset before the size: a reader loads the size first, so all bytes that it gets are below the end.
    atomic_store(&partition.log_end, placed.end)
    atomic_store(&segment.size_bytes, at)
    at = position
    for slot in range(count):
        facts = &checks[slot].facts
        largest_ms = checks[slot].max_timestamp_ms
        segment_note_append(segment, at, checks[slot].size_bytes, facts.last_offset, largest_ms, facts.last_offset,
                            partition.config.index_interval_bytes)
        at += checks[slot].size_bytes
        if facts.producer_id >= 0:
            producer_state_apply(partition.producers, facts, &aborted)


cdef void append_checked(Partition *partition, BatchCheck *checks, int32_t count, bint is_run, int64_t now_ms,
                         PendingSnapshot *snapshot, AppendResult *out) noexcept nogil:
    """Append validated batches, under the append lock. ``is_run``: the producers have been checked already."""
    cdef int32_t rc, epoch = <int32_t>atomic_load(&partition.leader_epoch)
    cdef int64_t position
    cdef Placed placed
    cdef AbortedTxn aborted
    if refuse_closed(partition, out):
        return
    place_batches(partition, checks, count, epoch, &placed)
    if placed.size_bytes > partition.config.segment_bytes:
        refuse(out, RECORD_LIST_TOO_LARGE, b"The records are larger than segment.bytes")
        return
    rc = prepare_segment(partition, &placed, epoch, now_ms, snapshot)
    if rc == 0:
        if not is_run and not check_producers(partition, checks, count, out):
            return
        position = atomic_load(&partition.active.size_bytes)
        rc = write_batches(partition, partition.active, checks, count, position)
        if rc == 0 and count == 1 and producer_state_aborts(partition.producers, &checks[0].facts, &aborted):
            rc = index_aborted(partition, partition.active, &aborted, position)
    if rc != 0:
        count_failure(partition, FAILED_APPEND, -rc)
        refuse(out, KAFKA_STORAGE_ERROR, b"The log cannot be written")
        return
    publish_append(partition, &placed, position, checks, count)
    out.base_offset = placed.first
    out.last_offset = placed.end - 1
    if placed.end - atomic_load(&partition.flushed) >= partition.config.flush_messages:
        out.flush_offset = placed.end
    out.high_watermark_moved = advance_watermarks(partition)


cdef inline void hide_log_start(AppendResult *out, bint before_log) noexcept nogil:
    """Set the log start offset to -1 if the request itself is refused, as Kafka does; other refusals keep it."""
    if before_log or out.error in (CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE,
                                   RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR):
        out.log_start_offset = -1


cdef bint has_control_batch(const BatchCheck *checks, int32_t count) noexcept nogil:
    """Return whether one of the batches is a control batch, which internal appends must not contain.

    An abort marker must be indexed before readers see it, which only the append of a single batch does.
    """
    cdef int32_t slot
    for slot in range(count):
        if checks[slot].facts.is_control:
            return True
    return False


cdef void release_checks(BatchCheck *checks, int32_t count, BatchCheck *grown) noexcept nogil:
    cdef int32_t slot
    for slot in range(count):
        free(checks[slot].rebuilt)
    free(grown)


cdef int64_t begin_append(Partition *partition, LogConfig *config, AppendResult *out) noexcept nogil:
    """Initialize the result and copy the settings; return the time in milliseconds."""
    memset(out, 0, sizeof(AppendResult))
    out.base_offset = -1
    out.last_offset = -1
    out.log_append_time_ms = -1
    out.bad_record = -1
    out.log_start_offset = atomic_load(&partition.log_start)
    mutex_lock(&partition.view_lock)
    config[0] = partition.config
    mutex_unlock(&partition.view_lock)
    return clock_wall_ms(partition.clock)


cdef void refuse_checked(BatchCheck *check, AppendResult *out) noexcept nogil:
    refuse(out, check.error, check.message)
    out.bad_record = check.bad_record
    out.bad_records = check.bad_records
    out.bad_count = check.bad_count
    hide_log_start(out, check.before_log)


cdef bint follows_in_run(Partition *partition, const BatchCheck *checks, int32_t at) noexcept nogil:
    """Return whether the producer of batch ``at`` may write it once the batches before it are written."""
    cdef const BatchFacts *facts = &checks[at].facts
    cdef const BatchFacts *before
    cdef int32_t slot = at - 1
    cdef Duplicate duplicate
    if facts.is_transactional or facts.is_control:
        return False
    if facts.producer_id < 0:
        return True
    while slot >= 0:
        before = &checks[slot].facts
        if before.producer_id == facts.producer_id:
            return facts.producer_epoch == before.producer_epoch and facts.base_sequence == (
                0 if before.last_sequence == INT32_MAX else before.last_sequence + 1)
        slot -= 1
    return producer_state_check(partition.producers, facts, &duplicate) == 0


cdef int32_t run_length(Partition *partition, const BatchCheck *checks, int32_t count, int64_t now_ms) noexcept nogil:
    """Return the number of batches, at least 1, that one write can append as if each had been appended alone.

    Under the append lock. A refusal, a full segment, or a transactional batch ends the run.
    """
    cdef int64_t size_bytes = checks[0].size_bytes, largest_ms = checks[0].max_timestamp_ms
    cdef int64_t last_offset = atomic_load(&partition.log_end) + checks[0].facts.last_offset_delta
    cdef int32_t length = 1
    if (atomic_load(&partition.active.size_bytes) == 0      # a segment's first batch sets the time of its next roll
            or not follows_in_run(partition, checks, 0)
            or should_roll(partition, size_bytes, largest_ms, last_offset, now_ms)):
        return 1
    while length < count and follows_in_run(partition, checks, length):
        size_bytes += checks[length].size_bytes
        last_offset += 1 + checks[length].facts.last_offset_delta
        if checks[length].max_timestamp_ms > largest_ms:
            largest_ms = checks[length].max_timestamp_ms
        if should_roll(partition, size_bytes, largest_ms, last_offset, now_ms):
            break
        length += 1
    return length


cdef int32_t append_good(Partition *partition, BatchCheck *checks, int32_t count, bint is_run, int64_t now_ms,
                         const LogConfig *config, AppendResult *out) noexcept nogil:
    """Append batches that passed their checks; return the number appended: of a run maybe only the first batches.

    For a run, out is the result of the first batch.
    """
    cdef PendingSnapshot snapshot
    cdef int64_t active_base
    cdef int32_t slot
    cdef bint rolled
    memset(&snapshot, 0, sizeof(snapshot))
    mutex_lock(&partition.append_lock)
    if is_run:
        count = run_length(partition, checks, count, now_ms)
    active_base = partition.active.base_offset
    append_checked(partition, checks, count, is_run and count > 1, now_ms, &snapshot, out)
    rolled = partition.active.base_offset != active_base
    out.log_start_offset = atomic_load(&partition.log_start)
    mutex_unlock(&partition.append_lock)
    hide_log_start(out, False)
    if out.error == 0 and not out.is_duplicate and config.log_append_time:
        out.log_append_time_ms = now_ms
    if out.error == 0:
        for slot in range(count if not is_run else 1):
            out.conversion_ns += checks[slot].conversion_ns
    store_snapshot(partition, &snapshot)
    if rolled or out.flush_offset > 0:
        call_hook(partition, True)
    return count


cdef void share_result(Partition *partition, const BatchCheck *checks, int32_t count, const int32_t *owners,
                       AppendPart *parts) noexcept nogil:
    """Derive the results of batches that were appended in one write from the result of the first batch."""
    cdef const AppendResult *first = &parts[owners[0]].result
    cdef AppendResult *result
    cdef int64_t flushed = atomic_load(&partition.flushed), flush_messages = partition.config.flush_messages
    cdef int32_t slot = count - 1
    cdef bint waits = first.flush_offset > 0        # false: no flush was started, even if the config has changed
    while slot >= 0:
        result = &parts[owners[slot]].result
        if slot > 0:
            result[0] = first[0]
            result.high_watermark_moved = False     # reported with the first batch
        if result.error == 0:
            result.base_offset = checks[slot].facts.base_offset
            result.last_offset = checks[slot].facts.last_offset
            result.conversion_ns = checks[slot].conversion_ns
            result.flush_offset = result.last_offset + 1
            if not waits or result.flush_offset - flushed < flush_messages:
                result.flush_offset = 0
        slot -= 1


cdef void partition_append_run(Partition *partition, AppendPart *parts, int32_t count) noexcept nogil:
    cdef BatchCheck checks[RUN_PARTS]
    cdef int32_t owners[RUN_PARTS]
    cdef AppendResult none
    cdef LogConfig config
    cdef int64_t now_ms = begin_append(partition, &config, &none)
    cdef int32_t slot, at = 0, valid = 0, taken
    for slot in range(count):
        parts[slot].result = none
        if refuse_under_min_isr(partition, parts[slot].acks, &parts[slot].result):
            continue
        validate_batch(parts[slot].records, parts[slot].size_bytes, partition.clock, now_ms, &config,
                       parts[slot].api_version, True, &checks[valid])
        if checks[valid].error != 0:
            refuse_checked(&checks[valid], &parts[slot].result)
            free(checks[valid].rebuilt)
        else:
            checks[valid].facts.guard = NOT_VERIFIED
            owners[valid] = slot
            valid += 1
    while at < valid:
        taken = append_good(partition, checks + at, valid - at, True, now_ms, &config, &parts[owners[at]].result)
        if taken > 1:
            share_result(partition, checks + at, taken, owners + at, parts)
        at += taken
    release_checks(checks, valid, NULL)


cdef void partition_append(Partition *partition, char *batch, int64_t size_bytes, int16_t acks, int16_t api_version,
                           bint is_client, int64_t guard, AppendResult *out) noexcept nogil:
    cdef BatchCheck single
    cdef BatchCheck *checks = &single
    cdef BatchCheck *grown = NULL
    cdef LogConfig config
    cdef int64_t now_ms = begin_append(partition, &config, out), at = 0, total
    cdef int32_t count = 0
    if refuse_under_min_isr(partition, acks, out):
        return
    if not is_client and whole_batch_bytes(batch, size_bytes) not in (0, -1, size_bytes):
        grown = <BatchCheck *>malloc(MAX_BATCHES * sizeof(BatchCheck))
        if grown is NULL:
            refuse(out, UNKNOWN_SERVER_ERROR, b"Out of memory")
            return
        checks = grown
    while True:
        validate_batch(batch + at, size_bytes - at, partition.clock, now_ms, &config, api_version, is_client,
                       &checks[count])
        if checks[count].error != 0:
            refuse_checked(&checks[count], out)
            release_checks(checks, count, grown)
            return
        checks[count].facts.guard = guard
        at += checks[count].taken_bytes
        count += 1
        if is_client:
            break
        total = whole_batch_bytes(batch + at, size_bytes - at)
        if total == 0:
            break                               # Kafka also ignores trailing bytes that are not a batch
        if count == MAX_BATCHES:
            refuse(out, MESSAGE_TOO_LARGE, b"Too many batches in one append")
            release_checks(checks, count, grown)
            return
    if count > 1 and has_control_batch(checks, count):
        refuse(out, INVALID_RECORD, b"A control batch is appended alone")
    else:
        append_good(partition, checks, count, False, now_ms, &config, out)
    release_checks(checks, count, grown)


cdef void partition_append_built(Partition *partition, char *batch, int64_t size_bytes,
                                 AppendResult *out) noexcept nogil:
    cdef BatchCheck check
    cdef LogConfig config
    cdef int64_t now_ms = begin_append(partition, &config, out)
    accept_prevalidated_batch(batch, size_bytes, partition.clock, now_ms, &config, &check)
    if check.error != 0:
        refuse_checked(&check, out)
        return
    append_good(partition, &check, 1, False, now_ms, &config, out)
    release_checks(&check, 1, NULL)


cdef void build_end_marker(char *batch, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                           bint is_commit, int64_t now_ms) noexcept nogil:
    cdef char key[4]
    cdef char value[6]
    cdef Buffer out             # over the caller's memory, which the record fills exactly
    cdef BatchHeader header
    out.data, out.size, out.capacity = batch, BATCH_HEADER_BYTES, END_MARKER_BYTES
    store_16(key, 0)            # key and value have version 0
    store_16(key + 2, 1 if is_commit else 0)
    store_16(value, 0)
    store_32(value + 2, coordinator_epoch)
    record_put(&out, 0, 0, key, sizeof(key), value, sizeof(value), 0, NULL, 0)
    memset(&header, 0, sizeof(BatchHeader))
    header.attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    header.base_timestamp_ms = header.max_timestamp_ms = now_ms
    header.producer_id = producer_id
    header.producer_epoch = producer_epoch
    header.base_sequence = -1                                 # no sequence
    header.record_count = 1
    batch_put_header(batch, END_MARKER_BYTES, &header)


cdef void partition_append_end_marker(Partition *partition, int64_t producer_id, int16_t producer_epoch,
                                      int32_t coordinator_epoch, bint is_commit, int16_t transaction_version,
                                      AppendResult *out) noexcept nogil:
    cdef char batch[END_MARKER_BYTES]
    cdef BatchCheck check
    cdef LogConfig config
    cdef int64_t now_ms = begin_append(partition, &config, out)
    if refuse_under_min_isr(partition, -1, out):
        return
    config.max_message_bytes = END_MARKER_BYTES     # the limit is for clients; a transaction must be able to end
    build_end_marker(batch, producer_id, producer_epoch, coordinator_epoch, is_commit, now_ms)
    accept_prevalidated_batch(batch, END_MARKER_BYTES, partition.clock, now_ms, &config, &check)
    check.facts.transaction_version = transaction_version
    append_good(partition, &check, 1, False, now_ms, &config, out)
    release_checks(&check, 1, NULL)


cdef int32_t partition_start_verification(Partition *partition, int64_t producer_id, int16_t producer_epoch,
                                          int32_t base_sequence, bint bumps_epochs, int64_t *guard) noexcept nogil:
    cdef int64_t now_ms = clock_wall_ms(partition.clock)
    cdef int32_t error
    guard[0] = NO_GUARD
    mutex_lock(&partition.append_lock)
    if atomic_load(&partition.closed):
        error = UNKNOWN_TOPIC_OR_PARTITION
    else:
        error = producer_state_verify(partition.producers, producer_id, producer_epoch, base_sequence, bumps_epochs,
                                      now_ms, guard)
    mutex_unlock(&partition.append_lock)
    return error
