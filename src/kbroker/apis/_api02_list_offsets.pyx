"""Native ListOffsets: end offsets for an isolation level, and the first records at or after times.

The request is read twice: first to check that it is well formed and names only partitions of this broker, without
duplicates, then to build the response. Other requests go to Python, which has Kafka's responses for them
(api02_list_offsets.py). A look into a compressed batch may need the GIL; no lock is held meanwhile.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint64_t

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.wire cimport (
    Reader, Writer, read_bytes, read_count, read_i32, read_i64, read_i8, read_length, reader_init, skip_tags, write_i16,
    write_i32, write_i64, write_length, write_string, write_uvarint, writer_free, writer_init,
)
from kbroker._core.containers.last_index_map cimport LatestIndex, latest_free, latest_init, latest_put
from kbroker._core.requests.request cimport ACTION_CLOSE, ACTION_SEND, INLINE_OUT_BYTES, Request, request_add_memory
from kbroker._core.sync cimport atomic_load
from kbroker.common._errors cimport (
    FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR, NONE, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kbroker.log._partition cimport Partition, partition_is_closed, partition_leader_epoch
from kbroker.log._read cimport Found, MAX_TIMESTAMP, find_timestamp
from kbroker.network._kafka_request cimport RECORD_SKIP, KafkaRequest, kafka_mark_error, kafka_request
from kbroker.security.authorizer._acl_table cimport ACL_DESCRIBE, ACL_TOPIC, acl_allows, acl_permits
from kbroker.requests._native_types cimport Handler, OUTCOME_DECLINED, OUTCOME_RESPONDED, Outcome
from kbroker.replica._topics cimport Topic, topic_by_name
from kbroker.quota._quota_enforcement cimport gate_request, store_throttle

cdef enum:                      # special time stamps
    LATEST = -1
    EARLIEST = -2
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6

cdef enum:
    READ_COMMITTED = 1
    FIRST_FLEXIBLE = 6

cdef enum Judgment:
    IS_MALFORMED = 0
    IS_ODD = 1
    IS_NATIVE = 2

cdef struct Question:           # one partition of the request
    int32_t index
    int32_t leader_epoch
    int64_t timestamp_ms

cdef struct Reply:
    int16_t error
    int64_t timestamp_ms
    int64_t offset
    int32_t leader_epoch


cdef int16_t first_version(int64_t timestamp_ms) noexcept nogil:
    """Return the first version in which clients may use a time stamp."""
    if timestamp_ms >= EARLIEST:
        return 0
    if timestamp_ms == MAX_TIMESTAMP:
        return 7
    if timestamp_ms == EARLIEST_LOCAL:
        return 8
    if timestamp_ms == LATEST_TIERED:
        return 9
    return 11 if timestamp_ms == EARLIEST_PENDING_UPLOAD else 32767


cdef void read_question(Reader *r, int16_t version, Question *out) noexcept nogil:
    out.index = read_i32(r)
    out.leader_epoch = read_i32(r) if version >= 4 else -1
    out.timestamp_ms = read_i64(r)
    if version >= FIRST_FLEXIBLE:
        skip_tags(r)


cdef Topic *read_topic(Handler *handler, Reader *r, bint flexible, const char **name,
                       int64_t *name_bytes) noexcept nogil:
    """Read a topic's name, and find the topic if this broker has it; a null name is malformed."""
    name_bytes[0] = read_length(r, flexible, False)
    if name_bytes[0] < 0:
        r.bad = True
        return NULL
    name[0] = read_bytes(r, name_bytes[0])
    if r.bad:
        return NULL
    return topic_by_name(handler.topics, name[0], name_bytes[0])


cdef inline bint is_hosted(const Topic *topic, int32_t index) noexcept nogil:
    return (topic != NULL and 0 <= index < topic.partition_count and topic.partitions[index] != NULL
            and not partition_is_closed(topic.partitions[index]))


cdef inline bint may_describe(Handler *handler, Request *request, const Topic *topic) noexcept nogil:
    """Return whether the client may describe a topic. It is not counted: for a denied one Python checks again."""
    return handler.native_apis.acls == NULL or acl_permits(
        handler.native_apis.acls, handler.decisions, request, ACL_DESCRIBE, ACL_TOPIC, topic.name, topic.name_bytes)


