"""Python's handle on a partition: opens, reads, appends to, maintains and closes it."""
cimport cython
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, int8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup
from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport borrow_clock, clock_retain, clock_wall_ms
from kbroker._core.open_file cimport open_file_release
from kbroker._core.sync cimport atomic_load, atomic_store, cond_init, mutex_init, mutex_lock, mutex_unlock
from kbroker.log._append cimport partition_append, partition_append_end_marker, partition_start_verification
from kbroker.log._partition cimport (
    NEW_FILE, NEW_FOLDER, AppendResult, LogConfig, Partition, ReadProbe, ReadResult, advance_watermarks, await_reads,
    call_hook, flush_log, hold_flushes, parse_config, partition_end_of_epoch, partition_flush, partition_release,
    partition_set_high_watermark_hook, release_flushes, view_acquire, write_txn_checkpoint,
)
from kbroker.log._posix cimport ENOENT, io_read
from kbroker.log._read cimport Found, find_timestamp, partition_probe, partition_read
from kbroker.log._recovery cimport adopt_copy, load_partition
from kbroker.log._retention cimport (
    PendingSnapshot, apply_retention, purge_deleted, roll_segment, store_snapshot, take_snapshot,
)
from kbroker.log.producers._producer_state cimport (
    ProducerFacts, producer_state_count, producer_state_expire, producer_state_has_late_transaction,
    producer_state_list, producer_state_new,
)
from kbroker.log.producers._producer_table cimport NOT_VERIFIED, NO_GUARD
from kbroker.log.segment._segment cimport (
    Directory, LogSegment, OpenFileCache, SegmentList, directory_new, directory_release, file_cache_retain,
    file_cache_shared, segment_close_file, segment_give_back, segment_list_release, segment_remove, segment_reserve,
    segment_seal,
)

from pathlib import Path
import os
import uuid

from kbroker.log.checkpoints import claim_partition_folder
from kbroker.log.log_types import (
    AbortedTransaction, ActiveProducer, AppendInfo, OffsetAndTimestamp, ReadInfo, SegmentFacts,
)


def topic_id_bytes(topic_id) -> bytes:
    """Return the 16 bytes of a topic id given as bytes, UUID, or Kafka's URL-safe base64 text. Raises: ValueError."""
    if isinstance(topic_id, uuid.UUID):
        return topic_id.bytes
    if isinstance(topic_id, str):
        import base64       # not needed at the start of a broker

        try:
            topic_id = base64.urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4))
        except ValueError:
            raise ValueError(f"topic_id is not URL-safe base64: {topic_id!r}") from None
    if not isinstance(topic_id, bytes) or len(topic_id) != 16:
        raise ValueError("topic_id must be 16 bytes, a uuid.UUID or its 22-character base64 text")
    return topic_id


cdef Partition *open_state(PartitionLog log) except NULL:
    if atomic_load(&log.partition.closed):
        raise ValueError(f"{log.topic}-{log.partition_id} is closed")
    return log.partition


cdef void close_files(Partition *state) noexcept nogil:
    """Close the files of a closed partition, which deletes those in memory. Reads in progress keep theirs."""
    cdef SegmentList *view = view_acquire(state)
    cdef int32_t slot
    for slot in range(view.count):
        if state.directory is NULL:
            segment_remove(view.segments[slot], True)
        else:
            segment_close_file(view.segments[slot])
    segment_list_release(view)
    if state.directory is NULL:
        purge_deleted(state, 0, True)


