"""Native Fetch: parse, resolve, read; wait in the purgatory when there is too little; respond with file regions.

The parser checks every count and length against the remaining bytes before it allocates memory.

A delayed fetch is watched by partition, listed for shutdown, and completed once by one thread, which reads the log
again and responds. Lifetime of a FetchState: created by the handler, kept by the references to its Operation, freed
with the last of them.

Lock: ``NativeApisCore.delayed_lock`` guards the list of delayed fetches, a leaf. Source: ``DelayedFetch``; KIP-227 for
sessions.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.timer.key_signal cimport key_signal
from kbroker._core.codec.wire cimport (
    Reader, read_bytes, read_count, read_i32, read_i64, read_i8, read_length, read_uvarint, reader_init, skip_tags,
)
from kbroker._core.requests.request cimport ACTION_CLOSE, Request, Responder
from kbroker._core.timer.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_check_and_complete, purgatory_try_complete_else_watch,
)
from kbroker._core.sync cimport atomic_add_fetch, mutex_lock, mutex_unlock
from kbroker.common._errors cimport NONE, UNKNOWN_SERVER_ERROR
from kbroker.network._kafka_request cimport KafkaRequest, kafka_request
from kbroker.apis.api01_fetch._fetch_partitions cimport ask_again, resolve_partitions
from kbroker.apis.api01_fetch._fetch_response cimport (
    build_response, drop_reads, is_satisfied, read_partitions, release_partitions, respond_to_fetch,
)
from kbroker.apis.api01_fetch._fetch_session cimport SessionCache, session_begin
from kbroker.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.requests._native_types cimport (
    OUTCOME_DELAYED, OUTCOME_RESPONDED, Handler, NativeApisCore, Outcome, DEFERRED_SLOTS,
    MAX_REQUEST_PARTITIONS,
)
from kbroker.requests._peers cimport peers_check_fetches
from kbroker.quota._quota_enforcement cimport ClientCache, fetch_window_bytes, gate_request, quotas_are_set
from kbroker.log._partition cimport Partition, partition_release, partition_retain

cdef enum:
    CLOSED_PER_CHECK = 64

cdef OperationTable DELAYED_FETCH


cdef void free_state(FetchState *state) noexcept nogil:
    release_partitions(state)
    free(state)


cdef void release_partitions_locked(FetchState *state) noexcept nogil:
    mutex_lock(&state.op.own_lock)
    release_partitions(state)
    mutex_unlock(&state.op.own_lock)


cdef bint delay_fetch(Handler *handler, FetchState *state) noexcept nogil:
    """Watch every partition. True: the request belongs to the operation. False: no memory to wait, respond now."""
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef Key *keys = <Key *>calloc(<size_t>state.part_count, sizeof(Key))
    cdef int32_t i, count = 0
    if keys == NULL:
        return False
    for i in range(state.part_count):
        if state.parts[i].partition != NULL and not state.parts[i].is_superseded:
            keys[count].high = <int64_t>state.parts[i].partition
            count += 1
    if count == 0:
        free(keys)
        return False
    state.processor_id = state.request.responder.processor_id
    state.channel_number = state.request.channel_number
    operation_init(&state.op, &DELAYED_FETCH, state.max_wait_ms, NULL)
    mutex_lock(&native_apis.delayed_lock)
    state.delayed_next = <FetchState *>native_apis.delayed
    if state.delayed_next != NULL:
        state.delayed_next.delayed_prev = state
    native_apis.delayed = state
    mutex_unlock(&native_apis.delayed_lock)
    purgatory_try_complete_else_watch(native_apis.fetch_purgatory, &state.op, keys, count)
    free(keys)
    operation_release(&state.op)
    return True


cdef bint delayed_fetch_try_complete(Operation *op) noexcept nogil:
    cdef FetchState *state = <FetchState *>op
    if not is_satisfied(state) or not operation_force_complete(op):
        return False
    release_partitions(state)               # the lock is held
    return True


cdef void delayed_fetch_on_complete(Operation *op) noexcept nogil:
    """Read again, within the limits, the partitions that the client may still read, and respond; called once."""
    cdef FetchState *state = <FetchState *>op
    cdef Request *request = state.request
    cdef bint any_error = False
    cdef int32_t readable = 0
    unlink(state)
    ask_again(state)
    read_partitions(state, &any_error, &readable)
    respond_to_fetch(state, NULL)
    state.request = NULL
    request.response_ready_ns = clock_now_ns(state.native_apis.clock)
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void unlink(FetchState *state) noexcept nogil:
    mutex_lock(&state.native_apis.delayed_lock)
    if state.delayed_prev != NULL:
        state.delayed_prev.delayed_next = state.delayed_next
    elif state.native_apis.delayed == state:
        state.native_apis.delayed = state.delayed_next
    if state.delayed_next != NULL:
        state.delayed_next.delayed_prev = state.delayed_prev
    state.delayed_next = state.delayed_prev = NULL
    mutex_unlock(&state.native_apis.delayed_lock)


cdef void complete_delayed(NativeApisCore *native_apis) noexcept nogil:
    cdef FetchState *state
    while True:
        mutex_lock(&native_apis.delayed_lock)
        state = <FetchState *>native_apis.delayed
        if state != NULL:
            atomic_add_fetch(&state.op.refs, 1)
        mutex_unlock(&native_apis.delayed_lock)
        if state == NULL:
            return
        if operation_force_complete(&state.op):
            release_partitions_locked(state)
        else:
            unlink(state)       # another thread is completing it
        operation_release(&state.op)


cdef void complete_disconnected(NativeApisCore *native_apis) noexcept nogil:
    """Complete the fetches of disconnected clients: a wait may take 24 days and hold megabytes."""
    cdef FetchState *found[CLOSED_PER_CHECK]
    cdef FetchState *state
    cdef Responder *responder
    cdef int32_t i, count = CLOSED_PER_CHECK
    while count == CLOSED_PER_CHECK:
        count = 0
        mutex_lock(&native_apis.delayed_lock)
        state = <FetchState *>native_apis.delayed
        while state != NULL and count < CLOSED_PER_CHECK:
            responder = state.request.responder
            if responder.is_closed != NULL and responder.is_closed(state.request):
                atomic_add_fetch(&state.op.refs, 1)
                found[count] = state
                count += 1
            state = state.delayed_next
        mutex_unlock(&native_apis.delayed_lock)
        for i in range(count):
            if operation_force_complete(&found[i].op):
                release_partitions_locked(found[i])
            operation_release(&found[i].op)


cdef void delayed_fetch_on_expiration(Operation *op) noexcept nogil:
    release_partitions_locked(<FetchState *>op)


cdef void delayed_fetch_destroy(Operation *op) noexcept nogil:
    free_state(<FetchState *>op)


DELAYED_FETCH.try_complete = delayed_fetch_try_complete
DELAYED_FETCH.on_complete = delayed_fetch_on_complete
DELAYED_FETCH.on_expiration = delayed_fetch_on_expiration
DELAYED_FETCH.destroy = delayed_fetch_destroy


# --------------------------------------------------------------------------------- checks after the responses

cdef void defer_check(Handler *handler, Partition *partition) noexcept nogil:
    cdef int32_t i
    for i in range(handler.deferred_count):
        if handler.deferred[i] == partition:
            return
    if handler.deferred_count == DEFERRED_SLOTS:
        run_deferred(handler)
    handler.deferred[handler.deferred_count] = partition_retain(partition)
    handler.deferred_count += 1


cdef void check_fetches(NativeApisCore *native_apis, Key *key) noexcept nogil:
    purgatory_check_and_complete(native_apis.fetch_purgatory, key)
    if native_apis.peers != NULL:
        peers_check_fetches(native_apis, key)


cdef void run_deferred(Handler *handler) noexcept nogil:
    cdef int32_t i, n = handler.deferred_count
    cdef Key key
    handler.deferred_count = 0
    for i in range(n):
        key.high = <int64_t>handler.deferred[i]
        key.low = 0
        check_fetches(handler.native_apis, &key)
        key_signal(handler.native_apis.appends, key.high, key.low)
        partition_release(handler.deferred[i])


cdef bint read_partition(Reader *r, int16_t version, FetchPart *part) noexcept nogil:
    part.index = read_i32(r)
    part.leader_epoch = read_i32(r) if version >= 9 else -1
    part.offset = read_i64(r)
    part.last_fetched_epoch = read_i32(r) if version >= 12 else -1
    if version >= 5:
        read_i64(r)             # log start offset of a follower
    part.max_bytes = read_i32(r)
    if version >= 12:
        skip_tags(r)
    return not r.bad


cdef void read_name(Reader *r, int16_t version, const char **name, int64_t *name_bytes,
                    const char **topic_id) noexcept nogil:
    name[0] = topic_id[0] = NULL
    name_bytes[0] = 0
    if version >= 13:
        topic_id[0] = read_bytes(r, 16)
        return
    name_bytes[0] = read_length(r, version >= 12, False)
    if name_bytes[0] < 0:
        r.bad = True
        name_bytes[0] = 0
    else:
        name[0] = read_bytes(r, name_bytes[0])


cdef bint read_topics(Reader *r, FetchState *state) noexcept nogil:
    """Read the Topics array into state.parts, in two passes for one allocation; false: malformed, or out of memory."""
    cdef int16_t version = state.version
    cdef bint flexible = version >= 12
    cdef int64_t least = 16 if version < 5 else (24 if version < 9 else (28 if version < 12 else 33))
    cdef int64_t topics, parts, name_bytes, _i, _k, total = 0
    cdef int32_t at = 0, turn
    cdef const char *name
    cdef const char *topic_id
    cdef FetchPart scratch
    cdef Reader start
    topics = read_count(r, flexible, 6 if not flexible else (18 if version >= 13 else 3))
    if r.bad or topics < 0 or topics > MAX_REQUEST_PARTITIONS:
        return False
    start = r[0]
    for turn in range(2):
        r[0] = start
        for _i in range(topics):
            read_name(r, version, &name, &name_bytes, &topic_id)
            parts = read_count(r, flexible, least)
            if r.bad or parts < 0:
                return False
            total += parts
            if total > 2 * MAX_REQUEST_PARTITIONS:
                return False
            for _k in range(parts):
                if turn == 0:
                    if not read_partition(r, version, &scratch):
                        return False
                else:
                    state.parts[at].name = name
                    state.parts[at].name_bytes = <int32_t>name_bytes
                    state.parts[at].id = topic_id
                    read_partition(r, version, &state.parts[at])
                    at += 1
            if flexible:
                skip_tags(r)
            if r.bad:
                return False
        if turn == 0:
            if total > MAX_REQUEST_PARTITIONS:
                return False
            state.parts = <FetchPart *>calloc(<size_t>(total or 1), sizeof(FetchPart))
            if state.parts == NULL:
                return False
    state.part_count = at
    return True


cdef bint check_forgotten(Reader *r, FetchState *state) noexcept nogil:
    cdef bint flexible = state.version >= 12
    cdef const char *start = r.at
    cdef int64_t topics, n, name_bytes, _i
    cdef const char *name
    cdef const char *topic_id
    topics = read_count(r, flexible, 6 if not flexible else 3)
    if r.bad or topics < 0:
        return False
    for _i in range(topics):
        read_name(r, state.version, &name, &name_bytes, &topic_id)
        n = read_count(r, flexible, 4)
        if r.bad or n < 0:
            return False
        read_bytes(r, n * 4)
        if flexible:
            skip_tags(r)
    state.forgotten = start
    state.forgotten_bytes = r.at - start if topics > 0 else 0
    return not r.bad


cdef void read_top_tags(Reader *r, FetchState *state) noexcept nogil:
    """Read the request's tagged section: only ReplicaState (1, from version 15) matters."""
    cdef uint32_t n = read_uvarint(r), tag, size_bytes
    cdef Reader field
    cdef const char *start
    while n > 0 and not r.bad:
        tag = read_uvarint(r)
        size_bytes = read_uvarint(r)
        start = read_bytes(r, size_bytes)
        if tag == 1 and state.version >= 15 and start != NULL:
            reader_init(&field, start, size_bytes)
            state.replica_id = read_i32(&field)
            read_i64(&field)                        # ReplicaEpoch
            skip_tags(&field)
            r.bad = field.bad or field.at != field.end
        n -= 1