cdef Judgment judge_topics(Handler *handler, Request *request, Reader *r, int16_t version, int64_t topics,
                           LatestIndex *seen, bint notes, int32_t *total) noexcept nogil:
    """Check the topics. With ``notes``, ``seen`` has capacity for all partitions (by log) and topics (by entry)."""
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef int64_t parts, name_bytes, _i, _k
    cdef const char *name = NULL
    cdef Topic *topic
    cdef Question question
    cdef Judgment found = IS_NATIVE
    for _i in range(topics):
        topic = read_topic(handler, r, flexible, &name, &name_bytes)
        parts = read_count(r, flexible, 12 if version < 4 else (16 if version < FIRST_FLEXIBLE else 17))
        if r.bad or parts < 0 or total[0] + parts > handler.native_apis.max_request_partitions:
            return IS_MALFORMED
        if topic == NULL or not (notes or may_describe(handler, request, topic)) or (
                notes and latest_put(seen, <uint64_t>topic, 0) >= 0):
            found = IS_ODD
        for _k in range(parts):
            read_question(r, version, &question)
            if found == IS_NATIVE and (not is_hosted(topic, question.index) or (
                    notes and latest_put(seen, <uint64_t>topic.partitions[question.index], 0) >= 0)):
                found = IS_ODD
        total[0] += <int32_t>parts
        if flexible:
            skip_tags(r)
        if r.bad:
            return IS_MALFORMED
    return found


cdef Judgment judge(Handler *handler, Request *request, Reader *body, int64_t topics) noexcept nogil:
    """Return whether the native handler serves the request. It needs only one table of the named partitions."""
    cdef int16_t version = kafka_request(request).api_version
    cdef Reader r = body[0]
    cdef int32_t total = 0, counted
    cdef LatestIndex seen
    cdef Judgment found = judge_topics(handler, request, &r, version, topics, NULL, False, &total)
    if found != IS_MALFORMED:
        if version >= 10:
            read_i32(&r)            # the client's time-out: there is no wait
        if version >= FIRST_FLEXIBLE:
            skip_tags(&r)
        if r.bad:
            return IS_MALFORMED
    if found != IS_NATIVE or (topics == 1 and total <= 1):
        return found
    counted = total + <int32_t>topics
    if not latest_init(&seen, counted if counted > 0 else 1, handler.native_apis.hash_seed):
        return IS_ODD
    r = body[0]
    total = 0
    found = judge_topics(handler, request, &r, version, topics, &seen, True, &total)
    latest_free(&seen)
    return found


cdef void look_up(Partition *partition, const Question *question, int8_t isolation, int16_t version,
                  Reply *out) noexcept nogil:
    """Look up an offset: UnifiedLog.fetchOffsetByTimestamp, after the checks of Partition.fetchOffsetForTimestamp."""
    cdef int32_t epoch = partition_leader_epoch(partition)
    cdef int64_t end
    cdef Found found
    out.error = NONE
    out.timestamp_ms = out.offset = out.leader_epoch = -1
    if version < first_version(question.timestamp_ms):
        out.error = UNSUPPORTED_VERSION
        return
    if partition_is_closed(partition):      # closed since the check
        out.error = UNKNOWN_TOPIC_OR_PARTITION
        return
    if question.leader_epoch >= 0 and question.leader_epoch != epoch:
        out.error = UNKNOWN_LEADER_EPOCH if question.leader_epoch > epoch else FENCED_LEADER_EPOCH
        return
    end = atomic_load(&partition.last_stable) if isolation == READ_COMMITTED else atomic_load(&partition.high_watermark)
    if question.timestamp_ms == LATEST:
        out.offset = end
    elif question.timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        out.offset = atomic_load(&partition.log_start)
    elif question.timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return                              # nothing is tiered
    else:
        if find_timestamp(partition, question.timestamp_ms, end, &found) < 0:
            out.error = KAFKA_STORAGE_ERROR
            return
        if found.offset < 0:
            return
        out.offset = found.offset
        out.timestamp_ms = found.timestamp_ms
    if version >= 4:
        out.leader_epoch = epoch


