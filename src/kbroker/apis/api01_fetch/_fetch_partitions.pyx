"""The partitions of a Fetch, found by name or by id: their leaders, and the errors that need no read.

Source: ``KafkaApis.handleFetchRequest``, ``ReplicaManager.readFromLog``.
"""
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kbroker._core.containers.last_index_map cimport LatestIndex, latest_free, latest_init, latest_put
from kbroker._core.sync cimport atomic_load, mutex_lock, mutex_unlock
from kbroker.common._errors cimport (
    FENCED_LEADER_EPOCH, INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED, UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker.log._partition cimport Partition, partition_end_of_epoch, partition_leader_epoch, partition_retain
from kbroker.network._kafka_request cimport RECORD_SKIP, kafka_request
from kbroker.apis.api01_fetch._fetch_session cimport session_note_names
from kbroker.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.security.authorizer._acl_table cimport (
    ACL_CLUSTER, ACL_CLUSTER_ACTION, ACL_READ, ACL_TOPIC, AclTable, acl_allows,
)
from kbroker.requests._native_types cimport Handler, NativeApisCore
from kbroker.replica._topics cimport (
    Foreign, Topic, TopicTable, topic_by_id, topic_by_name, topic_foreign, topic_table_release, topic_table_retain,
)


cdef enum:
    FIRST_WITH_FOLLOWERS = 11   # version of Fetch whose clients support followers


cdef bint supersede(FetchState *state) noexcept nogil:
    """Mark duplicate partitions except the last (Kafka builds a map). False: out of memory."""
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


cdef bint may_fetch(Handler *handler, FetchState *state, int32_t first) noexcept nogil:
    """Return whether the client may read the topic of the part ``first``, or, as a follower, all topics."""
    cdef AclTable *acls = handler.native_apis.acls
    cdef const FetchPart *part = &state.parts[first]
    cdef int32_t end = first + 1
    if acls == NULL or (part.id != NULL and part.known_name == NULL):       # an unknown id has no name to check
        return True
    if state.replica_id >= 0:
        return acl_allows(acls, handler.decisions, state.request, ACL_CLUSTER_ACTION, ACL_CLUSTER, b"kafka-cluster", 13,
                          1)
    while end < state.part_count and same_topic(&state.parts[first], &state.parts[end]):
        end += 1
    if part.id != NULL:
        return acl_allows(acls, handler.decisions, state.request, ACL_READ, ACL_TOPIC, part.known_name,
                          part.known_name_bytes, end - first)
    return acl_allows(acls, handler.decisions, state.request, ACL_READ, ACL_TOPIC, part.name, part.name_bytes,
                      end - first)


cdef bint is_on_rack(const NativeApisCore *native_apis, int32_t node_id, const FetchState *state) noexcept nogil:
    """Return whether a node is on the rack of the client; the caller holds ``bodies_lock``."""
    cdef const char *at = native_apis.racks.data
    cdef const char *end = at + native_apis.racks.size_bytes
    cdef int32_t number, length
    while at < end:
        memcpy(&number, at, 4)
        memcpy(&length, at + 4, 4)
        if number == node_id:
            return length == state.rack_bytes and memcmp(at + 8, state.rack, <size_t>length) == 0
        at += 8 + length
    return False


cdef void select_replica(const FetchState *state, FetchPart *part, const Foreign *known) noexcept nogil:
    """Direct a consumer to a follower on its rack unless the leader is on it. See ``RackAwareReplicaSelector``."""
    cdef NativeApisCore *native_apis = state.native_apis
    cdef int32_t i
    part.has_preferred = False
    if state.replica_id >= 0:
        return
    mutex_lock(&native_apis.bodies_lock)
    if not is_on_rack(native_apis, native_apis.node_id, state):
        for i in range(known.isr_count):
            if known.isr[i] != native_apis.node_id and is_on_rack(native_apis, known.isr[i], state):
                part.has_preferred = True
                part.preferred = known.isr[i]
                break
    mutex_unlock(&native_apis.bodies_lock)


cdef Partition *find_partition(const FetchState *state, FetchPart *part, const Topic *topic) noexcept nogil:
    """Return the partition of a part, and note its leader; NULL: this node does not serve it, and the error is noted.

    A follower in the ISR serves consumers whose version supports it (KIP-392).
    """
    cdef Partition *found = topic.partitions[part.index]
    cdef const Foreign *foreign = topic_foreign(topic, part.index, state.native_apis.node_id)
    if foreign == NULL:
        part.current_leader = state.native_apis.node_id
        part.current_epoch = 0 if found == NULL else partition_leader_epoch(found)
        if found == NULL:               # its log could not be opened
            part.error = KAFKA_STORAGE_ERROR
        elif state.native_apis.selects_by_rack and state.rack != NULL and topic.foreign != NULL:
            select_replica(state, part, &topic.foreign[part.index])
        return found
    part.current_leader, part.current_epoch = foreign.leader, foreign.leader_epoch
    if foreign.partition == NULL or state.version < FIRST_WITH_FOLLOWERS:
        part.error = NOT_LEADER_OR_FOLLOWER
        return NULL
    return foreign.partition


cdef bint resolve_partitions(Handler *handler, FetchState *state) noexcept nogil:
    cdef const char *name = NULL
    cdef Topic *topic = NULL
    cdef FetchPart *part
    cdef const char *known_name = NULL
    cdef int32_t i, epoch, name_bytes = 0, known_name_bytes = 0, unrecorded = 0
    cdef bint is_allowed = True, is_current = True, has_new_name = False
    if handler.native_apis.acls != NULL:    # read first: the decisions have this generation or a later one
        state.acl_generation = atomic_load(&handler.native_apis.acls.generation)
    for i in range(state.part_count):
        part = &state.parts[i]
        part.is_included = True
        if part.id != NULL:
            if part.id != name:
                topic = topic_by_id(handler.topics, part.id)
                name = part.id
                is_current = topic != NULL
                if part.known_name == NULL and is_current:
                    part.known_name, part.known_name_bytes = topic.name, topic.name_bytes
                    has_new_name = True     # the next requests of a session have it
                elif not is_current and part.known_name != NULL:
                    topic = topic_by_name(handler.topics, part.known_name, part.known_name_bytes)
                known_name, known_name_bytes = part.known_name, part.known_name_bytes
                is_allowed = may_fetch(handler, state, i)
            part.known_name, part.known_name_bytes = known_name, known_name_bytes
        elif part.name != name or part.name_bytes != name_bytes or i == 0:
            topic = topic_by_name(handler.topics, part.name, part.name_bytes)
            name = part.name
            name_bytes = part.name_bytes
            is_allowed = may_fetch(handler, state, i)
        unrecorded += topic != NULL and topic.is_unrecorded
        if not is_allowed:              # checked first, to reveal nothing about the topic
            part.is_unread = True
            part.error = TOPIC_AUTHORIZATION_FAILED
        elif topic == NULL:
            part.is_unread = True
            # Kafka keeps the name of an id that it has found once, and then returns the error for a name.
            part.error = (
                UNKNOWN_TOPIC_ID if part.id != NULL and part.known_name == NULL else UNKNOWN_TOPIC_OR_PARTITION)
        elif part.index < 0 or part.index >= topic.partition_count:
            part.is_unread = True
            part.error = UNKNOWN_TOPIC_OR_PARTITION
        elif not is_current:            # the topic was deleted and created again
            part.error = INCONSISTENT_TOPIC_ID
        elif find_partition(state, part, topic) == NULL:
            pass
        elif state.replica_id >= 0:                     # no broker replicates from this one
            epoch = partition_leader_epoch(find_partition(state, part, topic))
            if 0 <= part.leader_epoch < epoch:
                part.error = FENCED_LEADER_EPOCH
            else:
                part.error = UNKNOWN_LEADER_EPOCH if part.leader_epoch >= 0 else NOT_LEADER_OR_FOLLOWER
        elif part.max_bytes < 0 or state.max_bytes < 0:
            part.error = UNKNOWN_SERVER_ERROR
        else:
            part.partition = partition_retain(find_partition(state, part, topic))
            epoch = part.known_epoch = partition_leader_epoch(part.partition)
            if part.leader_epoch > epoch:
                part.error = UNKNOWN_LEADER_EPOCH
            elif 0 <= part.leader_epoch < epoch:
                part.error = FENCED_LEADER_EPOCH
            elif part.last_fetched_epoch >= 0:
                if not partition_end_of_epoch(part.partition, part.last_fetched_epoch, &part.diverging_epoch,
                                              &part.diverging_end):
                    part.error = OFFSET_OUT_OF_RANGE
                else:
                    part.is_diverging = (
                        part.diverging_epoch < part.last_fetched_epoch or part.diverging_end < part.offset)
    if unrecorded > 0 and unrecorded == state.part_count:
        kafka_request(state.request).record_flags |= RECORD_SKIP
    if has_new_name:
        session_note_names(state)
    return supersede(state)


cdef void ask_again(FetchState *state) noexcept nogil:
    cdef NativeApisCore *native_apis = state.native_apis
    cdef AclTable *acls = native_apis.acls
    cdef TopicTable *topics
    cdef const Topic *topic
    cdef FetchPart *part
    cdef const FetchPart *before = NULL
    cdef bint is_allowed = True
    cdef int32_t i
    if acls == NULL or state.replica_id >= 0 or atomic_load(&acls.generation) == state.acl_generation:
        return
    mutex_lock(&native_apis.topics_lock)
    topics = topic_table_retain(native_apis.topics)
    mutex_unlock(&native_apis.topics_lock)
    for i in range(state.part_count):
        part = &state.parts[i]
        if part.partition == NULL or part.is_superseded:
            continue
        if before == NULL or not same_topic(before, part):
            if part.id == NULL:
                is_allowed = acl_allows(acls, NULL, state.request, ACL_READ, ACL_TOPIC, part.name, part.name_bytes, 1)
            else:
                topic = topic_by_id(topics, part.id)        # NULL: deleted, so there is nothing to read
                is_allowed = topic == NULL or acl_allows(
                    acls, NULL, state.request, ACL_READ, ACL_TOPIC, topic.name, topic.name_bytes, 1)
        before = part
        if not is_allowed:
            part.is_unread = True
            part.error = TOPIC_AUTHORIZATION_FAILED
    topic_table_release(topics)


cdef bint same_topic(const FetchPart *a, const FetchPart *b) noexcept nogil:
    """Return whether two parts have the same topic: by pointer within a TopicData element, by bytes in a session."""
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
