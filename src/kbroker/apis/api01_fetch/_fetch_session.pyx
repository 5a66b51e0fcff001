"""Fetch sessions by id and their partitions. See _fetch_session.pxd for locks and contract.

Source: KIP-227, ``FetchSession``, ``CachedPartition``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, strlen

from kbroker._core.codec.wire cimport Reader, read_bytes, read_count, read_i32, read_length, reader_init, skip_tags
from kbroker._core.containers.hash_table cimport (
    HashNode, HashTable, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker._core.containers.linked_list cimport Chain, ChainNode, chain_append, chain_remove
from kbroker._core.requests.request cimport Session
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.common._errors cimport (
    FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
)
from kbroker.apis.api01_fetch._fetch_types cimport FetchPart, FetchState


cdef enum:
    # limit for all sessions and the copies of delayed fetches; beyond it clients get no session
    MAX_SESSION_BYTES = 134217728

cdef struct SessionPart:
    HashNode node               # first
    ChainNode in_order          # second: in order of service; a partition that returned data moves to the end
    char *name                  # after the struct
    int32_t name_bytes
    bint by_id
    char id[16]
    # Owned; name of the topic of ``id`` once it was found, NULL before: from then on Kafka responds for the name, with
    # error 3 or 103 and not 100.
    char *known_name
    int32_t known_name_bytes
    int32_t index
    int32_t leader_epoch
    int32_t last_fetched_epoch
    int32_t max_bytes
    int64_t offset
    int64_t reported_high_watermark
    int64_t reported_log_start

cdef struct FetchSession:
    HashNode node               # first field. SessionCache.lock guards it, id, and the four fields after by_id
    AtomicI64 refs
    AtomicI64 *bytes            # in its cache, which outlives it: bytes of sessions' partitions and their copies
    uint64_t hash_seed
    uint64_t owner              # owner_of the request that created it
    int32_t id
    bint by_id
    bint is_closed
    int64_t created_ms
    int64_t last_used_ms
    int64_t size                # partitions when it was last used
    Mutex lock                  # guards the rest
    int32_t epoch
    HashTable parts
    int64_t name_total          # bytes of all names and ids
    Chain in_order              # of parts


cdef inline SessionPart *part_of(ChainNode *node) noexcept nogil:
    """Return the part of a node; NULL for NULL."""
    return <SessionPart *>(<char *>node - sizeof(HashNode)) if node != NULL else NULL


cdef FetchSession *fetch_session_new(AtomicI64 *bytes, uint64_t hash_seed, uint64_t owner, bint by_id) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>calloc(1, sizeof(FetchSession))
    if session == NULL:
        return NULL
    mutex_init(&session.lock)
    session.bytes = bytes
    session.hash_seed = hash_seed
    session.owner = owner
    session.by_id = by_id
    session.epoch = 1
    atomic_store(&session.refs, 1)
    return session


cdef void free_part(FetchSession *session, SessionPart *part) noexcept nogil:
    """Free a part that is in no list."""
    atomic_add_fetch(session.bytes, -part_bytes(part.name_bytes) - part.known_name_bytes)
    free(part.known_name)
    free(part)


cdef void fetch_session_release(FetchSession *session) noexcept nogil:
    cdef SessionPart *part
    if session == NULL or atomic_add_fetch(&session.refs, -1) > 0:
        return
    while session.in_order.first != NULL:
        part = part_of(session.in_order.first)
        chain_remove(&session.in_order, &part.in_order)
        free_part(session, part)
    hash_clear(&session.parts)
    mutex_destroy(&session.lock)
    free(session)


cdef uint64_t part_hash(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                        int32_t index) noexcept nogil:
    cdef uint64_t seed = session.hash_seed
    cdef uint64_t h = hash_seeded(topic_id, 16, seed) if topic_id != NULL else hash_seeded(name, name_bytes, seed)
    return mix_hash(h ^ <uint64_t><int64_t>index)


cdef int64_t part_bytes(int64_t name_bytes) noexcept nogil:
    """Return the charge for a partition of a session: itself and its share of the buckets."""
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
        if atomic_load(session.bytes) > MAX_SESSION_BYTES or not hash_reserve(&session.parts):
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
    session.name_total -= part.name_bytes + part.known_name_bytes + 16
    free_part(session, part)


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
    if atomic_load(session.bytes) + charge > 2 * <int64_t>MAX_SESSION_BYTES:
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
        if part.known_name != NULL:
            memcpy(at, part.known_name, <size_t>part.known_name_bytes)
            parts[i].known_name, parts[i].known_name_bytes = at, part.known_name_bytes
            at += part.known_name_bytes
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


cdef enum:
    INITIAL_EPOCH = 0
    FINAL_EPOCH = -1
    EVICTION_MS = 120000        # min.incremental.fetch.session.eviction.ms


cdef struct SessionCache:
    Mutex lock
    HashTable sessions          # by id, each reference-counted
    AtomicI64 bytes             # of sessions' partitions and their copies
    int32_t max_sessions
    uint64_t random
    uint64_t hash_seed


cdef SessionCache *session_cache_new(int32_t max_sessions, uint64_t hash_seed) noexcept nogil:
    cdef SessionCache *cache = <SessionCache *>calloc(1, sizeof(SessionCache))
    if cache != NULL:
        mutex_init(&cache.lock)
        cache.max_sessions = max_sessions
        cache.random = hash_seed >> 1 | 1
        cache.hash_seed = hash_seed
    return cache


cdef void session_cache_free(SessionCache *cache) noexcept nogil:
    cdef HashNode *node
    cdef HashNode *following
    if cache == NULL:
        return
    node = hash_after(&cache.sessions, NULL)
    while node != NULL:
        following = hash_after(&cache.sessions, node)
        fetch_session_release(<FetchSession *>node)
        node = following
    hash_clear(&cache.sessions)
    mutex_destroy(&cache.lock)
    free(cache)


cdef int32_t session_cache_count(SessionCache *cache) noexcept nogil:
    cdef int32_t count
    mutex_lock(&cache.lock)
    count = <int32_t>cache.sessions.count
    mutex_unlock(&cache.lock)
    return count


# ---------------------------------------------------------------- the cache (under its lock)

cdef inline uint64_t hash_of(int32_t session_id) noexcept nogil:
    return mix_hash(<uint64_t>session_id)


cdef uint64_t owner_of(SessionCache *cache, const FetchState *state) noexcept nogil:
    """Return a hash of the request's principal under a secret seed; 0 without a session."""
    cdef const Session *session = state.request.session
    return 0 if session == NULL else hash_seeded(
        session.principal, <int64_t>strlen(session.principal), cache.hash_seed)