cdef bint parse_fetch(FetchState *state) noexcept nogil:
    cdef Request *request = state.request
    cdef int16_t version = state.version
    cdef bint flexible = version >= 12
    cdef int64_t n
    cdef int32_t header_bytes
    cdef Reader r
    header_bytes = kafka_request(request).header_bytes
    reader_init(&r, request.payload + header_bytes, request.size_bytes - header_bytes)
    state.replica_id = read_i32(&r) if version <= 14 else -1
    state.max_wait_ms = read_i32(&r)
    state.min_bytes = read_i32(&r)
    state.max_bytes = read_i32(&r)
    state.isolation = read_i8(&r)
    state.session_epoch = -1
    if version >= 7:
        state.session_id = read_i32(&r)
        state.session_epoch = read_i32(&r)
    if r.bad or not read_topics(&r, state):
        return False
    if version >= 7 and not check_forgotten(&r, state):
        return False
    if version >= 11:
        n = read_length(&r, flexible, False)
        if n != 0:                                  # null is malformed, as in Kafka
            state.rack = read_bytes(&r, n)
            state.rack_bytes = n
    if flexible:
        read_top_tags(&r, state)
    return not r.bad


cdef void limit_sizes(FetchState *state, ClientCache *clients) noexcept nogil:
    """Limit max_bytes to the broker's maximum and, for clients, to the quota's window; min_bytes to max_bytes."""
    cdef NativeApisCore *native_apis = state.native_apis
    cdef int64_t limit = native_apis.fetch_max_bytes, now_ns
    if quotas_are_set(native_apis.quotas) and state.replica_id < 0:
        now_ns = clock_now_ns(native_apis.clock)
        limit = min(limit, fetch_window_bytes(native_apis.quotas, clients, state.request, now_ns))
    if state.max_bytes > limit:
        state.max_bytes = <int32_t>limit
    if state.min_bytes > state.max_bytes:
        state.min_bytes = state.max_bytes