@cython.final
cdef class PartitionLog:
    """One partition's log. See _partition_log.pyi for the contract of each method."""

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
        state.txn_checkpoint = -1
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
                claim_partition_folder(Path(self.directory), uuid.UUID(bytes=identity))
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

    def append(self, records, *, int16_t acks=-1, int16_t api_version=11, bint is_client=True,
               int64_t verification_guard=NOT_VERIFIED):
        cdef Partition *state = self.partition
        cdef bytes data = bytes(records)
        cdef int64_t size = len(data)
        cdef char *copy = <char *>malloc(size if size > 0 else 1)
        cdef AppendResult result
        if copy is NULL:
            raise MemoryError
        memcpy(copy, <const char *>data, size)
        with nogil:
            partition_append(state, copy, size, acks, api_version, is_client, verification_guard, &result)
            free(copy)
            if result.high_watermark_moved:
                # The native handlers complete delayed fetches after their own appends; this append must do it here.
                call_hook(state, False)
        return append_info(&result)

    def append_end_marker(self, producer_id, producer_epoch, coordinator_epoch, bint commit, *, transaction_version=0):
        cdef Partition *state = self.partition
        cdef int64_t id_ = integer(producer_id, "producer_id", 0, INT64_MAX)
        cdef int16_t epoch = <int16_t>integer(producer_epoch, "producer_epoch", -32768, 32767)
        cdef int32_t coordinator = <int32_t>integer(coordinator_epoch, "coordinator_epoch", -2147483648, 2147483647)
        cdef int16_t version = <int16_t>integer(transaction_version, "transaction_version", -32768, 32767)
        cdef AppendResult result
        with nogil:
            partition_append_end_marker(state, id_, epoch, coordinator, commit, version, &result)
            if result.high_watermark_moved:
                call_hook(state, False)
        return append_info(&result)

    def start_verification(self, producer_id, producer_epoch, base_sequence, *, bint bumps_epochs=False):
        cdef Partition *state = self.partition
        cdef int64_t id_ = integer(producer_id, "producer_id", 0, INT64_MAX)
        cdef int16_t epoch = <int16_t>integer(producer_epoch, "producer_epoch", 0, 32767)
        cdef int32_t sequence = <int32_t>integer(base_sequence, "base_sequence", -1, 2147483647)
        cdef int64_t guard = NO_GUARD
        cdef int32_t error
        with nogil:
            error = partition_start_verification(state, id_, epoch, sequence, bumps_epochs, &guard)
        return error, guard

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
            open_state(self)        # deleted meanwhile: no disk has failed
            raise OSError(-rc, "log read")
        return OffsetAndTimestamp(found.offset, found.timestamp_ms, found.leader_epoch)

    # ---- maintenance

    def flush(self, int64_t up_to=-1):
        cdef Partition *state = open_state(self)
        cdef int32_t rc
        with nogil:
            rc = partition_flush(state, up_to)
        if rc == -ENOENT:
            open_state(self)        # deleted meanwhile: no disk has failed
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
        cdef int64_t mark, start, stable
        with nogil:
            mutex_lock(&state.append_lock)
            mark = atomic_load(&state.high_watermark)
            stable = atomic_load(&state.last_stable)
            if offset == -1:
                offset = mark
            if 0 <= offset <= mark and offset > atomic_load(&state.log_start):
                atomic_store(&state.log_start, offset)
                advance_watermarks(state)       # keeps the last stable offset at or above the start
            start = atomic_load(&state.log_start)
            stable = atomic_load(&state.last_stable) - stable
            mutex_unlock(&state.append_lock)
            if stable > 0:
                call_hook(state, False)
        if offset < 0 or offset > mark:
            raise ValueError(f"offset {offset} is not between 0 and the high watermark {mark}")
        return start

    def move_to(self, str directory not None, complete, commit, undo):
        cdef Partition *state = open_state(self)
        cdef bytes path = os.fsencode(directory)
        cdef SegmentList *old = NULL
        if self.in_memory:
            raise ValueError("an in-memory log has no folder")
        cdef Directory *target = directory_new(<const char *>path)
        if target is NULL:
            raise MemoryError
        with nogil:
            hold_flushes(state)
            mutex_lock(&state.append_lock)
        try:
            if atomic_load(&state.closed) or atomic_load(&state.is_failed):
                raise ValueError(f"{self.topic}-{self.partition_id} is closed or has failed")
            complete()
            try:
                commit()
                old = adopt_copy(state, directory, target)
            except BaseException:
                atomic_store(&state.is_failed, 1)       # until the copy is certain to be undone
                undo()
                atomic_store(&state.is_failed, 0)
                raise
            self.directory = directory
        finally:
            mutex_unlock(&state.append_lock)
            release_flushes(state)
            if old is NULL:
                directory_release(target)
            with nogil:
                call_hook(state, False)                 # all records are on disk: operations that wait for it complete
                if old is not NULL:
                    await_reads(state, old)
                segment_list_release(old)

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
        cdef int32_t rc = 0
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
                if atomic_load(&state.log_end) > state.view.segments[0].base_offset:
                    write_txn_checkpoint(state, True)
                if state.directory is not NULL and atomic_load(&state.active.size_bytes) > 0:
                    segment_seal(state.active)
                    if state.config.preallocate:
                        segment_give_back(state.active)
            mutex_unlock(&state.append_lock)
            call_hook(state, False)     # requests that wait for its records or for the disk complete
            store_snapshot(state, &snapshot)
            close_files(state)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc), self.directory)

    def delete(self):
        cdef Partition *state = self.partition
        with nogil:
            mutex_lock(&state.append_lock)
            atomic_store(&state.closed, 1)
            mutex_unlock(&state.append_lock)
            call_hook(state, False)     # delayed fetches complete, because the partition is deleted
            partition_set_high_watermark_hook(state, NULL, NULL)
            purge_deleted(state, 0, True)
            close_files(state)
        if self.directory is not None and os.path.isdir(self.directory):
            import shutil
            gone = f"{self.directory}.{uuid.uuid4().hex}-delete"
            if len(os.path.basename(gone)) > 255:
                gone = os.path.join(os.path.dirname(self.directory), f"{uuid.uuid4().hex}-delete")
            os.rename(self.directory, gone)
            shutil.rmtree(gone)

    def _inject_fault(self, int32_t write_errno=0, int32_t sync_errno=0):
        """Make the next writes stop halfway with write_errno and the next syncs fail with sync_errno, 0: none."""
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
    def max_message_bytes(self):
        cdef int64_t value
        with nogil:
            mutex_lock(&self.partition.view_lock)
            value = self.partition.config.max_message_bytes
            mutex_unlock(&self.partition.view_lock)
        return value

    @property
    def leader_epoch(self):
        return atomic_load(&self.partition.leader_epoch)

    def set_leader_epoch(self, int32_t epoch):
        cdef Partition *state = self.partition
        if epoch < 0:
            raise ValueError(f"epoch must be >= 0, got {epoch}")
        with nogil:
            atomic_store(&state.leader_epoch, epoch)
            call_hook(state, False)     # fetches that wait with an earlier epoch complete

    @property
    def is_under_min_isr(self):
        return atomic_load(&self.partition.is_under_min_isr) != 0

    @is_under_min_isr.setter
    def is_under_min_isr(self, bint value):
        cdef Partition *state = self.partition
        with nogil:
            mutex_lock(&state.append_lock)
            atomic_store(&state.is_under_min_isr, value)
            advance_watermarks(state)
            mutex_unlock(&state.append_lock)
            call_hook(state, False)

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

    def has_late_transaction(self, int64_t now_ms, int64_t max_timeout_ms):
        cdef Partition *state = self.partition
        cdef bint is_late
        with nogil:
            mutex_lock(&state.append_lock)
            is_late = producer_state_has_late_transaction(state.producers, now_ms, max_timeout_ms)
            mutex_unlock(&state.append_lock)
        return is_late

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
        cdef Partition *state = self.partition      # written only while the log is opened
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
        """Return [(epoch, first offset)], oldest first."""
        cdef Partition *state = self.partition
        cdef int32_t slot, count
        cdef int64_t *pairs
        with nogil:
            mutex_lock(&state.view_lock)
            count = state.epoch_count
            pairs = <int64_t *>malloc(<size_t>(2 * count + 1) * sizeof(int64_t))
            if pairs is not NULL:
                for slot in range(count):
                    pairs[2 * slot] = state.epochs[slot]
                    pairs[2 * slot + 1] = state.epoch_starts[slot]
            mutex_unlock(&state.view_lock)
        if pairs is NULL:
            raise MemoryError
        result = [(pairs[2 * slot], pairs[2 * slot + 1]) for slot in range(count)]
        free(pairs)
        return result

    def end_of_epoch(self, int32_t wanted):
        cdef int32_t epoch = -1
        cdef int64_t end = -1
        with nogil:
            partition_end_of_epoch(self.partition, wanted, &epoch, &end)
        return epoch, end