cdef FetchSession *find(SessionCache *cache, int32_t session_id) noexcept nogil:
    cdef HashNode *node = hash_first(&cache.sessions, hash_of(session_id))
    while node != NULL and (<FetchSession *>node).id != session_id:
        node = hash_next(node)
    return <FetchSession *>node


cdef FetchSession *find_own(SessionCache *cache, const FetchState *state) noexcept nogil:
    """Return the session of a request.

    Sessions of other principals are not found: a client could learn their topics, and close them.
    """
    cdef FetchSession *session = find(cache, state.session_id) if state.session_id != 0 else NULL
    return session if session != NULL and session.owner == owner_of(cache, state) else NULL


cdef void remove_session(SessionCache *cache, FetchSession *session) noexcept nogil:
    """Remove a session that is not closed, and release its count."""
    hash_remove(&cache.sessions, &session.node)
    session.is_closed = True
    fetch_session_release(session)


cdef FetchSession *least_valuable(SessionCache *cache, int64_t size, int64_t now_ms) noexcept nogil:
    """Return a session that one of ``size`` partitions may evict; NULL: none.

    It is the least recently used if that was idle for more than two minutes, else the smallest of those that were used
    two minutes after they began, if it is smaller. In Kafka, sessions of followers also evict all those of consumers;
    no broker replicates from this one. Source: ``FetchSessionCacheShard.tryEvict``.
    """
    cdef FetchSession *session
    cdef FetchSession *oldest = NULL
    cdef FetchSession *smallest = NULL
    cdef HashNode *node = hash_after(&cache.sessions, NULL)
    while node != NULL:
        session = <FetchSession *>node
        if oldest == NULL or session.last_used_ms < oldest.last_used_ms:
            oldest = session
        if session.last_used_ms - session.created_ms > EVICTION_MS and (
                smallest == NULL or session.size < smallest.size):
            smallest = session
        node = hash_after(&cache.sessions, node)
    if oldest != NULL and now_ms - oldest.last_used_ms > EVICTION_MS:
        return oldest
    return smallest if smallest != NULL and smallest.size < size else NULL


