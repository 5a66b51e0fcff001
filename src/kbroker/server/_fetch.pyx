"""Native Fetch: parse, resolve, read; wait in the purgatory when there is too little; answer with file regions.

Life of a FetchState: made by the handler, kept by its Operation's counts, freed by the last of them. The request is
answered once, by the thread that completes the operation (or by the handler when nothing has to be awaited), which
reads the log again (spec: timer-and-purgatory 8.2, log-storage 5.5, KIP-227 for sessions).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.purgatory cimport (
    Key, Operation, OperationTable, operation_force_complete, operation_init, operation_release,
    purgatory_try_complete_else_watch,
)
from kbroker._core.request cimport (
    ACTION_CLOSE, ACTION_SEND, RECORD_BROUGHT_NOTHING, RECORD_LEAVE_OUT, OpenFile, Request, Responder,
    open_file_release, request_add_file, request_add_memory, request_clear_answer, request_mark_error,
)
from kbroker._core.sync cimport atomic_add, mutex_lock, mutex_unlock
from kbroker._core.wire cimport (
    Reader, Writer, read_bytes, read_count, read_i32, read_i64, read_i8, read_length, read_uvarint, reader_init,
    skip_tags, write_i16, write_i32, write_i64, write_length, write_raw, write_reserve, write_string,
    write_uvarint, writer_free, writer_init,
)
from kbroker.log._partition cimport (
    ReadProbe, partition_is_closed, partition_leader_epoch, partition_release, partition_retain,
)
from kbroker.log._read cimport partition_probe, partition_read
from kbroker.network._request_metrics cimport SLOT_FETCH_CONSUMER, SLOT_FETCH_FOLLOWER
from kbroker.server._fetch_session cimport (
    SessionCache, session_begin, session_drop, session_end, session_select,
)
from kbroker.server._fetch_types cimport FetchPart, FetchState
from kbroker.server._lane_types cimport Handler, Lane, Outcome, OUTCOME_ANSWERED, OUTCOME_PARKED
from kbroker.server._topics cimport Topic, topic_by_id, topic_by_name
from kbroker.server.quota._counters cimport ClientCache
from kbroker.server.quota._gate cimport (
    fetch_window_bytes, gate_exempt, gate_fetch, gate_request, quotas_are_set, store_throttle,
)

cdef extern from *:
    """
    #include <errno.h>
    #if defined(_WIN32)
    #include <io.h>
    static inline int64_t kb_pread_full(int fd, char *to, int64_t n, int64_t at) {
        if (_lseeki64(fd, at, SEEK_SET) < 0) return -1;
        return _read(fd, to, (unsigned)n);
    }
    #else
    #include <unistd.h>
    static inline int64_t kb_pread_full(int fd, char *to, int64_t n, int64_t at) {
        int64_t done = 0;
        while (done < n) {
            ssize_t k = pread(fd, to + done, (size_t)(n - done), (off_t)(at + done));
            if (k < 0 && errno == EINTR) continue;
            if (k <= 0) break;
            done += k;
        }
        return done;
    }
    #endif
    """
    int64_t pread_full "kb_pread_full"(int fd, char *to, int64_t n, int64_t at) noexcept nogil


cdef enum:
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNKNOWN_TOPIC_ID = 100
    UNKNOWN_SERVER_ERROR = -1
    GONE_AT_ONCE = 64
    COPY_BYTES = 32768          # a smaller region is copied into the answer: one write instead of three


cdef struct Split:              # a file region between two stretches of the answer's memory
    int64_t at
    OpenFile *file
    int64_t position
    int64_t size_bytes


cdef OperationTable DELAYED_FETCH


# ---------------------------------------------------------------- parse

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
    """The Topics array into state.parts; two turns, so that one allocation of known size holds them."""
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
    if r.bad or topics < 0 or topics > state.lane.max_request_partitions:
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
            if total > 2 * <int64_t>state.lane.max_request_partitions:
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
            if total > state.lane.max_request_partitions:
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
    """The request's tagged section: only ReplicaState (1, from version 15) matters."""
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
        n -= 1