cdef object append_info(AppendResult *result):
    cdef int32_t slot
    bad_records = tuple([result.bad_records[slot].batch_index for slot in range(result.bad_count)])
    free(result.bad_records)
    return AppendInfo(result.error, result.base_offset, result.last_offset, result.log_append_time_ms,
                      result.log_start_offset, result.bad_record,
                      None if result.message is NULL else (<bytes>result.message).decode(),
                      bool(result.is_duplicate), bool(result.high_watermark_moved), result.flush_offset, bad_records)


def active_producers(PartitionLog log not None):
    cdef Partition *partition = log.partition
    cdef ProducerFacts *rows
    cdef int64_t count = 0, slot
    cdef bint failed
    with nogil:
        mutex_lock(&partition.append_lock)
        rows = producer_state_list(partition.producers, &count)
        failed = rows is NULL and producer_state_count(partition.producers) > 0
        mutex_unlock(&partition.append_lock)
    if failed:
        raise MemoryError
    try:
        found = [ActiveProducer(rows[slot].producer_id, rows[slot].producer_epoch, rows[slot].coordinator_epoch,
                                rows[slot].last_timestamp_ms, rows[slot].last_sequence,
                                rows[slot].current_txn_first_offset) for slot in range(count)]
    finally:
        free(rows)
    return sorted(found)
