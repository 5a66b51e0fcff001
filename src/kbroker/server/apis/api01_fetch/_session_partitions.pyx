"""The partitions of a fetch session; see the .pxd. Source: ``FetchSession``, ``CachedPartition``."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.containers.linked_list cimport ChainNode, chain_append, chain_remove
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_load, atomic_store, mutex_destroy, mutex_init
from kbroker._core.codec.wire cimport Reader, read_bytes, read_count, read_i32, read_length, reader_init, skip_tags
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchPart, FetchState


cdef inline SessionPart *part_of(ChainNode *node) noexcept nogil:
    """The part that has a node; NULL for NULL."""
    return <SessionPart *>(<char *>node - sizeof(HashNode)) if node != NULL else NULL


cdef FetchSession *fetch_session_new(AtomicI64 *bytes, uint64_t hash_seed, bint by_id) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>calloc(1, sizeof(FetchSession))
    if session == NULL:
        return NULL
    mutex_init(&session.lock)
    session.bytes = bytes
    session.hash_seed = hash_seed
    session.by_id = by_id
    session.epoch = 1
    atomic_store(&session.refs, 1)
    return session


cdef void fetch_session_release(FetchSession *session) noexcept nogil:
    cdef SessionPart *part
    if session == NULL or atomic_add_fetch(&session.refs, -1) > 0:
        return
    while session.in_order.first != NULL:
        part = part_of(session.in_order.first)
        chain_remove(&session.in_order, &part.in_order)
        atomic_add_fetch(session.bytes, -part_bytes(part.name_bytes))
        free(part)
    hash_clear(&session.parts)
    mutex_destroy(&session.lock)
    free(session)


cdef uint64_t part_hash(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                        int32_t index) noexcept nogil:
    cdef uint64_t seed = session.hash_seed
    cdef uint64_t h = hash_seeded(topic_id, 16, seed) if topic_id != NULL else hash_seeded(name, name_bytes, seed)
    return mix_hash(h ^ <uint64_t><int64_t>index)


cdef int64_t part_bytes(int64_t name_bytes) noexcept nogil:
    """What a partition of a session is charged: itself and its share of the buckets."""
    return <int64_t>sizeof(SessionPart) + name_bytes + 2 * <int64_t>sizeof(SessionPart *)


cdef SessionPart *find_part(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                            int32_t index) noexcept nogil:
    cdef HashNode *node = hash_first(&session.parts, part_hash(session, name, name_bytes, topic_id, index))
    cdef SessionPart *part
    while node != NULL:
        part = <SessionPart *>node
        if part.index == index:
            if topic_id != NULL:
                if memcmp(part.id, topic_id, 16) == 0:
                    return part
            elif part.name_bytes == name_bytes and memcmp(part.name, name, <size_t>name_bytes) == 0:
                return part
        node = hash_next(node)
    return NULL


cdef void serve_last(FetchSession *session, SessionPart *part) noexcept nogil:
    chain_remove(&session.in_order, &part.in_order)
    chain_append(&session.in_order, &part.in_order)


cdef bint put_part(FetchSession *session, FetchPart *asked) noexcept nogil:
    cdef SessionPart *part = find_part(session, asked.name, asked.name_bytes, asked.id, asked.index)
    if part == NULL:
        if atomic_load(session.bytes) > MOST_SESSION_BYTES or not hash_reserve(&session.parts):
            return False
        part = <SessionPart *>calloc(1, sizeof(SessionPart) + <size_t>asked.name_bytes)
        if part == NULL:
            return False
        part.name = <char *>part + sizeof(SessionPart)
        part.name_bytes = asked.name_bytes
        if asked.name_bytes > 0:
            memcpy(part.name, asked.name, <size_t>asked.name_bytes)
        part.by_id = asked.id != NULL
        if part.by_id:
            memcpy(part.id, asked.id, 16)
        part.index = asked.index
        hash_add(&session.parts, &part.node, part_hash(
            session, asked.name, asked.name_bytes, asked.id, asked.index))
        part.reported_high_watermark = part.reported_log_start = -1
        chain_append(&session.in_order, &part.in_order)
        session.name_total += part.name_bytes + 16
        atomic_add_fetch(session.bytes, part_bytes(part.name_bytes))
    part.leader_epoch = asked.leader_epoch
    part.last_fetched_epoch = asked.last_fetched_epoch
    part.max_bytes = asked.max_bytes
    part.offset = asked.offset
    return True


cdef void remove_part(FetchSession *session, SessionPart *part) noexcept nogil:
    hash_remove(&session.parts, &part.node)
    chain_remove(&session.in_order, &part.in_order)
    session.name_total -= part.name_bytes + 16
    atomic_add_fetch(session.bytes, -part_bytes(part.name_bytes))
    free(part)


cdef void forget_parts(FetchSession *session, FetchState *state) noexcept nogil:
    cdef Reader r
    cdef bint flexible = state.version >= 12
    cdef int64_t topics, indexes, name_bytes, _i, _k
    cdef const char *name
    cdef const char *topic_id
    cdef SessionPart *part
    reader_init(&r, state.forgotten, state.forgotten_bytes)
    topics = read_count(&r, flexible, 1)
    for _i in range(topics):
        name = topic_id = NULL
        name_bytes = 0
        if state.version >= 13:
            topic_id = read_bytes(&r, 16)
        else:
            name_bytes = read_length(&r, flexible, False)
            name = read_bytes(&r, name_bytes)
        indexes = read_count(&r, flexible, 4)
        for _k in range(indexes):
            part = find_part(session, name, <int32_t>name_bytes, topic_id, read_i32(&r))
            if part != NULL:
                remove_part(session, part)
        if flexible:
            skip_tags(&r)
        if r.bad:
            return


cdef bint fill_state(FetchSession *session, FetchState *state) noexcept nogil:
    cdef FetchPart *parts
    cdef char *names
    cdef char *at
    cdef SessionPart *part = part_of(session.in_order.first)
    cdef int64_t charge = <int64_t>session.parts.count * <int64_t>sizeof(FetchPart) + session.name_total
    cdef int32_t i = 0
    if atomic_load(session.bytes) + charge > 2 * <int64_t>MOST_SESSION_BYTES:
        return False
    parts = <FetchPart *>calloc(<size_t>(session.parts.count or 1), sizeof(FetchPart))
    names = <char *>malloc(<size_t>(session.name_total or 1))
    at = names
    if parts == NULL or names == NULL:
        free(parts)
        free(names)
        return False
    while part != NULL:
        parts[i].name_bytes = part.name_bytes
        parts[i].name = at
        memcpy(at, part.name, <size_t>part.name_bytes)
        at += part.name_bytes
        if part.by_id:
            memcpy(at, part.id, 16)
            parts[i].id = at
            at += 16
        parts[i].was_known = part.was_known
        parts[i].index = part.index
        parts[i].leader_epoch = part.leader_epoch
        parts[i].last_fetched_epoch = part.last_fetched_epoch
        parts[i].max_bytes = part.max_bytes
        parts[i].offset = part.offset
        part = part_of(part.in_order.next)
        i += 1
    free(state.parts)
    free(state.names)
    state.parts = parts
    state.part_count = i
    state.names = names
    state.charge = charge
    atomic_add_fetch(session.bytes, charge)
    return True