cdef bint parse(FetchState *state) noexcept nogil:
    cdef Request *request = state.request
    cdef int16_t version = state.version
    cdef bint flexible = version >= 12
    cdef int64_t n
    cdef Reader r
    reader_init(&r, request.payload + request.header_bytes, request.size_bytes - request.header_bytes)
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
        if n > 0:
            read_bytes(&r, n)
    if flexible:
        read_top_tags(&r, state)
    return not r.bad


# ---------------------------------------------------------------- resolve and read

cdef bint supersede(FetchState *state) noexcept nogil:
    """A partition named twice counts once, with what was said last (Kafka builds a map). False: memory is out."""
    cdef int32_t size = 4, mask, slot, i
    cdef int32_t *slots
    cdef FetchPart *part
    if state.part_count < 2:
        return True
    while size < state.part_count * 2:
        size *= 2
    mask = size - 1
    slots = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
    if slots == NULL:
        return False
    memset(slots, 0xFF, <size_t>size * sizeof(int32_t))
    for i in range(state.part_count):
        part = &state.parts[i]
        if part.partition == NULL:
            continue
        slot = <int32_t>((<uint64_t>part.partition * <uint64_t>0x9E3779B97F4A7C15) >> 33) & mask
        while slots[slot] >= 0 and state.parts[slots[slot]].partition != part.partition:
            slot = (slot + 1) & mask
        if slots[slot] >= 0:
            state.parts[slots[slot]].is_superseded = True
        slots[slot] = i
    free(slots)
    return True


cdef void resolve(Handler *handler, FetchState *state) noexcept nogil:
    """Finds each partition and the errors that need no reading."""
    cdef const char *name = NULL
    cdef Topic *topic = NULL
    cdef FetchPart *part
    cdef int32_t i, epoch, name_bytes = 0, unrecorded = 0
    for i in range(state.part_count):
        part = &state.parts[i]
        part.is_included = True
        if part.id != NULL:
            if part.id != name:
                topic = topic_by_id(handler.topics, part.id)
                name = part.id
        elif part.name != name or part.name_bytes != name_bytes or i == 0:
            topic = topic_by_name(handler.topics, part.name, part.name_bytes)
            name = part.name
            name_bytes = part.name_bytes
        unrecorded += topic != NULL and topic.is_unrecorded
        if topic == NULL:
            part.is_unread = True
            part.error = UNKNOWN_TOPIC_ID if part.id != NULL else UNKNOWN_TOPIC_OR_PARTITION
        elif part.index < 0 or part.index >= topic.partition_count or topic.partitions[part.index] == NULL:
            part.is_unread = True
            part.error = UNKNOWN_TOPIC_OR_PARTITION
        elif state.replica_id >= 0:
            part.error = NOT_LEADER_OR_FOLLOWER         # nobody replicates from here
        elif part.max_bytes < 0 or state.max_bytes < 0:
            part.error = UNKNOWN_SERVER_ERROR
        else:
            part.partition = partition_retain(topic.partitions[part.index])
            epoch = partition_leader_epoch(part.partition)
            if part.leader_epoch > epoch:
                part.error = UNKNOWN_LEADER_EPOCH
            elif 0 <= part.leader_epoch < epoch:
                part.error = FENCED_LEADER_EPOCH
            elif part.last_fetched_epoch > epoch:
                part.error = OFFSET_OUT_OF_RANGE
    if unrecorded > 0 and unrecorded == state.part_count:
        state.request.record_flags |= RECORD_LEAVE_OUT


cdef int64_t read_all(FetchState *state, bint *any_error, int32_t *readable) noexcept nogil:
    """Reads every part within the limits; returns the bytes found. Release with drop_reads.

    ``readable``: parts that could be waited for.
    """
    cdef int64_t limit = state.max_bytes, total = 0, room
    cdef bint min_one = True
    cdef FetchPart *part
    cdef int32_t i
    any_error[0] = False
    readable[0] = 0
    if limit > state.lane.fetch_max_bytes:
        limit = state.lane.fetch_max_bytes
    for i in range(state.part_count):
        part = &state.parts[i]
        memset(&part.read, 0, sizeof(part.read))
        if part.is_superseded:
            continue
        readable[0] += not part.is_unread
        if part.error == NONE and partition_is_closed(part.partition):
            part.read.error = UNKNOWN_TOPIC_ID if part.id != NULL else UNKNOWN_TOPIC_OR_PARTITION
        elif part.error != NONE:
            part.read.error = part.error
        else:
            room = limit - total
            if room < 0:
                room = 0
            partition_read(part.partition, part.offset, part.max_bytes if part.max_bytes < room else room, min_one,
                           state.isolation, &part.read)
        if part.read.error != NONE:
            # What was never looked for does not end the wait for the others.
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


