"""Transfer of records out of the rings, each ring's oldest first, and of values into batches; see _drain.pxd."""
cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset
from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.bytes cimport load_i32
from kbroker._core.containers.buffer cimport Buffer, buffer_free, buffer_put
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_lock, mutex_unlock
from kbroker.log._append cimport partition_append_built
from kbroker.log._partition cimport AppendResult, Partition, call_hook, partition_release, partition_retain
from kbroker.log._partition_log cimport PartitionLog
from kbroker.protocol._batch_builder cimport draft_add, draft_start
from kbroker.protocol._batch_format cimport LENGTH_AT, LENGTH_FROM, RECORD_COUNT_AT
from kbroker.protocol._records cimport PUT_OK, batch_put_header
from kbroker.request_log._log_core cimport ThreadRecorder, log_release, log_retain
from kbroker.request_log._record_ring cimport facts_release, facts_retain, record_client_id, ring_first


cdef inline void emit(DrainCore *drain, RecordSink *sink, const Record *record) noexcept nogil:
    drain.sequence += 1
    if sink.take(sink, record, drain.sequence):
        drain.written += 1
    else:
        drain.lost += 1


# ---------------------------------------------------------------- idle polls

cdef void unfold(DrainCore *drain, RecordSink *sink, Facts *facts) noexcept nogil:
    """Write the folded polls; the facts may be freed afterwards."""
    if facts.folding_prev != NULL:
        facts.folding_prev.folding_next = facts.folding_next
    else:
        drain.folding = facts.folding_next
    if facts.folding_next != NULL:
        facts.folding_next.folding_prev = facts.folding_prev
    facts.folding_next = facts.folding_prev = NULL
    emit(drain, sink, facts.folded)
    free(facts.folded)
    facts.folded = NULL
    facts_release(facts, 1)


cdef inline bint is_same_poll(const Record *a, const Record *b) noexcept nogil:
    return (a.time_us // 1000000 == b.time_us // 1000000 and a.api_version == b.api_version
            and a.sampling == b.sampling and a.client_id_bytes == b.client_id_bytes
            and memcmp(record_client_id(a), record_client_id(b), <size_t>a.client_id_bytes) == 0)


cdef bint fold(DrainCore *drain, RecordSink *sink, const Record *record) noexcept nogil:
    """Add an idle poll to those of the same second; false: out of memory."""
    cdef Facts *facts = record.facts
    cdef Record *kept = facts.folded
    cdef Record earlier
    if kept != NULL and is_same_poll(kept, record):
        earlier = kept[0]
        kept[0] = record[0]             # the client id after it is the same
        kept.repeated += earlier.repeated
        kept.request_bytes += earlier.request_bytes
        kept.response_bytes += earlier.response_bytes
        kept.network_us += earlier.network_us
        return True
    if kept != NULL:
        unfold(drain, sink, facts)      # the record holds its own count
    kept = <Record *>malloc(<size_t>record.size_bytes)
    if kept == NULL:
        return False
    memcpy(kept, record, <size_t>record.size_bytes)
    facts.folded = kept
    facts_retain(facts, 1)
    facts.folding_prev = NULL
    facts.folding_next = drain.folding
    if drain.folding != NULL:
        drain.folding.folding_prev = facts
    drain.folding = facts
    return True


cdef void unfold_before(DrainCore *drain, RecordSink *sink, int64_t second) noexcept nogil:
    cdef Facts *facts = drain.folding
    cdef Facts *following
    while facts != NULL:
        following = facts.folding_next
        if facts.folded.time_us // 1000000 < second:
            unfold(drain, sink, facts)
        facts = following


# ---------------------------------------------------------------- the rings

cdef inline void give_later(DrainCore *drain, Facts *facts) noexcept nogil:
    """Collect the counts of written records: the connection's network thread has them in its cache."""
    facts.to_release += 1
    if not facts.is_touched:
        facts.is_touched = True
        facts.touched_next = drain.touched
        drain.touched = facts


