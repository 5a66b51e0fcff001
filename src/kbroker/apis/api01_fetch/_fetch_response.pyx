"""The partitions and the response of a Fetch: read, encoded and judged by the quotas.

Source: ``ReplicaManager.readFromLog``; KIP-227 for the parts left out of an incremental response.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.codec.wire cimport (
    Writer, write_i16, write_i32, write_i64, write_length, write_raw, write_reserve, write_string, write_uvarint,
    writer_free, writer_init,
)
from kbroker._core.open_file cimport OpenFile, open_file_release
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_SEND, Request, request_add_file, request_add_memory, request_room,
)
from kbroker._core.sync cimport atomic_load
from kbroker.common._errors cimport (
    FENCED_LEADER_EPOCH, NONE, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION,
)
from kbroker.log._partition cimport ReadProbe, partition_is_closed, partition_leader_epoch, partition_release
from kbroker.log._posix cimport io_read
from kbroker.log._read cimport partition_probe, partition_read
from kbroker.network._kafka_request cimport RECORD_EMPTY_FETCH, kafka_clear_response, kafka_mark_error, kafka_request
from kbroker.network._request_metrics cimport SLOT_FETCH_CONSUMER, SLOT_FETCH_FOLLOWER
from kbroker.apis.api01_fetch._fetch_partitions cimport same_topic
from kbroker.apis.api01_fetch._fetch_session cimport SessionCache, session_drop, session_end, session_select
from kbroker.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.requests._native_types cimport NativeApisCore, write_nodes
from kbroker.quota._quota_enforcement cimport ClientCache, gate_exempt, gate_fetch, quotas_are_set, store_throttle


cdef inline bint has_new_leader(const FetchPart *part) noexcept nogil:
    """Return whether the partition's leader epoch has changed since it was found."""
    return partition_leader_epoch(part.partition) != part.known_epoch


cdef void read_diverging(FetchPart *part) noexcept nogil:
    """Note the offsets of a log from which the client's records differ: it gets no records, even out of range."""
    part.read.high_watermark = atomic_load(&part.partition.high_watermark)
    part.read.last_stable_offset = atomic_load(&part.partition.last_stable)
    part.read.log_start_offset = atomic_load(&part.partition.log_start)
    part.read.aborted_count = -1


cdef int64_t read_partitions(FetchState *state, bint *any_error, int32_t *readable) noexcept nogil:
    cdef int64_t limit = state.max_bytes, total = 0, room
    cdef bint min_one = True
    cdef FetchPart *part
    cdef int32_t i
    any_error[0] = False
    readable[0] = 0
    if limit > state.native_apis.fetch_max_bytes:
        limit = state.native_apis.fetch_max_bytes
    for i in range(state.part_count):
        part = &state.parts[i]
        memset(&part.read, 0, sizeof(part.read))
        if part.is_superseded:
            continue
        readable[0] += not part.is_unread
        if part.error == NONE and partition_is_closed(part.partition):
            part.read.error = UNKNOWN_TOPIC_OR_PARTITION        # it was found: not UNKNOWN_TOPIC_ID
        elif part.error != NONE:
            part.read.error = part.error
        elif has_new_leader(part):      # while the fetch waited
            part.current_leader = -1
            part.read.error = FENCED_LEADER_EPOCH if part.leader_epoch >= 0 else NOT_LEADER_OR_FOLLOWER
        else:
            room = limit - total
            if part.is_diverging:
                read_diverging(part)
                any_error[0] = True         # it is sent at once
                continue
            if room < 0 or part.has_preferred:
                room = 0
            partition_read(part.partition, part.offset, part.max_bytes if part.max_bytes < room else room,
                           min_one and not part.has_preferred, state.isolation, &part.read)
        any_error[0] = any_error[0] or part.has_preferred       # it is sent at once
        if part.read.error != NONE:
            # A part that was not read does not end the wait for the others.
            any_error[0] = any_error[0] or not part.is_unread
            part.read.high_watermark = part.read.last_stable_offset = part.read.log_start_offset = -1
        if part.read.size_bytes > 0:
            min_one = False
            total += part.read.size_bytes
    return total