cdef bint make_space(SessionCache *cache, int64_t size, int64_t now_ms) noexcept nogil:
    """Make space for one more session, whose partitions are already charged; return False if there is none."""
    cdef FetchSession *evicted
    while cache.sessions.count >= cache.max_sessions or atomic_load(&cache.bytes) > MAX_SESSION_BYTES:
        evicted = least_valuable(cache, size if cache.sessions.count >= cache.max_sessions else 0, now_ms)
        if evicted == NULL:
            return False
        remove_session(cache, evicted)
    return True


cdef int32_t new_id(SessionCache *cache) noexcept nogil:
    cdef int32_t session_id = 0
    while session_id == 0 or find(cache, session_id) != NULL:
        cache.random ^= cache.random << 13
        cache.random ^= cache.random >> 7
        cache.random ^= cache.random << 17
        session_id = <int32_t>((cache.random >> 20) & 0x7FFFFFFF)
    return session_id


# ---------------------------------------------------------------- the two calls of the handler

cdef bint session_begin(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    cdef FetchSession *session
    cdef int64_t size
    cdef bint ok = True
    cdef int32_t i
    if state.session_epoch == INITIAL_EPOCH or state.session_epoch == FINAL_EPOCH:
        if state.session_id != 0:
            mutex_lock(&cache.lock)
            session = find_own(cache, state)
            if session != NULL:
                remove_session(cache, session)
            mutex_unlock(&cache.lock)
        if state.session_epoch == INITIAL_EPOCH:
            return make_session(cache, state)
        return True
    mutex_lock(&cache.lock)
    session = find_own(cache, state)
    if session != NULL:
        atomic_add_fetch(&session.refs, 1)
    mutex_unlock(&cache.lock)
    if session == NULL:
        state.error = FETCH_SESSION_ID_NOT_FOUND
        return True
    mutex_lock(&session.lock)
    if session.epoch != state.session_epoch:
        state.error = INVALID_FETCH_SESSION_EPOCH
    elif session.by_id != (state.version >= 13):
        state.error = FETCH_SESSION_TOPIC_ID_ERROR
    else:
        for i in range(state.part_count):
            ok = ok and put_part(session, &state.parts[i])
        if state.forgotten_bytes > 0:
            forget_parts(session, state)
        session.epoch = session.epoch + 1 if session.epoch < 0x7FFFFFFF else 1
        # A request that leaves its session empty is served without one, for the partitions that it names.
        ok = ok and (session.parts.count == 0 or fill_state(session, state))
        if not ok:                          # the client starts again, perhaps without a session
            state.error = FETCH_SESSION_ID_NOT_FOUND
    size = session.parts.count
    mutex_unlock(&session.lock)
    mutex_lock(&cache.lock)
    if not ok and not session.is_closed:
        remove_session(cache, session)
    if state.error != 0:
        mutex_unlock(&cache.lock)
        fetch_session_release(session)
        return True
    session.last_used_ms = now_ms
    session.size = size
    if size == 0 and not session.is_closed:
        remove_session(cache, session)      # nothing left to fetch: the client gets id 0
    mutex_unlock(&cache.lock)
    if size == 0:
        fetch_session_release(session)
        return True
    state.session = session
    state.is_incremental = True
    state.response_session_id = session.id
    return True


cdef bint make_session(SessionCache *cache, FetchState *state) noexcept nogil:
    cdef FetchSession *session = fetch_session_new(
        &cache.bytes, cache.hash_seed, owner_of(cache, state), state.version >= 13)
    cdef int32_t i
    if session == NULL:
        return False
    for i in range(state.part_count):
        if not put_part(session, &state.parts[i]):
            fetch_session_release(session)
            return True                     # this client continues without a session
    state.session = session
    return True


cdef void open_session(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    """Give the state's new session its id; without capacity the client continues without a session."""
    cdef FetchSession *session = <FetchSession *>state.session
    mutex_lock(&cache.lock)
    if make_space(cache, session.parts.count, now_ms) and hash_reserve(&cache.sessions):
        session.id = state.response_session_id = new_id(cache)
        session.created_ms = session.last_used_ms = now_ms
        session.size = session.parts.count
        atomic_add_fetch(&session.refs, 1)
        hash_add(&cache.sessions, &session.node, hash_of(session.id))
    mutex_unlock(&cache.lock)


cdef void session_end(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    if state.session == NULL:
        return
    if not state.is_incremental:
        open_session(cache, state, now_ms)
    select_parts(state, True)


cdef void session_note_names(FetchState *state) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>state.session
    cdef const FetchPart *asked
    cdef SessionPart *part
    cdef int32_t i
    if session == NULL or not session.by_id:
        return
    mutex_lock(&session.lock)
    for i in range(state.part_count):
        asked = &state.parts[i]
        if asked.known_name == NULL:
            continue
        part = find_part(session, NULL, 0, asked.id, asked.index)
        if part == NULL or part.known_name != NULL:
            continue
        part.known_name = <char *>malloc(<size_t>asked.known_name_bytes)
        if part.known_name != NULL:         # else it is noted at the next request
            memcpy(part.known_name, asked.known_name, <size_t>asked.known_name_bytes)
            part.known_name_bytes = asked.known_name_bytes
            session.name_total += part.known_name_bytes
            atomic_add_fetch(session.bytes, part.known_name_bytes)
    mutex_unlock(&session.lock)


cdef void session_select(FetchState *state) noexcept nogil:
    if state.session != NULL and state.is_incremental:
        select_parts(state, False)


cdef void select_parts(FetchState *state, bint is_sent) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>state.session
    cdef FetchPart *asked
    cdef SessionPart *part
    cdef bint must
    cdef int32_t i
    mutex_lock(&session.lock)
    for i in range(state.part_count):
        asked = &state.parts[i]
        part = find_part(session, asked.name, asked.name_bytes, asked.id, asked.index)
        must = asked.read.size_bytes > 0 or asked.read.error != 0 or asked.has_preferred or asked.is_diverging
        if part != NULL:
            must = must or part.reported_high_watermark != asked.read.high_watermark
            must = must or part.reported_log_start != asked.read.log_start_offset
        if part != NULL and is_sent:
            # An error is sent every time, so it is never stored as sent.
            part.reported_high_watermark = -1 if asked.read.error != 0 else asked.read.high_watermark
            part.reported_log_start = asked.read.log_start_offset
            if asked.read.size_bytes > 0 and state.is_incremental:
                serve_last(session, part)
        if state.is_incremental:
            asked.is_included = must
    mutex_unlock(&session.lock)


cdef void session_drop(FetchState *state) noexcept nogil:
    if state.session != NULL:
        atomic_add_fetch((<FetchSession *>state.session).bytes, -state.charge)
    fetch_session_release(<FetchSession *>state.session)
    state.session = NULL
