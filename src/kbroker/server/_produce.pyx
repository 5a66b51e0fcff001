"""Native Produce: parse the whole request, then append partition by partition, then answer (or wait for an fsync).

Nothing is appended before the request is known to be well formed. The answer is encoded while appending, so that
the frame may be released early; an answer that must wait for log.flush.interval.messages is parked with its bytes
ready and its flush offsets in a DelayedProduce (spec: timer-and-purgatory 8.1, log-storage 4).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_check_and_complete, purgatory_try_complete_else_watch,
)
from kbroker._core.request cimport (
    ACTION_CLOSE, ACTION_NO_OP, ACTION_SEND, INLINE_OUT_BYTES, RECORD_LEAVE_OUT, Request, request_add_memory,
    request_mark_error, request_release_payload,
)
from kbroker._core.sync cimport atomic_load
from kbroker._core.wire cimport (
    Reader, Writer, read_bytes, read_count, read_i16, read_i32, read_length, reader_init, skip_tags, write_i16,
    write_i32, write_i64, write_length, write_raw, write_string, write_uvarint, writer_free, writer_init,
)
from kbroker.log._append cimport partition_append
from kbroker.log._partition cimport (
    AppendResult, Partition, partition_flushed_offset, partition_is_closed, partition_release, partition_retain,
)
from kbroker.server._lane_types cimport (
    DEFERRED_SLOTS, Handler, Lane, Outcome, OUTCOME_ANSWERED, OUTCOME_PARKED,
)
from kbroker.server._topics cimport Topic, mix_hash, topic_by_id, topic_by_name
from kbroker.server.quota._gate cimport gate_produce, store_throttle


cdef enum:
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100
    INLINE_PARTS = 8
    BATCH_ATTRIBUTES_AT = 21
    BATCH_MAGIC_AT = 16
    TRANSACTIONAL_BIT = 16


cdef struct Part:               # one partition of the request
    int32_t index
    int32_t topic               # which TopicData element it stands in
    char *records
    int64_t size_bytes          # -1: null
    bint is_superseded          # named again later in the request: the later one counts (Kafka builds a map)


cdef struct TopicData:
    const char *name
    int64_t name_bytes
    const char *id
    int32_t part_count
    int32_t live_count


cdef struct Parsed:
    int16_t acks
    int32_t timeout_ms
    bint has_transactional_id
    bint has_transactional_records
    int32_t topic_count
    int32_t part_count
    TopicData *topics
    Part *parts
    TopicData inline_topics[INLINE_PARTS]
    Part inline_parts[INLINE_PARTS]


cdef struct Waiting:            # a partition whose append waits for the disk
    Partition *partition        # counted
    int64_t flush_offset
    int64_t error_at            # where its error code stands in the answer
    int64_t base_offset_at


cdef struct DelayedProduce:     # begins with its Operation; freed by the last count
    Operation op
    Request *request
    Lane *lane
    char *answer                # owned until handed to the request
    int64_t answer_bytes
    int32_t count
    Waiting *waiting


cdef OperationTable DELAYED_PRODUCE


cdef void free_parsed(Parsed *parsed) noexcept nogil:
    if parsed.topics != parsed.inline_topics:
        free(parsed.topics)
    if parsed.parts != parsed.inline_parts:
        free(parsed.parts)


cdef bint parse(Request *request, Parsed *parsed, int32_t limit) noexcept nogil:
    """Reads the body into ``parsed``. False: the caller closes. free_parsed is due in both cases.

    More than ``limit`` topics or partitions are malformed: they would take memory before any is looked at.
    """
    cdef Reader r
    cdef Reader start
    cdef int16_t version = request.api_version
    cdef bint flexible = version >= 9
    cdef int64_t n, partitions, i, _k
    cdef int64_t total = 0
    cdef int32_t at = 0
    cdef Part *part
    parsed.topics = parsed.inline_topics
    parsed.parts = parsed.inline_parts
    parsed.part_count = parsed.topic_count = 0
    parsed.has_transactional_records = False
    reader_init(&r, request.payload + request.header_bytes, request.size_bytes - request.header_bytes)
    n = read_length(&r, flexible, False)
    parsed.has_transactional_id = n >= 0
    if n > 0:
        read_bytes(&r, n)
    parsed.acks = read_i16(&r)
    parsed.timeout_ms = read_i32(&r)
    n = read_count(&r, flexible, 6 if not flexible else (18 if version >= 13 else 3))
    if r.bad or n < 0 or n > limit:
        return False
    if n > INLINE_PARTS:
        parsed.topics = <TopicData *>calloc(<size_t>n, sizeof(TopicData))
        if parsed.topics == NULL:
            return False
    start = r
    parsed.topic_count = <int32_t>n
    # First turn: count the partitions, so that one array holds them all.
    for i in range(n):
        read_topic_name(&r, version, &parsed.topics[i])
        partitions = read_count(&r, flexible, 8 if not flexible else 6)
        total += partitions
        if r.bad or partitions < 0 or total > limit:
            return False
        parsed.topics[i].part_count = <int32_t>partitions
        parsed.topics[i].live_count = <int32_t>partitions
        for _k in range(partitions):
            skip_partition(&r, flexible)
        if flexible:
            skip_tags(&r)
        if r.bad:
            return False
    if flexible:
        skip_tags(&r)
        if r.bad:
            return False
    if total > INLINE_PARTS:
        parsed.parts = <Part *>calloc(<size_t>total, sizeof(Part))
        if parsed.parts == NULL:
            return False
    r = start
    for i in range(n):
        read_topic_name(&r, version, &parsed.topics[i])
        read_count(&r, flexible, 1)
        for _k in range(parsed.topics[i].part_count):
            part = &parsed.parts[at]
            at += 1
            part.index = read_i32(&r)
            part.topic = <int32_t>i
            part.is_superseded = False
            part.size_bytes = read_length(&r, flexible, True)
            part.records = <char *>read_bytes(&r, part.size_bytes) if part.size_bytes > 0 else NULL
            if part.size_bytes > BATCH_ATTRIBUTES_AT + 1 and part.records[BATCH_MAGIC_AT] == 2 and (
                    <uint8_t>part.records[BATCH_ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT):
                parsed.has_transactional_records = True
            if flexible:
                skip_tags(&r)
        if flexible:
            skip_tags(&r)
    parsed.part_count = at
    return not r.bad


cdef void read_topic_name(Reader *r, int16_t version, TopicData *topic) noexcept nogil:
    if version >= 13:
        topic.id = read_bytes(r, 16)
        topic.name = NULL
        topic.name_bytes = 0
        return
    topic.id = NULL
    topic.name_bytes = read_length(r, version >= 9, False)
    if topic.name_bytes < 0:
        r.bad = True
        topic.name_bytes = 0
        return
    topic.name = read_bytes(r, topic.name_bytes)


cdef void skip_partition(Reader *r, bint flexible) noexcept nogil:
    cdef int64_t n
    read_i32(r)
    n = read_length(r, flexible, True)
    if n > 0:
        read_bytes(r, n)
    if flexible:
        skip_tags(r)


cdef bint mark_superseded(Parsed *parsed, uint64_t seed) noexcept nogil:
    """Marks all but the last mention of a partition within its TopicData. False: memory is out."""
    cdef int32_t first = 0, t, i, slot, size, mask
    cdef int32_t *slots
    cdef TopicData *topic
    for t in range(parsed.topic_count):
        topic = &parsed.topics[t]
        if topic.part_count > 1:
            size = 4
            while size < topic.part_count * 2:
                size *= 2
            mask = size - 1
            slots = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
            if slots == NULL:
                return False
            memset(slots, 0xFF, <size_t>size * sizeof(int32_t))
            for i in range(first, first + topic.part_count):
                slot = <int32_t>(mix_hash(<uint64_t><int64_t>parsed.parts[i].index ^ seed) & <uint64_t>mask)
                while slots[slot] >= 0 and parsed.parts[slots[slot]].index != parsed.parts[i].index:
                    slot = (slot + 1) & mask
                if slots[slot] >= 0:
                    parsed.parts[slots[slot]].is_superseded = True
                    topic.live_count -= 1
                slots[slot] = i
            free(slots)
        first += topic.part_count
    return True


cdef void write_partition(Writer *w, int16_t version, int32_t index, AppendResult *result) noexcept nogil:
    """One PartitionProduceResponse."""
    cdef bint flexible = version >= 9
    cdef int64_t message_bytes = 0
    cdef int32_t slot
    write_i32(w, index)
    write_i16(w, result.error)
    write_i64(w, result.base_offset)
    write_i64(w, result.log_append_time_ms)
    if version >= 5:
        write_i64(w, result.log_start_offset)
    if version >= 8:
        if result.message != NULL:
            while result.message[message_bytes] != 0:
                message_bytes += 1
        write_length(w, result.bad_count, flexible, True)
        for slot in range(result.bad_count):
            write_i32(w, result.bad_records[slot])
            write_string(w, result.message, message_bytes, flexible)
            if flexible:
                write_uvarint(w, 0)
        write_string(w, result.message, message_bytes, flexible)
    if flexible:
        write_uvarint(w, 0)


cdef void refuse(AppendResult *result, int16_t error) noexcept nogil:
    memset(result, 0, sizeof(AppendResult))
    result.error = error
    result.base_offset = -1
    result.log_append_time_ms = -1
    result.log_start_offset = -1
    result.bad_record = -1


cdef void append_one(Handler *handler, Parsed *parsed, Topic *topic, bint by_id, Part *part, int16_t version,
                     AppendResult *result, Partition **partition) noexcept nogil:
    """Decides one partition: the request's own errors first, then the log's (order of spec/log-storage 4)."""
    partition[0] = NULL
    if parsed.has_transactional_id or parsed.has_transactional_records:
        refuse(result, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)   # until transactions exist
    elif topic == NULL:
        refuse(result, UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION)
    elif (part.index < 0 or part.index >= topic.partition_count or topic.partitions[part.index] == NULL or
            partition_is_closed(topic.partitions[part.index])):
        refuse(result, UNKNOWN_TOPIC_OR_PARTITION)
    elif part.size_bytes <= 0:
        refuse(result, INVALID_RECORD)
    elif parsed.acks < -1 or parsed.acks > 1:
        refuse(result, INVALID_REQUIRED_ACKS)
    elif topic.is_internal:
        refuse(result, INVALID_TOPIC_EXCEPTION)
    else:
        partition[0] = topic.partitions[part.index]
        partition_append(partition[0], part.records, part.size_bytes, parsed.acks, version, True, result)


cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil:
    """Appends and answers. Malformed bodies close the connection before anything was appended."""
    cdef Parsed parsed
    cdef Outcome outcome
    if (not parse(request, &parsed, handler.lane.max_request_partitions)
            or not mark_superseded(&parsed, handler.lane.hash_seed)):
        request.action = ACTION_CLOSE
        outcome = OUTCOME_ANSWERED
    else:
        outcome = append_all(handler, request, &parsed)
    free_parsed(&parsed)
    return outcome


cdef Outcome append_all(Handler *handler, Request *request, Parsed *parsed) noexcept nogil:
    cdef int16_t version = request.api_version
    cdef bint flexible = version >= 9, any_error = False
    cdef Writer w
    cdef AppendResult result
    cdef Partition *partition
    cdef Topic *topic
    cdef TopicData *data
    cdef Waiting *waiting = NULL
    cdef int32_t waiting_count = 0, t, _k, at = 0, unrecorded = 0
    writer_init(&w, request.inline_out, INLINE_OUT_BYTES)
    write_i32(&w, request.correlation_id)
    if flexible:
        write_uvarint(&w, 0)
    write_length(&w, parsed.topic_count, flexible, True)
    for t in range(parsed.topic_count):
        data = &parsed.topics[t]
        if version >= 13:
            write_raw(&w, data.id, 16)
            topic = topic_by_id(handler.topics, data.id)
        else:
            write_string(&w, data.name, data.name_bytes, flexible)
            topic = topic_by_name(handler.topics, data.name, data.name_bytes)
        unrecorded += topic != NULL and topic.is_unrecorded
        write_length(&w, data.live_count, flexible, True)
        for _k in range(data.part_count):
            at += 1
            if parsed.parts[at - 1].is_superseded:
                continue
            append_one(handler, parsed, topic, version >= 13, &parsed.parts[at - 1], version, &result, &partition)
            any_error = any_error or result.error != NONE
            if partition != NULL and result.high_watermark_moved:
                defer_check(handler, partition)
            if partition != NULL and result.error == NONE and result.flush_offset > 0 and parsed.acks != 0 and (
                    partition_flushed_offset(partition) < result.flush_offset):
                if waiting == NULL:
                    waiting = <Waiting *>calloc(<size_t>(parsed.part_count - at + 1), sizeof(Waiting))
                if waiting == NULL:
                    refuse(&result, KAFKA_STORAGE_ERROR)
                else:
                    waiting[waiting_count].partition = partition_retain(partition)
                    waiting[waiting_count].flush_offset = result.flush_offset
                    waiting[waiting_count].error_at = w.size_bytes + 4
                    waiting[waiting_count].base_offset_at = w.size_bytes + 6
                    waiting_count += 1
            request_mark_error(request, result.error, 1)
            write_partition(&w, version, parsed.parts[at - 1].index, &result)
            free(result.bad_records)
        if flexible:
            write_uvarint(&w, 0)
    if unrecorded > 0 and unrecorded == parsed.topic_count:
        request.record_flags |= RECORD_LEAVE_OUT
    write_i32(&w, 0)            # throttle_time_ms: store_throttle_time puts it in
    if flexible:
        write_uvarint(&w, 0)
    request.local_done_ns = clock_now_ns(handler.lane.clock)
    if parsed.acks == 0 or w.failed:
        gate_produce(handler.lane.quotas, handler.clients, request, False, request.local_done_ns)
        request.action = ACTION_CLOSE if any_error or w.failed else ACTION_NO_OP
        writer_free(&w)
        free_waiting(waiting, waiting_count)
        return OUTCOME_ANSWERED
    if waiting_count > 0:
        return park(handler, request, parsed, &w, waiting, waiting_count)
    free_waiting(waiting, 0)
    store_throttle_time(request, w.data, w.size_bytes, gate_produce(
        handler.lane.quotas, handler.clients, request, True, request.local_done_ns))
    answer(request, &w)
    return OUTCOME_ANSWERED


cdef inline void store_throttle_time(Request *request, char *answer, int64_t size_bytes,
                                     int32_t throttle_ms) noexcept nogil:
    """It stands at the end of the answer, before the tagged section where there is one."""
    if throttle_ms > 0:
        store_throttle(answer + size_bytes - (5 if request.api_version >= 9 else 4), throttle_ms)


cdef void answer(Request *request, Writer *w) noexcept nogil:
    request.action = ACTION_SEND
    if not request_add_memory(request, w.data, w.size_bytes, w.data if w.is_owned else NULL):
        writer_free(w)
        request.action = ACTION_CLOSE


cdef void free_waiting(Waiting *waiting, int32_t count) noexcept nogil:
    cdef int32_t i
    for i in range(count):
        partition_release(waiting[i].partition)
    free(waiting)


# ---------------------------------------------------------------- waiting for the disk

cdef Outcome park(Handler *handler, Request *request, Parsed *parsed, Writer *w, Waiting *waiting,
                  int32_t count) noexcept nogil:
    """Hands request and answer to a DelayedProduce: from here on they belong to whoever completes it."""
    cdef DelayedProduce *delayed = <DelayedProduce *>calloc(1, sizeof(DelayedProduce))
    cdef Key *keys = <Key *>calloc(<size_t>count, sizeof(Key))
    cdef char *copy = w.data
    cdef int32_t i
    if not w.is_owned and delayed != NULL and keys != NULL:
        copy = <char *>malloc(<size_t>w.size_bytes)
        if copy != NULL:
            memcpy(copy, w.data, <size_t>w.size_bytes)
    if delayed == NULL or keys == NULL or copy == NULL:
        free(delayed)
        free(keys)
        writer_free(w)
        free_waiting(waiting, count)
        request.action = ACTION_CLOSE       # no memory to wait: the client learns nothing was promised
        return OUTCOME_ANSWERED
    request_release_payload(request)        # the records are in the log
    delayed.request = request
    delayed.lane = handler.lane
    delayed.answer = copy
    delayed.answer_bytes = w.size_bytes
    delayed.count = count
    delayed.waiting = waiting
    for i in range(count):
        keys[i].high = <int64_t>waiting[i].partition
    operation_init(&delayed.op, &DELAYED_PRODUCE, parsed.timeout_ms if parsed.timeout_ms > 0 else 0, NULL)
    purgatory_try_complete_else_watch(handler.lane.produce_purgatory, &delayed.op, keys, count)
    free(keys)
    operation_release(&delayed.op)
    return OUTCOME_PARKED


cdef inline bint has_failed(Partition *partition) noexcept nogil:
    """Its records will not reach the disk: a sync failed, or it was deleted or shut."""
    return atomic_load(&partition.is_failed) != 0 or partition_is_closed(partition)


cdef bint delayed_produce_try_complete(Operation *op) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    cdef int32_t i
    for i in range(delayed.count):
        if partition_flushed_offset(delayed.waiting[i].partition) < delayed.waiting[i].flush_offset and not (
                has_failed(delayed.waiting[i].partition)):
            return False
    return operation_force_complete(op)


cdef void delayed_produce_on_complete(Operation *op) noexcept nogil:
    """Sets the error of what did not reach the disk, and sends the answer."""
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    cdef Request *request = delayed.request
    cdef Waiting *waiting
    cdef int16_t error
    cdef int32_t i
    for i in range(delayed.count):
        waiting = &delayed.waiting[i]
        if partition_flushed_offset(waiting.partition) < waiting.flush_offset:
            error = KAFKA_STORAGE_ERROR if has_failed(waiting.partition) else REQUEST_TIMED_OUT
            request_mark_error(request, NONE, -1)
            request_mark_error(request, error, 1)
            delayed.answer[waiting.error_at] = 0
            delayed.answer[waiting.error_at + 1] = <char>error
            memset(delayed.answer + waiting.base_offset_at, 0xFF, 8)
    request.response_ready_ns = clock_now_ns(delayed.lane.clock)
    store_throttle_time(request, delayed.answer, delayed.answer_bytes, gate_produce(
        delayed.lane.quotas, NULL, request, True, request.response_ready_ns))
    request.action = ACTION_SEND
    if not request_add_memory(request, delayed.answer, delayed.answer_bytes, delayed.answer):
        free(delayed.answer)
        request.action = ACTION_CLOSE
    delayed.answer = NULL
    delayed.request = NULL
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void delayed_produce_on_expiration(Operation *op) noexcept nogil:
    pass


cdef void delayed_produce_destroy(Operation *op) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    free_waiting(delayed.waiting, delayed.count)
    free(delayed.answer)
    free(delayed)


DELAYED_PRODUCE.try_complete = delayed_produce_try_complete
DELAYED_PRODUCE.on_complete = delayed_produce_on_complete
DELAYED_PRODUCE.on_expiration = delayed_produce_on_expiration
DELAYED_PRODUCE.destroy = delayed_produce_destroy


# ---------------------------------------------------------------- waking fetches after the answers are away

cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil:
    """Remembers that fetches waiting on the partition may be satisfied (Kafka's delayed action queue)."""
    cdef int32_t i
    for i in range(handler.deferred_count):
        if handler.deferred[i] == partition:
            return
    if handler.deferred_count == DEFERRED_SLOTS:
        run_deferred(handler)
    handler.deferred[handler.deferred_count] = partition_retain(partition)
    handler.deferred_count += 1


cdef void run_deferred(Handler *handler) noexcept nogil:
    """Looks at the waiting fetches of every remembered partition, holding no lock."""
    cdef int32_t i, n = handler.deferred_count
    cdef Key key
    handler.deferred_count = 0
    for i in range(n):
        key.high = <int64_t>handler.deferred[i]
        key.low = 0
        purgatory_check_and_complete(handler.lane.fetch_purgatory, &key)
        partition_release(handler.deferred[i])