cdef void drop_reads(FetchState *state) noexcept nogil:
    cdef int32_t i
    for i in range(state.part_count):
        if state.parts[i].read.file != NULL:
            open_file_release(state.parts[i].read.file)
            state.parts[i].read.file = NULL
        free(state.parts[i].read.aborted)
        state.parts[i].read.aborted = NULL


cdef bint has_records(FetchState *state) noexcept nogil:
    cdef int32_t i
    for i in range(state.part_count):
        if state.parts[i].read.size_bytes > 0:
            return True
    return False


cdef bint is_satisfied(FetchState *state) noexcept nogil:
    cdef int64_t available = 0
    cdef FetchPart *part
    cdef ReadProbe probe
    cdef int32_t i
    for i in range(state.part_count):
        part = &state.parts[i]
        if part.is_superseded or part.is_unread:
            continue
        if part.partition == NULL or partition_is_closed(part.partition) or has_new_leader(part):
            return True
        partition_probe(part.partition, part.offset, part.max_bytes, state.isolation, &probe)
        if probe.error != NONE or probe.crosses_segment:
            return True
        available += probe.available_bytes
        if available >= state.min_bytes:
            return True
    return False


cdef void release_partitions(FetchState *state) noexcept nogil:
    """Free a fetch's parts, but not the struct; under the operation's lock once other threads have the struct."""
    cdef int32_t i
    if state.parts != NULL:
        drop_reads(state)
        for i in range(state.part_count):
            if state.parts[i].partition != NULL:
                partition_release(state.parts[i].partition)
    session_drop(state)
    free(state.parts)
    free(state.names)
    state.parts = NULL
    state.names = NULL
    state.part_count = 0


cdef enum:
    COPY_BYTES = 32768          # smaller regions are copied into the response: one write instead of three
    INLINE_SPLITS = 8


cdef struct Split:              # a file region between two stretches of the response's memory
    int64_t at
    OpenFile *file
    int64_t position
    int64_t size_bytes


cdef int32_t group_end(FetchState *state, int32_t i, int32_t *included) noexcept nogil:
    """Return the end of the parts of the same topic that begin at i, and their number in the response."""
    cdef int32_t first = i
    included[0] = 0
    while i < state.part_count and same_topic(&state.parts[first], &state.parts[i]):
        included[0] += state.parts[i].is_included
        i += 1
    return i


cdef void write_aborted(Writer *w, FetchState *state, FetchPart *part, bint flexible) noexcept nogil:
    cdef int32_t i
    if part.is_unread:          # as in Kafka: an empty list if the log was not read, null if it was
        write_length(w, 0, flexible, True)
        return
    if state.isolation == 0 or part.read.error != NONE:
        write_length(w, -1, flexible, True)
        return
    write_length(w, part.read.aborted_count, flexible, True)
    for i in range(part.read.aborted_count):
        write_i64(w, part.read.aborted[i].producer_id)
        write_i64(w, part.read.aborted[i].first_offset)
        if flexible:
            write_uvarint(w, 0)


cdef bint write_records(Writer *w, FetchPart *part, bint flexible, Split *splits, int32_t *split_count) noexcept nogil:
    """Write the records and their length: copied when short, else as a file region. False: they are missing."""
    cdef char *to
    write_length(w, part.read.size_bytes, flexible, True)
    if part.read.size_bytes == 0:
        return True
    if part.read.size_bytes <= COPY_BYTES:
        to = write_reserve(w, part.read.size_bytes)
        if to == NULL:
            return False
        return io_read(part.read.file.fd, to, part.read.size_bytes, part.read.position) == part.read.size_bytes
    splits[split_count[0]].at = w.size_bytes
    splits[split_count[0]].file = part.read.file
    splits[split_count[0]].position = part.read.position
    splits[split_count[0]].size_bytes = part.read.size_bytes
    part.read.file = NULL       # its reference goes to the response
    split_count[0] += 1
    return True