# ---------------------------------------------------------------- answer

cdef bint same_topic(FetchPart *a, FetchPart *b) noexcept nogil:
    """Parts of one TopicData element share the pointer; those of a session are told apart by their bytes."""
    cdef int32_t i
    if a.id != NULL:
        if a.id == b.id:
            return True
        for i in range(16):
            if a.id[i] != b.id[i]:
                return False
        return True
    if a.name == b.name and a.name_bytes == b.name_bytes:
        return True
    if a.name_bytes != b.name_bytes:
        return False
    for i in range(a.name_bytes):
        if a.name[i] != b.name[i]:
            return False
    return True


cdef int32_t group_end(FetchState *state, int32_t i, int32_t *included) noexcept nogil:
    """End of the run of parts of the same topic that begins at i, and how many of them stand in the answer."""
    cdef int32_t first = i
    included[0] = 0
    while i < state.part_count and same_topic(&state.parts[first], &state.parts[i]):
        included[0] += state.parts[i].is_included
        i += 1
    return i


cdef void write_aborted(Writer *w, FetchState *state, FetchPart *part, bint flexible) noexcept nogil:
    cdef int32_t i
    if part.is_unread:          # Kafka: an empty list where it did not look into the log, null where it did
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
    """The records' length, and they themselves: copied when few, else as a file region. False: they are not there."""
    cdef char *to
    write_length(w, part.read.size_bytes, flexible, True)
    if part.read.size_bytes == 0:
        return True
    if part.read.size_bytes <= COPY_BYTES:
        to = write_reserve(w, part.read.size_bytes)
        if to == NULL:
            return False
        return pread_full(part.read.file.fd, to, part.read.size_bytes, part.read.position) == part.read.size_bytes
    splits[split_count[0]].at = w.size_bytes
    splits[split_count[0]].file = part.read.file
    splits[split_count[0]].position = part.read.position
    splits[split_count[0]].size_bytes = part.read.size_bytes
    part.read.file = NULL       # its count goes to the answer
    split_count[0] += 1
    return True


cdef bint write_part(Writer *w, FetchState *state, FetchPart *part, Split *splits, int32_t *split_count) noexcept nogil:
    cdef int16_t version = state.version
    cdef bint flexible = version >= 12, ok
    request_mark_error(state.request, part.read.error, 1)
    write_i32(w, part.index)
    write_i16(w, part.read.error)
    write_i64(w, part.read.high_watermark)
    write_i64(w, part.read.last_stable_offset)
    if version >= 5:
        write_i64(w, part.read.log_start_offset)
    write_aborted(w, state, part, flexible)
    if version >= 11:
        write_i32(w, -1)        # preferred read replica
    ok = write_records(w, part, flexible, splits, split_count)
    if version >= 16 and part.read.error in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH):
        write_uvarint(w, 1)
        write_uvarint(w, 1)     # CurrentLeader: id, epoch, no tags
        write_uvarint(w, 9)
        write_i32(w, state.lane.node_id)
        write_i32(w, 0 if part.partition == NULL else partition_leader_epoch(part.partition))
        write_uvarint(w, 0)
    elif flexible:
        write_uvarint(w, 0)
    return ok


cdef bint write_head(Writer *w, FetchState *state, int64_t topic_count) noexcept nogil:
    cdef bint flexible = state.version >= 12
    request_mark_error(state.request, state.error, 1)
    state.request.metric_slot = SLOT_FETCH_CONSUMER if state.replica_id < 0 else SLOT_FETCH_FOLLOWER
    write_i32(w, state.request.correlation_id)
    if flexible:
        write_uvarint(w, 0)
    write_i32(w, state.throttle_ms)
    if state.version >= 7:
        write_i16(w, state.error)
        write_i32(w, state.answer_session_id)
    write_length(w, topic_count, flexible, True)
    return not w.failed