cdef void give_counts(DrainCore *drain) noexcept nogil:
    cdef Facts *facts
    cdef int64_t counts
    while drain.touched != NULL:
        facts = drain.touched
        drain.touched = facts.touched_next
        facts.is_touched = False
        counts = facts.to_release
        facts.to_release = 0
        facts_release(facts, counts)


cdef bint drain_ring(DrainCore *drain, RecordRing *ring, RecordSink *sink, int64_t budget_bytes) noexcept nogil:
    """Drain a ring; false when the budget ended it. Dropped records take numbers too."""
    cdef int64_t at = atomic_load(&ring.tail)
    cdef int64_t dropped = atomic_load(&ring.dropped)
    cdef Record *record
    drain.sequence += dropped - ring.seen_dropped
    ring.seen_dropped = dropped
    while True:
        record = ring_first(ring, &at)
        if record == NULL or sink.size_bytes(sink) >= budget_bytes:
            atomic_store(&ring.tail, at)
            return record == NULL
        if not (record.may_fold and record.facts != NULL and fold(drain, sink, record)):
            emit(drain, sink, record)
        if record.facts != NULL:
            give_later(drain, record.facts)
        at += record.size_bytes


cdef bint drain_all(DrainCore *drain, RecordSink *sink, int64_t budget_bytes, bint unfolds) noexcept nogil:
    cdef ThreadRecorder *thread
    cdef int64_t second = INT64_MAX
    cdef bint done
    mutex_lock(&drain.log.late_lock)
    thread = drain.log.threads          # threads are only added, at the front
    mutex_unlock(&drain.log.late_lock)
    done = drain_ring(drain, &drain.log.late, sink, budget_bytes)
    while thread != NULL:
        done = drain_ring(drain, &thread.ring, sink, budget_bytes) and done
        thread = thread.next
    if done:
        if not unfolds:
            second = (clock_now_ns(drain.log.clock) + drain.log.clock.epoch_offset_ns) // 1000000000
        unfold_before(drain, sink, second)
    give_counts(drain)
    return done


cdef class RecordFormat:
    """Base of record formats; on its own, it has no sink."""


@cython.final
cdef class RecordDrain:
    """Transfer of the records of a log to a format, numbered from 1 in that order.

    Dropped records take numbers too, so that gaps are visible.
    """

    def __cinit__(self, RequestLogCore log not None):
        self.core = <DrainCore *>calloc(1, sizeof(DrainCore))
        if self.core == NULL:
            raise MemoryError
        self.core.log = log_retain(log.log)

    def __dealloc__(self):
        cdef DrainCore *core = self.core
        cdef Facts *facts
        if core == NULL:
            return
        with nogil:
            while core.folding != NULL:
                facts = core.folding
                core.folding = facts.folding_next
                facts.folding_next = NULL
                facts_release(facts, 1)
            log_release(core.log)
        free(core)

    def drain(self, RecordFormat into not None, int64_t budget_bytes, bint unfolds=False) -> bool:
        """Pass the queued records on; return False if there are more, because the format has reached the budget.

        Idle polls of the current second wait for its end, unless ``unfolds``.
        Raises: ValueError for a format without a sink. Threads: one at a time; the GIL is released.
        """
        cdef bint done
        if into.sink == NULL:
            raise ValueError("this format takes no records")
        with nogil:
            done = drain_all(self.core, into.sink, budget_bytes, unfolds)
        return done

    @property
    def written(self) -> int:
        """Number of records passed on so far."""
        return self.core.written

    @property
    def lost(self) -> int:
        """Number of records that the format could not take."""
        return self.core.lost


# ------------------------------------------------------------------------------------------------ batches of the topic

cdef bint batches_init(TopicBatches *batches, int32_t partition_count) noexcept nogil:
    cdef int32_t i
    batches.partitions = <PartitionBatch *>calloc(<size_t>(partition_count or 1), sizeof(PartitionBatch))
    if batches.partitions == NULL:
        return False
    batches.partition_count = partition_count
    for i in range(partition_count):
        if not draft_start(&batches.partitions[i].draft):
            return False
    return True