cdef inline bint has_other_leader(const FetchState *state, const FetchPart *part) noexcept nogil:
    """Return whether the response names the leader of a part (KIP-951).

    Kafka names -1 for a partition without a leader. No client uses that id, and librdkafka up to 2.16 crashes if
    the same response names the leader of another partition.
    """
    return state.version >= 16 and part.current_leader >= 0 and (
        part.read.error in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH))


cdef bint write_part(Writer *w, FetchState *state, FetchPart *part, Split *splits, int32_t *split_count) noexcept nogil:
    cdef int16_t version = state.version
    cdef bint flexible = version >= 12, ok, diverges = part.is_diverging and part.read.error == NONE
    kafka_mark_error(state.request, part.read.error, 1)
    write_i32(w, part.index)
    write_i16(w, part.read.error)
    write_i64(w, part.read.high_watermark)
    write_i64(w, part.read.last_stable_offset)
    if version >= 5:
        write_i64(w, part.read.log_start_offset)
    write_aborted(w, state, part, flexible)
    if version >= 11:
        write_i32(w, part.preferred if part.has_preferred and part.read.error == NONE else -1)
    ok = write_records(w, part, flexible, splits, split_count)
    if flexible and diverges:
        write_uvarint(w, 1)
        write_uvarint(w, 0)     # DivergingEpoch: epoch, end offset, no tags
        write_uvarint(w, 13)
        write_i32(w, part.diverging_epoch)
        write_i64(w, part.diverging_end)
        write_uvarint(w, 0)
    elif has_other_leader(state, part):
        write_uvarint(w, 1)
        write_uvarint(w, 1)     # CurrentLeader: id, epoch, no tags
        write_uvarint(w, 9)
        write_i32(w, part.current_leader)
        write_i32(w, part.current_epoch)
        write_uvarint(w, 0)
    elif flexible:
        write_uvarint(w, 0)
    return ok


cdef bint write_head(Writer *w, FetchState *state, int64_t topic_count) noexcept nogil:
    cdef bint flexible = state.version >= 12
    kafka_mark_error(state.request, state.error, 1)
    kafka_request(state.request).metric_slot = SLOT_FETCH_CONSUMER if state.replica_id < 0 else SLOT_FETCH_FOLLOWER
    write_i32(w, kafka_request(state.request).correlation_id)
    if flexible:
        write_uvarint(w, 0)
    write_i32(w, state.throttle_ms)
    if state.version >= 7:
        write_i16(w, state.error)
        write_i32(w, state.response_session_id)
    write_length(w, topic_count, flexible, True)
    return not w.failed


cdef void hand_over(Request *request, Writer *w, Split *splits, int32_t split_count, bint ok) noexcept nogil:
    """Turn memory and regions into the request's segments, in order."""
    cdef int64_t at = 0
    cdef int32_t i
    cdef char *owned = w.data if w.is_owned else NULL
    request.action = ACTION_SEND
    ok = ok and not w.failed
    for i in range(split_count):
        if ok and splits[i].at > at:
            # The first stretch of memory owns the block, so that it is freed even if a later one finds no memory.
            ok = request_add_memory(request, w.data + at, splits[i].at - at, owned if at == 0 else NULL)
            at = splits[i].at
        if ok:
            ok = request_add_file(request, splits[i].file, splits[i].position, splits[i].size_bytes)
            if ok:
                continue        # the response has the reference now
        open_file_release(splits[i].file)
    if ok and w.size_bytes > at:
        ok = request_add_memory(request, w.data + at, w.size_bytes - at, owned if at == 0 else NULL)
    if not ok:
        request.action = ACTION_CLOSE


cdef bint has_unwritable_part(const FetchState *state) noexcept nogil:
    """Return whether a part diverges in a version without this field: a session was continued in another version."""
    cdef const FetchPart *part
    cdef int32_t i
    for i in range(state.part_count if state.version < 12 else 0):
        part = &state.parts[i]
        if part.is_included and part.is_diverging and part.read.error == NONE:
            return True
    return False