cdef void hand_over(Request *request, Writer *w, Split *splits, int32_t split_count, bint ok) noexcept nogil:
    """Turns memory and regions into the request's segments, in order."""
    cdef int64_t at = 0
    cdef int32_t i
    request.action = ACTION_SEND
    ok = ok and not w.failed
    for i in range(split_count):
        if ok and splits[i].at > at:
            # The last stretch of memory owns the block; when the answer ends in a region, that is the one before it.
            ok = request_add_memory(request, w.data + at, splits[i].at - at,
                                    w.data if i == split_count - 1 and splits[i].at == w.size_bytes else NULL)
            at = splits[i].at
        if ok:
            ok = request_add_file(request, splits[i].file, splits[i].position, splits[i].size_bytes)
            if ok:
                continue        # the answer holds the count now
        open_file_release(splits[i].file)
    if ok and w.size_bytes > at:
        ok = request_add_memory(request, w.data + at, w.size_bytes - at, w.data)
    if not ok:
        request.action = ACTION_CLOSE


cdef void build_answer(FetchState *state) noexcept nogil:
    """Writes the answer into the request; the parts have been read (or there are none)."""
    cdef bint flexible = state.version >= 12, ok = True
    cdef int64_t topic_count = 0
    cdef int32_t i = 0, k, end, included, split_count = 0
    cdef Split *splits = <Split *>malloc(<size_t>(state.part_count or 1) * sizeof(Split))
    cdef Writer w
    for i in range(state.part_count):
        if state.parts[i].is_superseded:
            state.parts[i].is_included = False
    i = 0
    while i < state.part_count:
        i = group_end(state, i, &included)
        topic_count += included > 0
    writer_init(&w, NULL, 0)
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
                    ok = write_part(&w, state, &state.parts[k], splits, &split_count)
            if flexible:
                write_uvarint(&w, 0)
        i = end
    if flexible:
        write_uvarint(&w, 0)
    hand_over(state.request, &w, splits, split_count, ok)
    if state.request.action == ACTION_CLOSE and state.request.segment_count == 0:
        writer_free(&w)
    free(splits)
    drop_reads(state)


cdef inline bint has_records(FetchState *state) noexcept nogil:
    cdef int32_t i
    for i in range(state.part_count):
        if state.parts[i].read.size_bytes > 0:
            return True
    return False


cdef void answer_now(FetchState *state, ClientCache *clients) noexcept nogil:
    """After read_all, or for a refused session: decides what an incremental answer tells, encodes, and is judged."""
    cdef Lane *lane = state.lane
    cdef Request *request = state.request
    cdef int64_t now_ns
    if not has_records(state):
        request.record_flags |= RECORD_BROUGHT_NOTHING
    if not quotas_are_set(lane.quotas) or state.replica_id >= 0:
        session_end(<SessionCache *>lane.sessions, state, clock_now_ms(lane.clock))
        build_answer(state)
        if state.replica_id >= 0:
            gate_exempt(lane.quotas, request, clock_now_ns(lane.clock))
        return
    session_select(state)
    build_answer(state)         # its size is what is charged
    if request.action == ACTION_CLOSE:
        return
    now_ns = clock_now_ns(lane.clock)
    # Kafka counts the header as four bytes, also where it has a tagged section
    state.throttle_ms = gate_fetch(
        lane.quotas, clients, request, request.response_bytes - (state.version >= 12), now_ns)
    if state.throttle_ms > 0:
        answer_throttled(state)
        return
    if state.session != NULL:
        session_end(<SessionCache *>lane.sessions, state, clock_now_ms(lane.clock))
        if not state.is_incremental:
            store_int32(request.segments[0].data + (11 if state.version >= 12 else 10), state.answer_session_id)


cdef inline void store_int32(char *at, int32_t value) noexcept nogil:
    store_throttle(at, value)


cdef void answer_throttled(FetchState *state) noexcept nogil:
    """Nothing but the delay: no data, no error; a session goes on, and none is opened."""
    cdef int32_t i
    request_clear_answer(state.request)
    state.error = NONE
    if not state.is_incremental:
        session_drop(state)
        state.answer_session_id = 0
    for i in range(state.part_count):
        state.parts[i].is_included = False
    build_answer(state)


