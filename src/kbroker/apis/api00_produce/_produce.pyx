"""Native Produce: append partition by partition, then respond or wait for an fsync.

Nothing is appended before the request is known to be well formed. The response is encoded while appending, so that the
frame may be released early. A response that must wait for log.flush.interval.messages is delayed with its bytes
complete: the operation is watched by partition and completed once, when the flushed offset reaches its records or it
expires; appends that did not reach the disk get their error in these bytes. Source: ``DelayedProduce``.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset, memcpy

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.wire cimport (
    Writer, write_i16, write_i32, write_i64, write_length, write_raw, write_string, write_uvarint, writer_free,
    writer_init,
)
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_NO_OP, ACTION_SEND, INLINE_OUT_BYTES, Request, request_add_memory,
)
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_try_complete_else_watch,
)
from kbroker._core.sync cimport atomic_load, atomic_load_relaxed, atomic_store
from kbroker.common._errors cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_REQUIRED_ACKS, INVALID_TOPIC_EXCEPTION, KAFKA_STORAGE_ERROR, NONE,
    NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker.log._append cimport AppendPart, partition_append
from kbroker.log._partition cimport (
    AppendResult, Partition, partition_flushed_offset, partition_is_closed, partition_recodes, partition_retain,
    partition_release,
)
from kbroker.log._validate cimport BAD_RECORD_TEXT_BYTES, bad_record_text, is_fatal_batch, is_refused_before_log
from kbroker.log.producers._producer_table cimport NOT_VERIFIED
from kbroker.network._kafka_request cimport (
    RECORD_SKIP, KafkaRequest, kafka_mark_error, kafka_note_transactional_id, kafka_request, kafka_release_payload,
)
from kbroker.apis.api00_produce._produce_request cimport (
    ProducePart, ProduceRequest, ProduceTopic, free_produce, parse_produce,
)
from kbroker.apis.api00_produce._transactional_produce cimport (
    VERIFY_ASK, VERIFY_DONE, VERIFY_REFUSED, Verdicts, Verification, VerifiedPart, free_verdicts, verify_produce,
)
from kbroker.apis.api01_fetch._fetch cimport defer_check
from kbroker.security.authorizer._acl_table cimport ACL_TOPIC, ACL_TRANSACTIONAL_ID, ACL_WRITE, acl_allows, acl_permits
from kbroker.requests._native_types cimport (
    OUTCOME_DECLINED, OUTCOME_DELAYED, OUTCOME_LEFT, OUTCOME_RESPONDED, Handler, NativeApisCore, Outcome,
    write_nodes,
)
from kbroker.protocol._batch_format cimport ATTRIBUTES_AT, BATCH_HEADER_BYTES, CODEC_MASK
from kbroker.replica._topics cimport Foreign, Topic, topic_by_id, topic_by_name, topic_foreign
from kbroker.common._text cimport text_at
from kbroker.quota._client_sensors cimport ClientQuotas
from kbroker.quota._quota_enforcement cimport gate_produce, store_throttle
from kbroker.quota._quota_events cimport EVENT_APPEND, AppendEvent, quota_events_add

cdef enum:
    FIRST_WITH_LEADER = 10      # version whose responses name another leader (KIP-951)
    SLOW_APPEND_NS = 10000000
    SLOW_FOR_NS = 1000000000    # time after a slow append when only handlers execute Produce

cdef struct Waiting:            # a partition whose append waits for the disk
    Partition *partition        # reference-counted
    int64_t flush_offset
    int64_t error_at            # position of its error code in the response
    int64_t base_offset_at

cdef struct Appended:           # the single partition of a Produce that one write appends with others
    Partition *partition        # NULL: refused before its log was found
    AppendResult result

cdef struct DelayedProduce:     # begins with its Operation; freed with the last reference
    Operation op
    Request *request
    int32_t processor_id        # source of the request, copied because snapshots must not read the request
    int64_t channel_number
    NativeApisCore *native_apis
    char *response                # owned until passed to the request
    int64_t response_bytes
    int64_t throttle_at
    int32_t count
    Waiting *waiting


cdef OperationTable DELAYED_PRODUCE


cdef void note_slow_append(NativeApisCore *native_apis, int64_t from_ns, int64_t to_ns) noexcept nogil:
    if to_ns - from_ns > SLOW_APPEND_NS:
        atomic_store(&native_apis.slow_appends_until_ns, to_ns + SLOW_FOR_NS)


cdef void free_waiting(Waiting *waiting, int32_t count) noexcept nogil:
    cdef int32_t i
    for i in range(count):
        partition_release(waiting[i].partition)
    free(waiting)


cdef Outcome delay_produce(Handler *handler, Request *request, int32_t timeout_ms, Writer *w, int64_t throttle_at,
                           Waiting *waiting, int32_t count) noexcept nogil:
    """Pass request, response and ``waiting`` to an operation: they then belong to the thread that completes it.

    When memory is exhausted the connection is closed.
    """
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
        request.action = ACTION_CLOSE       # no memory for the wait: nothing was acknowledged
        return OUTCOME_RESPONDED
    kafka_release_payload(request)      # the records are in the log
    delayed.request = request
    delayed.processor_id = request.responder.processor_id
    delayed.channel_number = request.channel_number
    delayed.native_apis = handler.native_apis
    delayed.response = copy
    delayed.response_bytes = w.size_bytes
    delayed.throttle_at = throttle_at
    delayed.count = count
    delayed.waiting = waiting
    for i in range(count):
        keys[i].high = <int64_t>waiting[i].partition
    operation_init(&delayed.op, &DELAYED_PRODUCE, timeout_ms if timeout_ms > 0 else 0, NULL)
    purgatory_try_complete_else_watch(handler.native_apis.produce_purgatory, &delayed.op, keys, count)
    free(keys)
    operation_release(&delayed.op)
    return OUTCOME_DELAYED


cdef void delayed_produce_source(Operation *op, int32_t *processor_id, int64_t *channel_number) noexcept nogil:
    processor_id[0] = (<DelayedProduce *>op).processor_id
    channel_number[0] = (<DelayedProduce *>op).channel_number


cdef inline bint has_failed(Partition *partition) noexcept nogil:
    """Return whether records will not reach the disk: a sync failed, or the partition was deleted or closed."""
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
    """Set the error of partitions whose records did not reach the disk, and send the response."""
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    cdef Request *request = delayed.request
    cdef Waiting *waiting
    cdef int16_t error
    cdef int32_t i
    for i in range(delayed.count):
        waiting = &delayed.waiting[i]
        if partition_flushed_offset(waiting.partition) < waiting.flush_offset:
            error = KAFKA_STORAGE_ERROR if has_failed(waiting.partition) else REQUEST_TIMED_OUT
            kafka_mark_error(request, NONE, -1)
            kafka_mark_error(request, error, 1)
            delayed.response[waiting.error_at] = 0
            delayed.response[waiting.error_at + 1] = <char>error
            memset(delayed.response + waiting.base_offset_at, 0xFF, 8)
    request.response_ready_ns = clock_now_ns(delayed.native_apis.clock)
    store_throttle(delayed.response + delayed.throttle_at, gate_produce(
        delayed.native_apis.quotas, NULL, request, True, request.response_ready_ns))
    request.action = ACTION_SEND
    if not request_add_memory(request, delayed.response, delayed.response_bytes, delayed.response):
        free(delayed.response)
        request.action = ACTION_CLOSE
    delayed.response = NULL
    delayed.request = NULL
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void delayed_produce_on_expiration(Operation *op) noexcept nogil:
    pass


cdef void delayed_produce_destroy(Operation *op) noexcept nogil:
    cdef DelayedProduce *delayed = <DelayedProduce *>op
    free_waiting(delayed.waiting, delayed.count)
    free(delayed.response)
    free(delayed)


DELAYED_PRODUCE.try_complete = delayed_produce_try_complete
DELAYED_PRODUCE.on_complete = delayed_produce_on_complete
DELAYED_PRODUCE.on_expiration = delayed_produce_on_expiration
DELAYED_PRODUCE.destroy = delayed_produce_destroy


cdef void write_partition(Writer *w, int16_t version, const Topic *topic, int32_t index, AppendResult *result,
                          const Foreign *foreign) noexcept nogil:
    """Write a PartitionProduceResponse.

    Args: ``topic``: NULL if it does not exist; ``foreign``: the leader if it is another node, else NULL.
    """
    cdef bint flexible = version >= 9
    cdef int64_t message_bytes = 0
    cdef int32_t slot
    cdef char text[BAD_RECORD_TEXT_BYTES]
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
            write_i32(w, result.bad_records[slot].batch_index)
            write_string(w, text, bad_record_text(&result.bad_records[slot], topic.name, topic.name_bytes, index, text),
                         flexible)
            if flexible:
                write_uvarint(w, 0)
        write_string(w, result.message, message_bytes, flexible)
    if version >= FIRST_WITH_LEADER and foreign != NULL and result.error == NOT_LEADER_OR_FOLLOWER:
        write_uvarint(w, 1)
        write_uvarint(w, 0)     # CurrentLeader: id, epoch, no tags
        write_uvarint(w, 9)
        write_i32(w, foreign.leader)
        write_i32(w, foreign.leader_epoch)
        write_uvarint(w, 0)
    elif flexible:
        write_uvarint(w, 0)


cdef void refuse(AppendResult *result, int16_t error) noexcept nogil:
    memset(result, 0, sizeof(AppendResult))
    result.error = error
    result.base_offset = -1
    result.log_append_time_ms = -1
    result.log_start_offset = -1
    result.bad_record = -1


cdef inline bint may_write(Handler *handler, Request *request, const ProduceTopic *data) noexcept nogil:
    """Return whether the client may write to a topic; a topic id without a topic is not checked."""
    if handler.native_apis.acls == NULL or (data.id != NULL and data.topic == NULL):
        return True
    if data.id != NULL:
        return acl_allows(handler.native_apis.acls, handler.decisions, request, ACL_WRITE, ACL_TOPIC, data.topic.name,
                          data.topic.name_bytes, data.live_count)
    return acl_allows(handler.native_apis.acls, handler.decisions, request, ACL_WRITE, ACL_TOPIC, data.name,
                      data.name_bytes, data.live_count)


cdef inline bint may_use_transactional_id(Handler *handler, Request *request,
                                          const ProduceRequest *parsed) noexcept nogil:
    return handler.native_apis.acls == NULL or parsed.transactional_id == NULL or acl_allows(
        handler.native_apis.acls, handler.decisions, request, ACL_WRITE, ACL_TRANSACTIONAL_ID, parsed.transactional_id,
        parsed.transactional_id_bytes, 1)


cdef Partition *writable_partition(const Handler *handler, const ProduceRequest *parsed, const ProduceTopic *data,
                                   bint is_allowed, const ProducePart *part, int16_t version,
                                   AppendResult *result) noexcept nogil:
    """Return the partition of a part; NULL: the part is refused before its log is used, with the error in result.

    These errors come before the log's, as in Kafka.
    """
    cdef const Topic *topic = data.topic
    if topic == NULL and data.id != NULL:
        refuse(result, UNKNOWN_TOPIC_ID)
    elif not is_allowed:                # checked first, to reveal nothing about the topic
        refuse(result, TOPIC_AUTHORIZATION_FAILED)
    elif topic == NULL:
        refuse(result, UNKNOWN_TOPIC_OR_PARTITION)
    elif part.index < 0 or part.index >= topic.partition_count:
        refuse(result, UNKNOWN_TOPIC_OR_PARTITION)
    elif topic.partitions[part.index] == NULL:          # another node leads it, or its log could not be opened
        refuse(result, KAFKA_STORAGE_ERROR if topic_foreign(
            topic, part.index, handler.native_apis.node_id) == NULL else NOT_LEADER_OR_FOLLOWER)
    elif partition_is_closed(topic.partitions[part.index]):
        refuse(result, UNKNOWN_TOPIC_OR_PARTITION)
    elif part.size_bytes <= 0:
        refuse(result, INVALID_RECORD)
    elif (parsed.acks < -1 or parsed.acks > 1 or topic.is_internal) and not is_refused_before_log(
            part.records, part.size_bytes, version):
        refuse(result, INVALID_TOPIC_EXCEPTION if -1 <= parsed.acks <= 1 else INVALID_REQUIRED_ACKS)
    else:
        return topic.partitions[part.index]
    return NULL


cdef void append_one(const Handler *handler, ProduceRequest *parsed, const ProduceTopic *data, bint is_allowed,
                     ProducePart *part, const VerifiedPart *verified, int16_t version, AppendResult *result,
                     Partition **partition) noexcept nogil:
    if verified != NULL and verified.error != NONE:     # the partition exists; comes before wrong acks
        partition[0] = NULL
        refuse(result, verified.error)
        result.message = verified.message
        return
    partition[0] = writable_partition(handler, parsed, data, is_allowed, part, version, result)
    if partition[0] != NULL:
        partition_append(partition[0], part.records, part.size_bytes, parsed.acks, version, True,
                         NOT_VERIFIED if verified == NULL else verified.guard, result)


cdef inline const Foreign *leader_of(const Handler *handler, const Topic *topic, const AppendResult *result,
                                     int32_t index) noexcept nogil:
    """Return the leader that the response names; NULL for none, see ``has_other_leader`` of Fetch."""
    cdef const Foreign *found
    if result.error != NOT_LEADER_OR_FOLLOWER or topic == NULL or not 0 <= index < topic.partition_count:
        return NULL
    found = topic_foreign(topic, index, handler.native_apis.node_id)
    return found if found != NULL and found.leader >= 0 else NULL


cdef bint parse_with_topics(Handler *handler, Request *request, ProduceRequest *parsed) noexcept nogil:
    """Parse a request, with the result of parse_produce, and look up its topics, once for its whole execution."""
    cdef ProduceTopic *data
    cdef int32_t t
    if not parse_produce(request, parsed, handler.native_apis.hash_seed):
        return False
    for t in range(parsed.topic_count):
        data = &parsed.topics[t]
        data.topic = (topic_by_id(handler.topics, data.id) if data.id != NULL
                      else topic_by_name(handler.topics, data.name, data.name_bytes))
    return True


cdef bint is_left_to_handlers(Handler *handler, const ProduceRequest *parsed) noexcept nogil:
    """Return whether a network thread leaves the request to handlers: to unpack or pack batches takes the GIL."""
    cdef const ProducePart *part
    cdef const Topic *topic
    cdef int32_t t, _k, at = 0, codec
    if not handler.is_network_thread:
        return False
    for t in range(parsed.topic_count):
        topic = parsed.topics[t].topic
        for _k in range(parsed.topics[t].part_count):
            part = &parsed.parts[at]
            at += 1
            if part.size_bytes < BATCH_HEADER_BYTES or topic == NULL or not 0 <= part.index < topic.partition_count:
                continue
            codec = part.records[ATTRIBUTES_AT + 1] & CODEC_MASK
            if codec != 0 or topic.partitions[part.index] != NULL and partition_recodes(
                    topic.partitions[part.index], codec):
                return True
    return False


cdef Partition *parse_gathered(Handler *handler, Request *request, ProduceRequest *parsed) noexcept nogil:
    cdef const Topic *topic
    cdef int32_t index
    if not parse_with_topics(handler, request, parsed):
        return NULL
    if (parsed.topic_count != 1 or parsed.part_count != 1 or parsed.acks == 0 or parsed.transactional_id != NULL
            or parsed.has_transactional_records or parsed.error != NONE or parsed.has_fatal_batch):
        return NULL
    if is_left_to_handlers(handler, parsed) or atomic_load(&handler.native_apis.refuses_produce):
        return NULL
    topic = parsed.topics[0].topic
    index = parsed.parts[0].index
    if topic == NULL or index < 0 or index >= topic.partition_count:
        return NULL
    return topic.partitions[index]


cdef bint begin_gathered(Handler *handler, Request *request, ProduceRequest *parsed,
                         AppendPart *part) noexcept nogil:
    cdef const ProduceTopic *data = &parsed.topics[0]
    part.records = parsed.parts[0].records
    part.size_bytes = parsed.parts[0].size_bytes
    part.acks = parsed.acks
    part.api_version = kafka_request(request).api_version
    return writable_partition(handler, parsed, data, may_write(handler, request, data), &parsed.parts[0],
                              part.api_version, &part.result) != NULL


cdef Outcome finish_gathered(Handler *handler, Request *request, ProduceRequest *parsed, Partition *partition,
                             const AppendResult *result) noexcept nogil:
    cdef Appended appended
    appended.partition = partition
    appended.result = result[0]
    return append_all(handler, request, parsed, NULL, NONE, &appended)


cdef bint fails_request(Handler *handler, Request *request, const ProduceRequest *parsed) noexcept nogil:
    """Return whether Kafka fails on a batch of the request, and then refuses all partitions.

    Kafka checks only batches of partitions that exist and that the client may write.
    """
    cdef const ProduceTopic *data
    cdef const ProducePart *part
    cdef const Topic *topic
    cdef int16_t version = kafka_request(request).api_version
    cdef int32_t t, _k, at = 0
    for t in range(parsed.topic_count):
        data = &parsed.topics[t]
        topic = data.topic
        for _k in range(data.part_count):
            part = &parsed.parts[at]
            at += 1
            if topic != NULL and 0 <= part.index < topic.partition_count and is_fatal_batch(
                    part.records, part.size_bytes, version) and (handler.native_apis.acls == NULL or acl_permits(
                        handler.native_apis.acls, handler.decisions, request, ACL_WRITE, ACL_TOPIC, topic.name,
                        topic.name_bytes)):
                return True
    return False


cdef Outcome handle_produce(Handler *handler, Request *request) noexcept nogil:
    """Append every partition and build the response. A malformed body closes the connection before any append."""
    cdef ProduceRequest parsed
    cdef Outcome outcome
    cdef Verdicts *verdicts = NULL
    cdef Verification verification = VERIFY_DONE
    cdef int16_t error = NONE
    cdef bint owns_verdicts = False
    if (not parse_with_topics(handler, request, &parsed)      # first: free_produce needs all fields
            or atomic_load(&handler.native_apis.refuses_produce)):
        request.action = ACTION_CLOSE
        outcome = OUTCOME_RESPONDED
    else:
        if is_left_to_handlers(handler, &parsed):
            free_produce(&parsed)
            return OUTCOME_LEFT
        if parsed.transactional_id != NULL:
            kafka_note_transactional_id(request, parsed.transactional_id, parsed.transactional_id_bytes, False)
        if parsed.error != NONE:
            error = parsed.error
        elif parsed.has_transactional_records and not may_use_transactional_id(handler, request, &parsed):
            verification = VERIFY_REFUSED
            error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif parsed.has_fatal_batch and fails_request(handler, request, &parsed):
            error = UNKNOWN_SERVER_ERROR
        elif parsed.has_transactional_records:
            verification = verify_produce(handler, request, &parsed, &verdicts, &error)
            owns_verdicts = verdicts != NULL and request.state == NULL
        if verification == VERIFY_ASK:
            outcome = OUTCOME_DECLINED
        else:
            outcome = append_all(handler, request, &parsed, verdicts, error, NULL)
    free_produce(&parsed)
    if owns_verdicts:       # a delayed request may have been freed, with its state
        free_verdicts(verdicts)
    return outcome


cdef inline void note_append(ClientQuotas *quotas, Request *request, const Topic *topic, int32_t partition,
                             const AppendResult *result) noexcept nogil:
    """Note the appended offsets, if a request log records them."""
    cdef AppendEvent *event
    if quotas == NULL or atomic_load_relaxed(&quotas.notes_appends) == 0 or result.error != NONE:
        return
    event = <AppendEvent *>quota_events_add(
        request, EVENT_APPEND, text_at(topic.name, topic.name_bytes), text_at(NULL, 0))
    if event != NULL:
        event.note.sequence = result.base_offset
        event.last_offset = result.last_offset
        event.partition = partition


cdef Outcome append_all(Handler *handler, Request *request, ProduceRequest *parsed, const Verdicts *verdicts,
                        int16_t error, const Appended *appended) noexcept nogil:
    """Append all partitions and build the response.

    Args: ``error``: NONE, or the error of every partition. ``appended``: result of the only part; NULL: not yet.
    """
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int16_t version = kafka.api_version
    cdef bint flexible = version >= 9, any_error = False, any_foreign = False, is_allowed = True
    cdef Writer w
    cdef AppendResult result
    cdef Partition *partition
    cdef const Topic *topic
    cdef const ProduceTopic *data
    cdef const VerifiedPart *verified = NULL
    cdef const Foreign *foreign
    cdef Waiting *waiting = NULL
    cdef int64_t throttle_at
    cdef int32_t waiting_count = 0, t, _k, at = 0, unrecorded = 0, topic_count = 0
    for t in range(parsed.topic_count):     # a topic without partitions is not in the response (as in Kafka)
        topic_count += parsed.topics[t].part_count > 0
    writer_init(&w, request.inline_out, INLINE_OUT_BYTES)
    write_i32(&w, kafka.correlation_id)
    if flexible:
        write_uvarint(&w, 0)
    write_length(&w, topic_count, flexible, True)
    for t in range(parsed.topic_count):
        data = &parsed.topics[t]
        if data.part_count == 0:
            continue
        if version >= 13:
            write_raw(&w, data.id, 16)
        else:
            write_string(&w, data.name, data.name_bytes, flexible)
        topic = data.topic
        unrecorded += topic != NULL and topic.is_unrecorded
        if error == NONE and appended == NULL:
            is_allowed = may_write(handler, request, data)
        write_length(&w, data.live_count, flexible, True)
        for _k in range(data.part_count):
            at += 1
            if parsed.parts[at - 1].is_superseded:
                continue
            if error != NONE:
                refuse(&result, error)
                if error == CORRUPT_MESSAGE:
                    result.message = b"Not a record batch"
                partition = NULL
            elif appended != NULL:
                result = appended.result
                partition = appended.partition
            else:
                if verdicts != NULL:
                    verified = &verdicts.parts[at - 1]
                append_one(handler, parsed, data, is_allowed, &parsed.parts[at - 1], verified, version, &result,
                           &partition)
            any_error = any_error or result.error != NONE
            kafka.conversion_ns += result.conversion_ns
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
            kafka_mark_error(request, result.error, 1)
            if partition != NULL:
                note_append(handler.native_apis.quotas, request, topic, parsed.parts[at - 1].index, &result)
            foreign = leader_of(handler, topic, &result, parsed.parts[at - 1].index)
            any_foreign = any_foreign or foreign != NULL and version >= FIRST_WITH_LEADER
            write_partition(&w, version, topic, parsed.parts[at - 1].index, &result, foreign)
            free(result.bad_records)
        if flexible:
            write_uvarint(&w, 0)
    if unrecorded > 0 and unrecorded == topic_count:
        kafka.record_flags |= RECORD_SKIP
    throttle_at = w.size_bytes
    write_i32(&w, 0)            # throttle_time_ms, set once it is known
    if any_foreign:
        write_nodes(&w, handler.native_apis, request)
    elif flexible:
        write_uvarint(&w, 0)
    kafka.local_done_ns = clock_now_ns(handler.native_apis.clock)
    note_slow_append(handler.native_apis, request.dequeue_ns, kafka.local_done_ns)
    if parsed.acks == 0 or w.failed:
        gate_produce(handler.native_apis.quotas, handler.clients, request, False, kafka.local_done_ns)
        request.action = ACTION_CLOSE if any_error or w.failed else ACTION_NO_OP
        writer_free(&w)
        free_waiting(waiting, waiting_count)
        return OUTCOME_RESPONDED
    if waiting_count > 0:
        return delay_produce(handler, request, parsed.timeout_ms, &w, throttle_at, waiting, waiting_count)
    free_waiting(waiting, 0)
    store_throttle(w.data + throttle_at, gate_produce(
        handler.native_apis.quotas, handler.clients, request, True, kafka.local_done_ns))
    response(request, &w)
    return OUTCOME_RESPONDED


cdef void response(Request *request, Writer *w) noexcept nogil:
    request.action = ACTION_SEND
    if not request_add_memory(request, w.data, w.size_bytes, w.data if w.is_owned else NULL):
        writer_free(w)
        request.action = ACTION_CLOSE