cdef void build_response(FetchState *state) noexcept nogil:
    cdef bint flexible = state.version >= 12, ok = True, any_foreign = False
    cdef int64_t topic_count = 0, room_bytes = 0
    cdef int32_t i = 0, k, end, included, split_count = 0
    cdef Split inline_splits[INLINE_SPLITS]
    cdef Split *splits = inline_splits
    cdef char *room = request_room(state.request, &room_bytes)
    cdef Writer w
    if state.part_count > INLINE_SPLITS:
        splits = <Split *>malloc(<size_t>state.part_count * sizeof(Split))
    for i in range(state.part_count):
        if state.parts[i].is_superseded:
            state.parts[i].is_included = False
    if has_unwritable_part(state):          # Kafka fails to write the response
        state.error = UNSUPPORTED_VERSION
        for i in range(state.part_count):
            state.parts[i].is_included = False
    i = 0
    while i < state.part_count:
        i = group_end(state, i, &included)
        topic_count += included > 0
    writer_init(&w, room, room_bytes)
    ok = splits != NULL and write_head(&w, state, topic_count)
    i = 0
    while ok and i < state.part_count:
        end = group_end(state, i, &included)
        if included > 0:
            if state.version >= 13:
                write_raw(&w, state.parts[i].id, 16)
            else:
                write_string(&w, state.parts[i].name, state.parts[i].name_bytes, flexible)
            write_length(&w, included, flexible, True)
            for k in range(i, end):
                if ok and state.parts[k].is_included:
                    any_foreign = any_foreign or state.replica_id < 0 and has_other_leader(state, &state.parts[k])
                    ok = write_part(&w, state, &state.parts[k], splits, &split_count)
            if flexible:
                write_uvarint(&w, 0)
        i = end
    if any_foreign:
        write_nodes(&w, state.native_apis, state.request)
    elif flexible:
        write_uvarint(&w, 0)
    hand_over(state.request, &w, splits, split_count, ok)
    if state.request.action == ACTION_CLOSE and state.request.segment_count == 0:
        writer_free(&w)
    if splits != inline_splits:
        free(splits)
    drop_reads(state)


# -------------------------------------------------------------- judgement

cdef void respond_to_fetch(FetchState *state, ClientCache *clients) noexcept nogil:
    cdef NativeApisCore *native_apis = state.native_apis
    cdef Request *request = state.request
    cdef int64_t now_ns
    if not has_records(state):
        kafka_request(request).record_flags |= RECORD_EMPTY_FETCH
    if not quotas_are_set(native_apis.quotas) or state.replica_id >= 0:
        session_end(<SessionCache *>native_apis.sessions, state, clock_now_ms(native_apis.clock))
        build_response(state)
        if state.replica_id >= 0:
            gate_exempt(native_apis.quotas, request, clock_now_ns(native_apis.clock))
        return
    session_select(state)
    build_response(state)         # its size is charged
    if request.action == ACTION_CLOSE:
        return
    now_ns = clock_now_ns(native_apis.clock)
    # Kafka counts the header as four bytes, even if it has a tagged section.
    state.throttle_ms = gate_fetch(
        native_apis.quotas, clients, request, request.response_bytes - (state.version >= 12), now_ns)
    if state.throttle_ms > 0:
        respond_throttled(state)
        return
    if state.session != NULL:
        session_end(<SessionCache *>native_apis.sessions, state, clock_now_ms(native_apis.clock))
        if not state.is_incremental:
            store_int32(request.segments[0].data + (11 if state.version >= 12 else 10), state.response_session_id)


cdef inline void store_int32(char *at, int32_t value) noexcept nogil:
    store_throttle(at, value)


cdef void respond_throttled(FetchState *state) noexcept nogil:
    """Send only the throttle time, without data or error; a session continues, and none is opened."""
    cdef int32_t i
    kafka_clear_response(state.request)
    state.error = NONE
    if not state.is_incremental:
        session_drop(state)
        state.response_session_id = 0
    for i in range(state.part_count):
        state.parts[i].is_included = False
    build_response(state)