cdef void limit_sizes(FetchState *state, ClientCache *clients) noexcept nogil:
    """No more at once than the broker allows, or than fits into the window of the client's quota."""
    cdef Lane *lane = state.lane
    cdef int64_t limit = lane.fetch_max_bytes
    if quotas_are_set(lane.quotas) and state.replica_id < 0:
        limit = min(limit, fetch_window_bytes(lane.quotas, clients, state.request, clock_now_ns(lane.clock)))
    if state.max_bytes > limit:
        state.max_bytes = <int32_t>limit
    if state.min_bytes > state.max_bytes:
        state.min_bytes = state.max_bytes


# ---------------------------------------------------------------- the handler

cdef void let_go(FetchState *state) noexcept nogil:
    """Frees all but the struct; under the operation's lock once others know it. What is left watches nothing."""
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


cdef void free_state(FetchState *state) noexcept nogil:
    let_go(state)
    free(state)


cdef void let_go_locked(FetchState *state) noexcept nogil:
    mutex_lock(&state.op.own_lock)
    let_go(state)
    mutex_unlock(&state.op.own_lock)


cdef void refuse_isolation(FetchState *state) noexcept nogil:
    """An unknown isolation level: -1 everywhere, in the shapes Kafka 4.3.1 gives it."""
    cdef int32_t i
    state.error = UNKNOWN_SERVER_ERROR
    state.answer_session_id = 0
    for i in range(state.part_count):
        memset(&state.parts[i].read, 0, sizeof(state.parts[i].read))
        state.parts[i].is_included = state.version <= 12
        state.parts[i].is_unread = True
        state.parts[i].read.error = UNKNOWN_SERVER_ERROR
        state.parts[i].read.high_watermark = -1
        state.parts[i].read.last_stable_offset = -1
        state.parts[i].read.log_start_offset = -1


cdef Outcome handle_fetch(Handler *handler, Request *request) noexcept nogil:
    cdef FetchState *state = <FetchState *>calloc(1, sizeof(FetchState))
    cdef bint any_error = False
    cdef int64_t found
    cdef int32_t readable = 0
    if state == NULL:
        request.action = ACTION_CLOSE
        return OUTCOME_ANSWERED
    state.request = request
    state.lane = handler.lane
    state.version = request.api_version
    if not parse(state):
        request.action = ACTION_CLOSE
    elif state.isolation != 0 and state.isolation != 1:
        refuse_isolation(state)
        state.throttle_ms = gate_request(
            handler.lane.quotas, handler.clients, request, clock_now_ns(handler.lane.clock))
        build_answer(state)
    elif not session_begin(<SessionCache *>handler.lane.sessions, state, clock_now_ms(handler.lane.clock)):
        request.action = ACTION_CLOSE
    elif state.error != NONE:
        state.part_count = 0
        answer_now(state, handler.clients)
    else:
        limit_sizes(state, handler.clients)
        resolve(handler, state)
        if not supersede(state):
            request.action = ACTION_CLOSE
        else:
            found = read_all(state, &any_error, &readable)
            if not (state.max_wait_ms <= 0 or readable == 0 or found >= state.min_bytes or any_error):
                drop_reads(state)
                request.local_done_ns = clock_now_ns(handler.lane.clock)
                if park(handler, state):
                    return OUTCOME_PARKED
                read_all(state, &any_error, &readable)
            answer_now(state, handler.clients)
    if request.local_done_ns == 0:      # else it was judged
        request.local_done_ns = clock_now_ns(handler.lane.clock)
    free_state(state)
    return OUTCOME_ANSWERED


cdef bint park(Handler *handler, FetchState *state) noexcept nogil:
    """Watches every partition. True: the request belongs to the operation. False: no memory to wait, answer now."""
    cdef Lane *lane = handler.lane
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
    operation_init(&state.op, &DELAYED_FETCH, state.max_wait_ms, NULL)
    mutex_lock(&lane.parked_lock)
    state.parked_next = <FetchState *>lane.parked
    if state.parked_next != NULL:
        state.parked_next.parked_prev = state
    lane.parked = state
    mutex_unlock(&lane.parked_lock)
    purgatory_try_complete_else_watch(lane.fetch_purgatory, &state.op, keys, count)
    free(keys)
    operation_release(&state.op)
    return True