cdef void batches_destroy(TopicBatches *batches) noexcept nogil:
    cdef int32_t i
    if batches.partitions == NULL:
        return
    for i in range(batches.partition_count):
        buffer_free(&batches.partitions[i].complete)
        buffer_free(&batches.partitions[i].draft.batch)
    free(batches.partitions)
    batches.partitions = NULL


cdef bint end_batch(PartitionBatch *batch) noexcept nogil:
    """Complete the draft and begin the next one; false: out of memory, and the draft is as it was."""
    cdef Buffer *data = &batch.draft.batch
    if batch.draft.header.record_count == 0:
        return True
    batch_put_header(data.data, data.size, &batch.draft.header)
    return buffer_put(&batch.complete, data.data, data.size) and draft_start(&batch.draft)


cdef bint batches_add(TopicBatches *batches, int32_t partition, const char *key, int64_t key_bytes, const char *value,
                      int64_t value_bytes, int64_t time_ms) noexcept nogil:
    cdef PartitionBatch *batch = &batches.partitions[partition]
    cdef int64_t before = batch.draft.batch.size
    if before >= BATCH_BYTES and not end_batch(batch):
        return False
    before = batch.draft.batch.size
    if draft_add(&batch.draft, time_ms, batch.draft.header.record_count, key, key_bytes, value, value_bytes, 0,
                 NULL) != PUT_OK:
        return False
    batches.size_bytes += batch.draft.batch.size - before
    return True


cdef struct Appended:
    int64_t written             # bytes
    int64_t unwritten           # values
    int32_t error               # the last error, -2: the partition does not exist
    const char *message         # of the log, or NULL


cdef void append_batch(Partition *partition, char *batch, int64_t size, Appended *sum) noexcept nogil:
    cdef AppendResult result
    cdef int64_t values = load_i32(batch + RECORD_COUNT_AT)
    if partition == NULL:
        sum.error = -2
        sum.unwritten += values
        return
    partition_append_built(partition, batch, size, &result)
    free(result.bad_records)
    if result.error != 0:
        sum.error = result.error
        sum.message = result.message
        sum.unwritten += values
        return
    sum.written += size
    if result.high_watermark_moved:
        call_hook(partition, False)         # delayed fetches of the topic


cdef void append_batches(PartitionBatch *batch, Partition *partition, Appended *sum) noexcept nogil:
    """Append each batch separately: together they may be larger than a segment."""
    cdef Buffer *draft = &batch.draft.batch
    cdef char *at
    cdef int64_t size, place = 0
    while place < batch.complete.size:
        at = batch.complete.data + place
        size = <int64_t>load_i32(at + LENGTH_AT) + LENGTH_FROM
        append_batch(partition, at, size, sum)
        place += size
    batch.complete.size = 0
    if batch.draft.header.record_count > 0:
        batch_put_header(draft.data, draft.size, &batch.draft.header)
        append_batch(partition, draft.data, draft.size, sum)
        draft_start(&batch.draft)           # in the same memory


cdef tuple batches_append(TopicBatches *batches, object logs):
    cdef Appended sum
    cdef Partition *partition
    cdef int32_t i
    cdef PartitionLog log
    memset(&sum, 0, sizeof(sum))
    for i in range(batches.partition_count):
        log = logs[i % len(logs)] if logs else None     # created again, the topic may have fewer partitions
        partition = NULL
        if log is not None and log.partition != NULL:
            partition = partition_retain(log.partition)
        with nogil:
            append_batches(&batches.partitions[i], partition, &sum)
            if partition != NULL:
                partition_release(partition)
    batches.size_bytes = 0
    if sum.error == 0:
        return sum.written, sum.unwritten, None
    why = "the partition cannot be used" if sum.message == NULL else (<bytes>sum.message).decode()
    return sum.written, sum.unwritten, why if sum.error == -2 else f"{why} (error {sum.error})"