cdef void write_reply(Writer *w, Request *request, int32_t index, const Reply *reply) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    kafka_mark_error(request, reply.error, 1)
    write_i32(w, index)
    write_i16(w, reply.error)
    write_i64(w, reply.timestamp_ms)
    write_i64(w, reply.offset)
    if kafka.api_version >= 4:
        write_i32(w, reply.leader_epoch)
    if kafka.api_version >= FIRST_FLEXIBLE:
        write_uvarint(w, 0)


cdef void write_topics(Handler *handler, Request *request, Reader *r, int64_t topics, int8_t isolation,
                       Writer *w) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int16_t version = kafka.api_version
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef Reader counting = r[0]
    cdef int64_t parts, name_bytes, _i, _k, named = 0, unrecorded = 0
    cdef const char *name = NULL
    cdef Topic *topic
    cdef Question question
    cdef Reply reply
    for _i in range(topics):            # a topic without partitions is not in the response
        topic = read_topic(handler, &counting, flexible, &name, &name_bytes)
        unrecorded += topic.is_unrecorded
        if handler.native_apis.acls != NULL:        # counts the decision
            acl_allows(handler.native_apis.acls, handler.decisions, request, ACL_DESCRIBE, ACL_TOPIC, topic.name,
                       topic.name_bytes, 1)
        parts = read_count(&counting, flexible, 1)
        named += parts > 0
        for _k in range(parts):
            read_question(&counting, version, &question)
        if flexible:
            skip_tags(&counting)
    if topics > 0 and unrecorded == topics:
        kafka.record_flags |= RECORD_SKIP
    write_length(w, named, flexible, True)
    for _i in range(topics):
        topic = read_topic(handler, r, flexible, &name, &name_bytes)
        parts = read_count(r, flexible, 1)
        if parts > 0:
            write_string(w, name, name_bytes, flexible)
            write_length(w, parts, flexible, True)
        for _k in range(parts):
            read_question(r, version, &question)
            look_up(topic.partitions[question.index], &question, isolation, version, &reply)
            write_reply(w, request, question.index, &reply)
        if flexible:
            skip_tags(r)
            if parts > 0:
                write_uvarint(w, 0)


cdef Outcome handle_list_offsets(Handler *handler, Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int16_t version = kafka.api_version
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef int64_t topics, throttle_at
    cdef int32_t throttle_ms
    cdef int8_t isolation
    cdef Judgment judgment = IS_MALFORMED
    cdef Reader r
    cdef Writer w
    reader_init(&r, request.payload + kafka.header_bytes, request.size_bytes - kafka.header_bytes)
    read_i32(&r)                        # replica id: no broker replicates from this one
    isolation = read_i8(&r) if version >= 2 else 0
    topics = read_count(&r, flexible, 6 if not flexible else 3)
    if not r.bad and 0 <= topics <= handler.native_apis.max_request_partitions:
        judgment = judge(handler, request, &r, topics)
    if judgment == IS_ODD:
        return OUTCOME_DECLINED
    if judgment == IS_MALFORMED:
        request.action = ACTION_CLOSE
        kafka.local_done_ns = clock_now_ns(handler.native_apis.clock)
        return OUTCOME_RESPONDED
    writer_init(&w, request.inline_out, INLINE_OUT_BYTES)
    write_i32(&w, kafka.correlation_id)
    if flexible:
        write_uvarint(&w, 0)
    throttle_at = w.size_bytes
    if version >= 2:
        write_i32(&w, 0)
    write_topics(handler, request, &r, topics, isolation, &w)
    if flexible:
        write_uvarint(&w, 0)
    request.action = ACTION_SEND
    if w.failed or not request_add_memory(request, w.data, w.size_bytes, w.data if w.is_owned else NULL):
        writer_free(&w)
        request.action = ACTION_CLOSE
    kafka.local_done_ns = clock_now_ns(handler.native_apis.clock)
    throttle_ms = gate_request(handler.native_apis.quotas, handler.clients, request, kafka.local_done_ns)
    if throttle_ms > 0 and version >= 2 and request.action == ACTION_SEND:
        store_throttle(w.data + throttle_at, throttle_ms)
    return OUTCOME_RESPONDED
