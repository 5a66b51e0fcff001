"""Finding, reading and letting go of what a Fetch asks for. Source: ``ReplicaManager.readFromLog``."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from kbroker._core.containers.last_index_map cimport LatestIndex, latest_free, latest_init, latest_put
from kbroker._core.requests.request cimport RECORD_SKIP, open_file_release
from kbroker.common._errors cimport (
    FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR, NONE, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker.log._partition cimport (
    ReadProbe, partition_is_closed, partition_leader_epoch, partition_release, partition_retain,
)
from kbroker.log._read cimport partition_probe, partition_read
from kbroker.server.apis.api01_fetch._fetch_session cimport session_drop
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.server.native._topics cimport Topic, topic_by_id, topic_by_name


cdef bint supersede(FetchState *state) noexcept nogil:
    """A partition named twice counts once, with what was said last (Kafka builds a map). False: memory is out."""
    cdef LatestIndex latest
    cdef int32_t i, before
    if state.part_count < 2:
        return True
    if not latest_init(&latest, state.part_count, 0):
        return False
    for i in range(state.part_count):
        if state.parts[i].partition != NULL:
            before = latest_put(&latest, <uint64_t>state.parts[i].partition, i)
            if before >= 0:
                state.parts[before].is_superseded = True
    latest_free(&latest)
    return True


cdef bint resolve_partitions(Handler *handler, FetchState *state) noexcept nogil:
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
        part.was_known = part.was_known or topic != NULL
        if topic == NULL:
            part.is_unread = True
            # Kafka knows the name of an id that it has found once, and then answers for the name
            part.error = (
                UNKNOWN_TOPIC_ID if part.id != NULL and not part.was_known else UNKNOWN_TOPIC_OR_PARTITION)
        elif part.index < 0 or part.index >= topic.partition_count:
            part.is_unread = True
            part.error = UNKNOWN_TOPIC_OR_PARTITION
        elif topic.partitions[part.index] == NULL:      # its log could not be opened
            part.error = KAFKA_STORAGE_ERROR
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
        state.request.record_flags |= RECORD_SKIP
    return supersede(state)


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
        if part.partition == NULL or partition_is_closed(part.partition):
            return True
        partition_probe(part.partition, part.offset, part.max_bytes, state.isolation, &probe)
        if probe.error != NONE or probe.crosses_segment:
            return True
        available += probe.available_bytes
        if available >= state.min_bytes:
            return True
    return False


cdef void release_partitions(FetchState *state) noexcept nogil:
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
