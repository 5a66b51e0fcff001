"""One round of the log cleaner over a partition, and the throttle of its reads and writes.

A round builds the map of the dirty part and rewrites all segments up to its end. Appends and reads continue: the round
works on a counted view of sealed segments and takes the append lock only to swap a group of them. Source:
``Cleaner.doClean``, ``LogCleaner.scala``.

The throttle is Kafka's Throttler with an injected clock. Kafka checks every 300 ms how much was done since the last
check and sleeps off the excess. Here bytes are charged to an account as they are read and written, and a thread waits
when it is more than 300 ms ahead: the same rate, without bursts on a fast disk.
"""
cimport cython
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from kbroker._core.clock cimport (
    Clock, Waker, borrow_clock, clock_add_waker, clock_now_ns, clock_release, clock_remove_waker, clock_retain,
    clock_wait_until,
)
from kbroker._core.open_file cimport OpenFile
from kbroker._core.sync cimport (
    AtomicI64, Cond, Mutex, atomic_load, atomic_store, cond_broadcast, cond_destroy, cond_init, mutex_destroy,
    mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.log._partition cimport Partition, view_acquire
from kbroker.log._partition_log cimport PartitionLog
from kbroker.log._posix cimport ENOENT, ENOMEM
from kbroker.log.compaction._batch_filter cimport (
    CLEAN_CORRUPT, BatchFilter, OffsetMap, TxnTracker, control_type_of, filter_batch, filter_free, filter_set_producers,
    offset_map_destroy, offset_map_init, offset_map_put, offset_map_reset, tracker_free, tracker_load,
    tracker_read_data, tracker_read_marker, unpack_records,
)
from kbroker.log.compaction._cleaned_segment cimport (
    REPLACE_STALE, REPLACE_STOPPED, CleanedSegment, CrashPoint, cleaned_close, cleaned_discard, cleaned_finish,
    cleaned_open, replace_segments,
)
from kbroker.log.producers._producer_state cimport ProducerFacts, producer_state_count, producer_state_list
from kbroker.log.segment._index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kbroker.log.segment._segment cimport (
    BatchReader, LogSegment, SegmentList, batch_reader_advance, batch_reader_begin, batch_reader_body,
    batch_reader_free, batch_reader_header, segment_find_indexed, segment_list_floor, segment_list_release,
    segment_open,
)
from kbroker.log.segment._txn_index cimport TXN_INDEX_DAMAGED
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES, CONTROL_BIT
from kbroker.protocol._records cimport BatchHeader, RecordView, batch_crc_ok, record_next

import os

from kbroker.log.log_types import CleanResult, CorruptLogError

# ------------------------------------------------------------------------------------------------------------ throttle

cdef enum:
    BURST_NS = 300000000        # Kafka's checkIntervalMs
    NS_PER_S = 1000000000

cdef AtomicI64 never            # stays 0: a change of the rate ends the wait
atomic_store(&never, 0)

cdef double LONGEST_NS = 9e18   # limit of paid_ns, which a rate near zero would exceed

cdef struct Throttle:          # one account; a thread waits until its bytes are paid for
    Clock *clock                # counted
    Waker waker                 # for a virtual clock
    Mutex lock                  # leaf
    Cond moved                  # signals a change of the clock or the rate, or a stop
    AtomicI64 is_limited        # 0: no limit, and nothing is locked
    double bytes_per_second
    int64_t changes             # number of changes of the rate
    int64_t paid_ns             # time when all charged bytes are paid for


cdef void throttle_take(Throttle *throttle, int64_t size_bytes, AtomicI64 *stop) noexcept nogil:
    """Charge bytes; if over BURST_NS is unpaid, wait until all is paid for, the rate changes, or ``*stop`` is set."""
    cdef int64_t now, changes, due
    cdef double cost
    if atomic_load(&throttle.is_limited) == 0 or size_bytes <= 0:
        return
    mutex_lock(&throttle.lock)
    now = clock_now_ns(throttle.clock)
    if throttle.paid_ns < now:
        throttle.paid_ns = now
    cost = <double>size_bytes * NS_PER_S / throttle.bytes_per_second
    if cost > LONGEST_NS - <double>throttle.paid_ns:
        throttle.paid_ns = INT64_MAX
    else:
        throttle.paid_ns += <int64_t>cost
    due = throttle.paid_ns
    changes = throttle.changes
    if due - now > BURST_NS:
        while not atomic_load(stop) and changes == throttle.changes and clock_wait_until(
                throttle.clock, &throttle.moved, &throttle.lock, due):
            pass
    mutex_unlock(&throttle.lock)


cdef void throttle_wake(Throttle *throttle) noexcept nogil:
    """Wake the waiting threads, which check their ``*stop``."""
    mutex_lock(&throttle.lock)
    cond_broadcast(&throttle.moved)
    mutex_unlock(&throttle.lock)


cdef void wake(void *arg) noexcept nogil:
    throttle_wake(<Throttle *>arg)


@cython.final
cdef class ByteThrottle:
    """Throttle of the threads that share it. See _cleaner.pyi."""
    cdef Throttle throttle

    def __cinit__(self, clock, double bytes_per_second=0.0):
        mutex_init(&self.throttle.lock)
        cond_init(&self.throttle.moved)
        self.throttle.clock = clock_retain(borrow_clock(clock))
        self.throttle.waker.wake = wake
        self.throttle.waker.arg = &self.throttle
        clock_add_waker(self.throttle.clock, &self.throttle.waker)
        self.set_rate(bytes_per_second)

    def __dealloc__(self):
        if self.throttle.clock is not NULL:
            clock_remove_waker(self.throttle.clock, &self.throttle.waker)
            clock_release(self.throttle.clock)
        cond_destroy(&self.throttle.moved)
        mutex_destroy(&self.throttle.lock)

    def set_rate(self, double bytes_per_second):
        cdef bint is_limited = isfinite(bytes_per_second) and 0 < bytes_per_second < 1e18
        with nogil:
            mutex_lock(&self.throttle.lock)
            # a thread that has checked is_limited before must not wait without a limit
            self.throttle.bytes_per_second = bytes_per_second if is_limited else INFINITY
            self.throttle.changes += 1
            self.throttle.paid_ns = 0
            atomic_store(&self.throttle.is_limited, is_limited)
            cond_broadcast(&self.throttle.moved)
            mutex_unlock(&self.throttle.lock)

    def take(self, int64_t size_bytes):
        with nogil:
            throttle_take(&self.throttle, size_bytes, &never)


# --------------------------------------------------------------------------------------------------------------- round

cdef enum:
    CLEAN_STOPPED = -20004
    CLEAN_MAP_TOO_SMALL = -20005

cdef struct Round:
    Partition *partition        # borrowed
    SegmentList *view           # counted
    OffsetMap *map              # borrowed
    AtomicI64 *stop             # borrowed
    CrashPoint *crash           # borrowed
    Throttle *throttle          # borrowed; NULL: none
    BatchFilter filter
    int64_t first_dirty
    int64_t first_uncleanable
    int64_t bytes_read          # size of the rewritten segments
    int64_t bytes_written
    int32_t segments_before
    int32_t segments_after
    int64_t bad_offset          # offset before the damaged batch, for CLEAN_CORRUPT


cdef int32_t reader_open(BatchReader *reader, LogSegment *segment, int64_t from_offset) noexcept nogil:
    """Begin at the batch that contains from_offset, or at the end when no batch does. 0, CLEAN_CORRUPT or -errno."""
    cdef int32_t rc = 0
    cdef int64_t limit = atomic_load(&segment.size_bytes), position = 0
    cdef BatchHeader header
    cdef OpenFile *file = segment_open(segment, &rc) if limit > 0 else NULL
    if rc == 0 and from_offset > segment.base_offset and limit > 0:
        rc = segment_find_indexed(segment, file, from_offset, limit, &position, &header)
        if rc == 0:
            position = limit
        elif rc == -1:
            rc = CLEAN_CORRUPT
    batch_reader_begin(reader, file, position, limit, segment.base_offset)
    return min(rc, 0)


cdef inline void charge(Round *round_, int64_t size_bytes) noexcept nogil:
    """Count bytes that were read or written, and wait while they exceed the rate."""
    if round_.throttle is not NULL:
        throttle_take(round_.throttle, size_bytes, round_.stop)


cdef int32_t reader_next(BatchReader *reader) noexcept nogil:
    """Read a batch: 1: reader.batch and its header, checksum and offsets are sound; 0: the end; else an error."""
    cdef int32_t rc
    if reader.at >= reader.limit:
        return 0
    rc = batch_reader_header(reader)
    if rc == 0:
        if reader.header.batch_length + 12 < BATCH_HEADER_BYTES or reader.header.magic != 2 or (
                reader.header.last_offset_delta < 0 or reader.header.record_count < 0
                or reader.header.base_offset < reader.next_offset):
            return CLEAN_CORRUPT
        rc = batch_reader_body(reader)
    if rc < 0:
        return rc
    if rc == 1 or not batch_crc_ok(reader.batch, &reader.header):
        return CLEAN_CORRUPT
    batch_reader_advance(reader)
    return 1


# -------------------------------------------------------------------------------------------- reading the dirty part

cdef int32_t map_batch(Round *round_, BatchReader *reader, TxnTracker *transactions) noexcept nogil:
    """Add the keys of a batch to the map: 0, CLEAN_MAP_TOO_SMALL when it is full, else an error."""
    cdef const char *records
    cdef char *owned
    cdef int64_t size_bytes, at = 0
    cdef int32_t _slot, rc
    cdef RecordView record
    if reader.header.attributes & CONTROL_BIT:
        rc = tracker_read_marker(transactions, &reader.header, control_type_of(reader.batch, &reader.header), NULL)
        return rc if rc < 0 else 0
    rc = tracker_read_data(transactions, &reader.header)
    if rc != 0:
        return rc if rc < 0 else 0              # aborted records do not count
    rc = unpack_records(reader.batch, &reader.header, &owned, &records, &size_bytes)
    if rc != 0:
        return rc
    for _slot in range(reader.header.record_count):
        if record_next(records, size_bytes, &at, &reader.header, &record) != 0:
            rc = CLEAN_CORRUPT
            break
        if record.key_bytes >= 0 and record.offset >= round_.first_dirty and not offset_map_put(
                round_.map, record.key, record.key_bytes, record.offset):
            rc = CLEAN_MAP_TOO_SMALL
            break
    free(owned)
    return rc


cdef int32_t build_map(Round *round_, int64_t *end_offset) noexcept nogil:
    """Build the map of the dirty part as far as it fits: all records below *end_offset are in it."""
    cdef TxnTracker transactions
    cdef BatchReader reader
    cdef SegmentList *view = round_.view
    cdef int64_t next_base
    cdef int32_t slot = segment_list_floor(view, round_.first_dirty), rc
    memset(&transactions, 0, sizeof(TxnTracker))
    memset(&reader, 0, sizeof(BatchReader))
    end_offset[0] = round_.first_dirty
    if slot < 0:
        slot = 0
    rc = tracker_load(&transactions, view, round_.first_dirty, round_.first_uncleanable)
    if rc == 0 and not offset_map_reset(round_.map, round_.first_uncleanable - round_.first_dirty):
        rc = -ENOMEM
    while rc == 0 and slot < view.count - 1 and view.segments[slot].base_offset < round_.first_uncleanable:
        next_base = view.segments[slot + 1].base_offset
        rc = reader_open(&reader, view.segments[slot], round_.first_dirty)
        while rc == 0:
            if atomic_load(round_.stop):
                rc = CLEAN_STOPPED
                break
            rc = reader_next(&reader)
            if rc != 1:
                break
            charge(round_, reader.header.batch_length + 12)
            rc = map_batch(round_, &reader, &transactions)
            if rc == 0:
                end_offset[0] = reader.next_offset
        if rc == CLEAN_MAP_TOO_SMALL:
            rc = 0 if end_offset[0] > round_.first_dirty else CLEAN_MAP_TOO_SMALL
            break
        if rc == 0:
            end_offset[0] = next_base
        slot += 1
    if rc == CLEAN_CORRUPT:
        round_.bad_offset = reader.next_offset
    tracker_free(&transactions)
    batch_reader_free(&reader)
    return rc


# ------------------------------------------------------------------------------------------------------------ rewriting

cdef int32_t load_producers(Round *round_) noexcept nogil:
    cdef Partition *partition = round_.partition
    cdef ProducerFacts *rows
    cdef int64_t count = 0
    cdef bint failed
    mutex_lock(&partition.append_lock)
    rows = producer_state_list(partition.producers, &count)
    failed = rows is NULL and producer_state_count(partition.producers) > 0
    mutex_unlock(&partition.append_lock)
    filter_set_producers(&round_.filter, rows, count)
    return -ENOMEM if failed else 0


cdef int32_t clean_group(Round *round_, int32_t first, int32_t count) noexcept nogil:
    cdef CleanedSegment cleaned
    cdef BatchReader reader
    cdef LogSegment *segment
    cdef int64_t written
    cdef int32_t slot, rc
    memset(&reader, 0, sizeof(BatchReader))
    rc = load_producers(round_)
    if rc != 0:
        return rc
    rc = cleaned_open(&cleaned, round_.partition, round_.view.segments[first].base_offset)
    for slot in range(first, first + count):
        if rc != 0:
            break
        segment = round_.view.segments[slot]
        rc = reader_open(&reader, segment, 0)
        while rc == 0:
            if atomic_load(round_.stop):
                rc = CLEAN_STOPPED
                break
            rc = reader_next(&reader)
            if rc != 1:
                break
            written = cleaned.size_bytes
            rc = filter_batch(&round_.filter, reader.batch, &reader.header, &cleaned)
            charge(round_, reader.header.batch_length + 12 + cleaned.size_bytes - written)
        if rc == CLEAN_CORRUPT:
            round_.bad_offset = reader.next_offset
        round_.bytes_read += reader.limit
    batch_reader_free(&reader)
    if rc == 0:
        rc = cleaned_finish(&cleaned, round_.view.segments[first + count - 1], round_.crash)
    if rc == REPLACE_STOPPED:
        cleaned_close(&cleaned)
        return rc
    if rc != 0:
        cleaned_discard(&cleaned)
        return rc
    round_.bytes_written += cleaned.size_bytes
    round_.segments_before += count
    round_.segments_after += 1
    return replace_segments(round_.partition, &round_.view.segments[first], count, &cleaned, round_.filter.now_ms,
                            round_.crash)


cdef int32_t group_size(Round *round_, int32_t first, int64_t segment_bytes, int64_t index_bytes) noexcept nogil:
    """Return the number of segments of the round, from first on, that fit into one."""
    cdef SegmentList *view = round_.view
    cdef LogSegment *segment = view.segments[first]
    cdef int64_t base = segment.base_offset, size = atomic_load(&segment.size_bytes), last
    cdef int64_t offsets = atomic_load(&segment.offsets.entries) * OFFSET_ENTRY_BYTES
    cdef int64_t times = atomic_load(&segment.times.entries) * TIME_ENTRY_BYTES
    cdef int32_t count = 1
    while first + count < view.count - 1 and view.segments[first + count].base_offset < round_.filter.end_offset:
        segment = view.segments[first + count]
        size += atomic_load(&segment.size_bytes)
        offsets += atomic_load(&segment.offsets.entries) * OFFSET_ENTRY_BYTES
        times += atomic_load(&segment.times.entries) * TIME_ENTRY_BYTES
        last = view.segments[first + count + 1].base_offset - 1
        if size > segment_bytes or offsets > index_bytes or times > index_bytes:
            break
        if atomic_load(&segment.size_bytes) > 0 and last - base > INT32_MAX:
            break
        count += 1
    return count


cdef int32_t clean(Round *round_) noexcept nogil:
    cdef Partition *partition = round_.partition
    cdef int64_t end_offset = 0, segment_bytes, index_bytes
    cdef int32_t slot = 0, count, rc
    mutex_lock(&partition.view_lock)
    segment_bytes = partition.config.segment_bytes
    index_bytes = partition.config.segment_index_bytes
    mutex_unlock(&partition.view_lock)
    rc = build_map(round_, &end_offset)
    round_.filter.latest = round_.map
    round_.filter.end_offset = end_offset
    if rc == 0:                                 # the last segment may continue after the end of the round
        rc = tracker_load(&round_.filter.transactions, round_.view, round_.view.segments[0].base_offset,
                          round_.first_uncleanable)
    while rc == 0 and slot < round_.view.count - 1 and round_.view.segments[slot].base_offset < end_offset:
        count = group_size(round_, slot, segment_bytes, index_bytes)
        rc = clean_group(round_, slot, count)
        slot += count
    return rc


cdef bint has_deleted(const SegmentList *view) noexcept nogil:
    """Return whether retention has deleted a segment of the view, whose file may be missing."""
    cdef int32_t slot
    for slot in range(view.count):
        if atomic_load(&view.segments[slot].is_deleted):
            return True
    return False


@cython.final
cdef class Cleaner:
    """Memory and stop flag of a cleaner thread. See _cleaner.pyi."""
    cdef OffsetMap map
    cdef AtomicI64 stopping
    cdef CrashPoint crash
    cdef ByteThrottle throttle

    def __cinit__(self, int64_t memory_bytes, double load_factor=0.9, ByteThrottle throttle=None):
        cdef bytes secret = os.urandom(16)
        cdef uint64_t halves[2]
        if memory_bytes < 1024:
            raise ValueError(f"memory_bytes must be >= 1024, got {memory_bytes}")
        if not 0 < load_factor <= 1:
            raise ValueError(f"load_factor must be above 0 and at most 1, got {load_factor}")
        memcpy(halves, <const char *>secret, 16)
        offset_map_init(&self.map, memory_bytes, load_factor, halves[0], halves[1])
        self.throttle = throttle

    def __dealloc__(self):
        offset_map_destroy(&self.map)

    def stop(self):
        atomic_store(&self.stopping, 1)
        if self.throttle is not None:
            with nogil:
                throttle_wake(&self.throttle.throttle)

    def _crash_before(self, int64_t step):
        """Stop before the step with that number, from 1 (0: never), as a crash would. Returns: the previous setting."""
        cdef int64_t left = self.crash.left
        self.crash.left = step
        return left

    def clean(self, PartitionLog log not None, int64_t first_dirty, int64_t first_uncleanable, *, int64_t now_ms,
              int64_t delete_retention_ms=86400000):
        cdef Round round_
        cdef int32_t rc
        if first_dirty < 0 or first_uncleanable < first_dirty:
            raise ValueError(f"expected 0 <= first_dirty <= first_uncleanable, got {first_dirty}, {first_uncleanable}")
        if delete_retention_ms < 0:
            raise ValueError(f"delete_retention_ms must be >= 0, got {delete_retention_ms}")
        memset(&round_, 0, sizeof(Round))
        round_.partition = log.partition
        round_.map = &self.map
        round_.stop = &self.stopping
        round_.crash = &self.crash
        if self.throttle is not None:
            round_.throttle = &self.throttle.throttle
        round_.first_dirty = first_dirty
        round_.first_uncleanable = first_uncleanable
        round_.filter.now_ms = now_ms
        round_.filter.delete_retention_ms = delete_retention_ms
        with nogil:
            round_.view = view_acquire(round_.partition)
            if first_uncleanable > round_.view.segments[round_.view.count - 1].base_offset:
                round_.first_uncleanable = round_.view.segments[round_.view.count - 1].base_offset
            if round_.first_uncleanable < first_dirty:
                rc = REPLACE_STALE
            else:
                rc = clean(&round_)
                if (rc == -ENOENT or rc == TXN_INDEX_DAMAGED) and has_deleted(round_.view):
                    rc = REPLACE_STALE
            segment_list_release(round_.view)
            filter_free(&round_.filter)
            offset_map_destroy(&self.map)
        if rc == REPLACE_STALE or rc == CLEAN_STOPPED or rc == REPLACE_STOPPED:
            return None
        if atomic_load(&log.partition.closed):
            return None                         # its folder was removed during the round
        if rc == CLEAN_CORRUPT:
            raise CorruptLogError(f"{log.topic}-{log.partition_id}: the batch at or after offset {round_.bad_offset} "
                                  "is damaged")
        if rc == TXN_INDEX_DAMAGED:
            raise CorruptLogError(f"{log.topic}-{log.partition_id}: a .txnindex file was changed or removed while "
                                  "it was in use; restart the broker to rebuild it")
        if rc == CLEAN_MAP_TOO_SMALL:
            raise CorruptLogError(f"{log.topic}-{log.partition_id}: the keys of the batch at offset {first_dirty} need "
                                  "more than log.cleaner.dedupe.buffer.size")
        if rc != 0:
            raise OSError(-rc, os.strerror(-rc), log.directory)
        return CleanResult(round_.filter.end_offset, round_.bytes_read, round_.bytes_written, round_.segments_before,
                           round_.segments_after, round_.filter.records_read, round_.filter.records_kept)