cdef bint is_satisfied(FetchState *state) noexcept nogil:
    cdef int64_t available = 0
    cdef FetchPart *part
    cdef ReadProbe probe
    cdef int32_t i
    for i in range(state.part_count):
        part = &state.parts[i]
        if part.is_superseded or part.is_unread:
            continue
        if part.partition == NULL or partition_is_closed(part.partition):
            return True
        partition_probe(part.partition, part.offset, part.max_bytes, state.isolation, &probe)
        if probe.error != NONE or probe.crosses_segment:
            return True
        available += probe.available_bytes
        if available >= state.min_bytes:
            return True
    return False


cdef bint delayed_fetch_try_complete(Operation *op) noexcept nogil:
    cdef FetchState *state = <FetchState *>op
    if not is_satisfied(state) or not operation_force_complete(op):
        return False
    let_go(state)               # the lock is held
    return True


cdef void delayed_fetch_on_complete(Operation *op) noexcept nogil:
    """Reads again with the original limits and answers; once, on the winner's thread."""
    cdef FetchState *state = <FetchState *>op
    cdef Request *request = state.request
    cdef bint any_error = False
    cdef int32_t readable = 0
    unlink(state)
    read_all(state, &any_error, &readable)
    answer_now(state, NULL)
    state.request = NULL
    request.response_ready_ns = clock_now_ns(state.lane.clock)
    request.next = NULL
    request.responder.respond(request.responder, request)


cdef void unlink(FetchState *state) noexcept nogil:
    mutex_lock(&state.lane.parked_lock)
    if state.parked_prev != NULL:
        state.parked_prev.parked_next = state.parked_next
    elif state.lane.parked == state:
        state.lane.parked = state.parked_next
    if state.parked_next != NULL:
        state.parked_next.parked_prev = state.parked_prev
    state.parked_next = state.parked_prev = NULL
    mutex_unlock(&state.lane.parked_lock)


cdef void complete_parked(Lane *lane) noexcept nogil:
    cdef FetchState *state
    while True:
        mutex_lock(&lane.parked_lock)
        state = <FetchState *>lane.parked
        if state != NULL:
            atomic_add(&state.op.refs, 1)
        mutex_unlock(&lane.parked_lock)
        if state == NULL:
            return
        if operation_force_complete(&state.op):
            let_go_locked(state)
        else:
            unlink(state)       # another thread is answering it at this moment
        operation_release(&state.op)


cdef void complete_gone(Lane *lane) noexcept nogil:
    """Ends the waits of clients that are gone: a wait may be 24 days long, and hold megabytes."""
    cdef FetchState *found[GONE_AT_ONCE]
    cdef FetchState *state
    cdef Responder *responder
    cdef int32_t i, count = GONE_AT_ONCE
    while count == GONE_AT_ONCE:
        count = 0
        mutex_lock(&lane.parked_lock)
        state = <FetchState *>lane.parked
        while state != NULL and count < GONE_AT_ONCE:
            responder = state.request.responder
            if responder.is_gone != NULL and responder.is_gone(state.request):
                atomic_add(&state.op.refs, 1)
                found[count] = state
                count += 1
            state = state.parked_next
        mutex_unlock(&lane.parked_lock)
        for i in range(count):
            if operation_force_complete(&found[i].op):
                let_go_locked(found[i])
            operation_release(&found[i].op)


cdef void delayed_fetch_on_expiration(Operation *op) noexcept nogil:
    let_go_locked(<FetchState *>op)


cdef void delayed_fetch_destroy(Operation *op) noexcept nogil:
    free_state(<FetchState *>op)


DELAYED_FETCH.try_complete = delayed_fetch_try_complete
DELAYED_FETCH.on_complete = delayed_fetch_on_complete
DELAYED_FETCH.on_expiration = delayed_fetch_on_expiration
DELAYED_FETCH.destroy = delayed_fetch_destroy