cdef void refuse_isolation(FetchState *state) noexcept nogil:
    """Refuse an unknown isolation level with error -1 and offsets of -1, in the form of Kafka 4.3.1."""
    cdef int32_t i
    state.error = UNKNOWN_SERVER_ERROR
    state.response_session_id = 0
    for i in range(state.part_count):
        memset(&state.parts[i].read, 0, sizeof(state.parts[i].read))
        state.parts[i].is_included = state.version <= 12
        state.parts[i].is_unread = True
        state.parts[i].read.error = UNKNOWN_SERVER_ERROR
        state.parts[i].read.high_watermark = -1
        state.parts[i].read.last_stable_offset = -1
        state.parts[i].read.log_start_offset = -1


cdef Outcome handle_fetch(Handler *handler, Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef FetchState *state = <FetchState *>calloc(1, sizeof(FetchState))
    cdef bint any_error = False
    cdef int64_t found
    cdef int32_t readable = 0
    if state == NULL:
        request.action = ACTION_CLOSE
        return OUTCOME_RESPONDED
    state.request = request
    state.native_apis = handler.native_apis
    state.version = kafka.api_version
    if not parse_fetch(state):
        request.action = ACTION_CLOSE
    elif state.isolation != 0 and state.isolation != 1:
        refuse_isolation(state)
        state.throttle_ms = gate_request(
            handler.native_apis.quotas, handler.clients, request, clock_now_ns(handler.native_apis.clock))
        build_response(state)
    elif not session_begin(
        <SessionCache *>handler.native_apis.sessions, state, clock_now_ms(handler.native_apis.clock)
    ):
        request.action = ACTION_CLOSE
    elif state.error != NONE:
        state.part_count = 0
        respond_to_fetch(state, handler.clients)
    else:
        limit_sizes(state, handler.clients)
        if not resolve_partitions(handler, state):
            request.action = ACTION_CLOSE
        else:
            found = read_partitions(state, &any_error, &readable)
            if not (state.max_wait_ms <= 0 or readable == 0 or found >= state.min_bytes or any_error):
                drop_reads(state)
                kafka.local_done_ns = clock_now_ns(handler.native_apis.clock)
                if delay_fetch(handler, state):
                    return OUTCOME_DELAYED
                kafka.local_done_ns = 0     # out of memory: it is executed now
                read_partitions(state, &any_error, &readable)
            respond_to_fetch(state, handler.clients)
    if kafka.local_done_ns == 0:      # otherwise the quotas have set it
        kafka.local_done_ns = clock_now_ns(handler.native_apis.clock)
    free_state(state)
    return OUTCOME_RESPONDED
