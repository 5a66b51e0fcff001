"""Fetch sessions; see the .pxd for locks and contract. Source: KIP-227, FetchSession.java's behaviour."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.wire cimport Reader, read_bytes, read_count, read_i32, read_length, reader_init, skip_tags
from kbroker.server._fetch_types cimport FetchPart, FetchState
from kbroker.server._topics cimport hash_seeded, mix_hash


cdef enum:
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INITIAL_EPOCH = 0
    FINAL_EPOCH = -1
    ID_BUCKETS = 1024
    EVICTION_MS = 120000        # min.incremental.fetch.session.eviction.ms
    MOST_BYTES = 134217728      # of all sessions and of the copies waiting fetches hold; beyond, clients go without


cdef struct SessionPart:
    SessionPart *prev           # order of service: what returned data goes to the end
    SessionPart *next
    SessionPart *chain          # hash bucket
    uint64_t hash
    char *name                  # behind the struct
    int32_t name_bytes
    bint by_id
    char id[16]
    int32_t index
    int32_t leader_epoch
    int32_t last_fetched_epoch
    int32_t max_bytes
    int64_t offset
    int64_t told_high_watermark
    int64_t told_log_start


cdef struct FetchSession:
    AtomicI64 refs
    SessionCache *cache         # outlives it
    FetchSession *chain         # SessionCache.lock
    int32_t id
    bint by_id
    bint is_closed
    int64_t last_used_ms
    Mutex lock                  # guards the rest
    int32_t epoch
    int32_t count
    int64_t name_total          # bytes of all names and ids
    SessionPart *first
    SessionPart *last
    SessionPart **buckets
    int32_t mask


cdef struct SessionCache:
    Mutex lock
    FetchSession *buckets[ID_BUCKETS]
    AtomicI64 bytes             # what partitions of sessions, and copies of them, take
    int32_t count
    int32_t max_sessions
    uint64_t random
    uint64_t hash_seed


cdef SessionCache *session_cache_new(int32_t max_sessions, int64_t seed, uint64_t hash_seed) noexcept nogil:
    cdef SessionCache *cache = <SessionCache *>calloc(1, sizeof(SessionCache))
    if cache != NULL:
        mutex_init(&cache.lock)
        cache.max_sessions = max_sessions
        cache.random = <uint64_t>seed | 1
        cache.hash_seed = hash_seed
    return cache


cdef void session_cache_free(SessionCache *cache) noexcept nogil:
    cdef int32_t i
    cdef FetchSession *session
    cdef FetchSession *chain
    if cache == NULL:
        return
    for i in range(ID_BUCKETS):
        session = cache.buckets[i]
        while session != NULL:
            chain = session.chain
            session_release(session)
            session = chain
    mutex_destroy(&cache.lock)
    free(cache)


cdef int32_t session_cache_count(SessionCache *cache) noexcept nogil:
    cdef int32_t count
    mutex_lock(&cache.lock)
    count = cache.count
    mutex_unlock(&cache.lock)
    return count


cdef void session_release(FetchSession *session) noexcept nogil:
    cdef SessionPart *part
    cdef SessionPart *following
    if session == NULL or atomic_add(&session.refs, -1) > 0:
        return
    part = session.first
    while part != NULL:
        following = part.next
        atomic_add(&session.cache.bytes, -part_bytes(part.name_bytes))
        free(part)
        part = following
    free(session.buckets)
    mutex_destroy(&session.lock)
    free(session)


# ---------------------------------------------------------------- the cache (under its lock)

cdef FetchSession *find(SessionCache *cache, int32_t session_id) noexcept nogil:
    cdef FetchSession *session = cache.buckets[session_id & (ID_BUCKETS - 1)]
    while session != NULL and session.id != session_id:
        session = session.chain
    return session


cdef void remove_session(SessionCache *cache, FetchSession *session) noexcept nogil:
    cdef FetchSession **link = &cache.buckets[session.id & (ID_BUCKETS - 1)]
    while link[0] != NULL:
        if link[0] == session:
            link[0] = session.chain
            session.chain = NULL
            session.is_closed = True
            cache.count -= 1
            session_release(session)
            return
        link = &link[0].chain


cdef bint evict_oldest(SessionCache *cache, int64_t now_ms) noexcept nogil:
    """The session that was used longest ago goes, if that is two minutes; false: none may go."""
    cdef FetchSession *oldest = NULL
    cdef FetchSession *session
    cdef int32_t i
    for i in range(ID_BUCKETS):
        session = cache.buckets[i]
        while session != NULL:
            if oldest == NULL or session.last_used_ms < oldest.last_used_ms:
                oldest = session
            session = session.chain
    if oldest == NULL or now_ms - oldest.last_used_ms < EVICTION_MS:
        return False
    remove_session(cache, oldest)
    return True


cdef bint make_room(SessionCache *cache, int64_t now_ms) noexcept nogil:
    """For one more session, whose partitions are charged already; false: it may not stay."""
    while cache.count >= cache.max_sessions or atomic_load(&cache.bytes) > MOST_BYTES:
        if not evict_oldest(cache, now_ms):
            return False
    return True


cdef int32_t new_id(SessionCache *cache) noexcept nogil:
    cdef int32_t session_id = 0
    while session_id == 0 or find(cache, session_id) != NULL:
        cache.random ^= cache.random << 13
        cache.random ^= cache.random >> 7
        cache.random ^= cache.random << 17
        session_id = <int32_t>((cache.random >> 20) & 0x7FFFFFFF)
    return session_id


# ---------------------------------------------------------------- one session's partitions (under its lock)

cdef uint64_t part_hash(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                        int32_t index) noexcept nogil:
    cdef uint64_t seed = session.cache.hash_seed
    cdef uint64_t h = hash_seeded(topic_id, 16, seed) if topic_id != NULL else hash_seeded(name, name_bytes, seed)
    return mix_hash(h ^ <uint64_t><int64_t>index)


cdef int64_t part_bytes(int64_t name_bytes) noexcept nogil:
    """What a partition of a session is charged: itself and its share of the buckets."""
    return <int64_t>sizeof(SessionPart) + name_bytes + 2 * <int64_t>sizeof(SessionPart *)


cdef SessionPart *find_part(FetchSession *session, const char *name, int32_t name_bytes, const char *topic_id,
                            int32_t index) noexcept nogil:
    cdef uint64_t h = part_hash(session, name, name_bytes, topic_id, index)
    cdef SessionPart *part
    if session.buckets == NULL:
        return NULL
    part = session.buckets[h & <uint64_t>session.mask]
    while part != NULL:
        if part.hash == h and part.index == index:
            if topic_id != NULL:
                if memcmp(part.id, topic_id, 16) == 0:
                    return part
            elif part.name_bytes == name_bytes and memcmp(part.name, name, <size_t>name_bytes) == 0:
                return part
        part = part.chain
    return NULL


cdef bint grow(FetchSession *session) noexcept nogil:
    cdef int32_t size = 16, slot
    cdef SessionPart **buckets
    cdef SessionPart *part
    if session.buckets != NULL and session.count <= session.mask:
        return True
    while size <= session.count * 2:
        size *= 2
    buckets = <SessionPart **>calloc(<size_t>size, sizeof(SessionPart *))
    if buckets == NULL:
        return False
    part = session.first
    while part != NULL:
        slot = <int32_t>(part.hash & <uint64_t>(size - 1))
        part.chain = buckets[slot]
        buckets[slot] = part
        part = part.next
    free(session.buckets)
    session.buckets = buckets
    session.mask = size - 1
    return True


cdef void append_last(FetchSession *session, SessionPart *part) noexcept nogil:
    part.prev = session.last
    part.next = NULL
    if session.last != NULL:
        session.last.next = part
    else:
        session.first = part
    session.last = part


cdef void take_out(FetchSession *session, SessionPart *part) noexcept nogil:
    if part.prev != NULL:
        part.prev.next = part.next
    else:
        session.first = part.next
    if part.next != NULL:
        part.next.prev = part.prev
    else:
        session.last = part.prev


cdef bint put_part(FetchSession *session, FetchPart *asked) noexcept nogil:
    """Adds a partition, or renews what is asked of it. False: memory is out, or sessions have taken their share."""
    cdef SessionPart *part = find_part(session, asked.name, asked.name_bytes, asked.id, asked.index)
    cdef int32_t slot
    if part == NULL:
        if atomic_load(&session.cache.bytes) > MOST_BYTES or not grow(session):
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
        part.hash = part_hash(session, asked.name, asked.name_bytes, asked.id, asked.index)
        part.told_high_watermark = part.told_log_start = -1
        slot = <int32_t>(part.hash & <uint64_t>session.mask)
        part.chain = session.buckets[slot]
        session.buckets[slot] = part
        append_last(session, part)
        session.count += 1
        session.name_total += part.name_bytes + 16
        atomic_add(&session.cache.bytes, part_bytes(part.name_bytes))
    part.leader_epoch = asked.leader_epoch
    part.last_fetched_epoch = asked.last_fetched_epoch
    part.max_bytes = asked.max_bytes
    part.offset = asked.offset
    return True


cdef void remove_part(FetchSession *session, SessionPart *part) noexcept nogil:
    cdef SessionPart **link = &session.buckets[part.hash & <uint64_t>session.mask]
    while link[0] != part:
        link = &link[0].chain
    link[0] = part.chain
    take_out(session, part)
    session.count -= 1
    session.name_total -= part.name_bytes + 16
    atomic_add(&session.cache.bytes, -part_bytes(part.name_bytes))
    free(part)


cdef void forget(FetchSession *session, FetchState *state) noexcept nogil:
    """Applies ForgottenTopicsData, which the parser has already found well formed."""
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
    """Replaces the request's parts by copies of all of the session's. False: no memory for them."""
    cdef FetchPart *parts
    cdef char *names
    cdef char *at
    cdef SessionPart *part = session.first
    cdef int64_t charge = <int64_t>session.count * <int64_t>sizeof(FetchPart) + session.name_total
    cdef int32_t i = 0
    if atomic_load(&session.cache.bytes) + charge > 2 * <int64_t>MOST_BYTES:
        return False
    parts = <FetchPart *>calloc(<size_t>(session.count or 1), sizeof(FetchPart))
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
        parts[i].index = part.index
        parts[i].leader_epoch = part.leader_epoch
        parts[i].last_fetched_epoch = part.last_fetched_epoch
        parts[i].max_bytes = part.max_bytes
        parts[i].offset = part.offset
        part = part.next
        i += 1
    free(state.parts)
    free(state.names)
    state.parts = parts
    state.part_count = i
    state.names = names
    state.charge = charge
    atomic_add(&session.cache.bytes, charge)
    return True


# ---------------------------------------------------------------- the two calls of the handler

cdef bint session_begin(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    cdef FetchSession *session
    cdef bint ok = True, is_empty
    cdef int32_t i
    if state.session_epoch == INITIAL_EPOCH or state.session_epoch == FINAL_EPOCH:
        if state.session_id != 0:
            mutex_lock(&cache.lock)
            session = find(cache, state.session_id)
            if session != NULL:
                remove_session(cache, session)
            mutex_unlock(&cache.lock)
        if state.session_epoch == INITIAL_EPOCH:
            return make_session(cache, state)
        return True
    mutex_lock(&cache.lock)
    session = find(cache, state.session_id) if state.session_id != 0 else NULL
    if session != NULL:
        atomic_add(&session.refs, 1)
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
            forget(session, state)
        session.epoch = session.epoch + 1 if session.epoch < 0x7FFFFFFF else 1
        ok = ok and fill_state(session, state)
        if not ok:                          # the client begins anew, perhaps without a session
            state.error = FETCH_SESSION_ID_NOT_FOUND
    is_empty = session.count == 0
    mutex_unlock(&session.lock)
    mutex_lock(&cache.lock)
    if not ok and not session.is_closed:
        remove_session(cache, session)
    if state.error != 0:
        mutex_unlock(&cache.lock)
        session_release(session)
        return True
    session.last_used_ms = now_ms
    if is_empty and not session.is_closed:
        remove_session(cache, session)      # nothing left to fetch: the client is told id 0
    mutex_unlock(&cache.lock)
    if is_empty:
        atomic_add(&cache.bytes, -state.charge)
        session_release(session)
        return True
    state.session = session
    state.is_incremental = True
    state.answer_session_id = session.id
    return True


cdef bint make_session(SessionCache *cache, FetchState *state) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>calloc(1, sizeof(FetchSession))
    cdef int32_t i
    if session == NULL:
        return False
    mutex_init(&session.lock)
    session.cache = cache
    atomic_store(&session.refs, 1)
    session.by_id = state.version >= 13
    session.epoch = 1
    for i in range(state.part_count):
        if not put_part(session, &state.parts[i]):
            session_release(session)
            return True                     # this client goes on without a session
    state.session = session
    return True


cdef void open_session(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    """Give the state's new session its number; where there is no room the client goes on without one."""
    cdef FetchSession *session = <FetchSession *>state.session
    mutex_lock(&cache.lock)
    if make_room(cache, now_ms):
        session.id = state.answer_session_id = new_id(cache)
        session.last_used_ms = now_ms
        atomic_add(&session.refs, 1)
        session.chain = cache.buckets[session.id & (ID_BUCKETS - 1)]
        cache.buckets[session.id & (ID_BUCKETS - 1)] = session
        cache.count += 1
    mutex_unlock(&cache.lock)


cdef void session_end(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    if state.session == NULL:
        return
    if not state.is_incremental:
        open_session(cache, state, now_ms)
    select_parts(state, True)


cdef void session_select(FetchState *state) noexcept nogil:
    if state.session != NULL and state.is_incremental:
        select_parts(state, False)


cdef void select_parts(FetchState *state, bint tells) noexcept nogil:
    cdef FetchSession *session = <FetchSession *>state.session
    cdef FetchPart *asked
    cdef SessionPart *part
    cdef bint must
    cdef int32_t i
    mutex_lock(&session.lock)
    for i in range(state.part_count):
        asked = &state.parts[i]
        part = find_part(session, asked.name, asked.name_bytes, asked.id, asked.index)
        must = asked.read.size_bytes > 0 or asked.read.error != 0
        if part != NULL:
            must = must or part.told_high_watermark != asked.read.high_watermark
            must = must or part.told_log_start != asked.read.log_start_offset
        if part != NULL and tells:
            # An error is told again every time, so it is never remembered as told.
            part.told_high_watermark = -1 if asked.read.error != 0 else asked.read.high_watermark
            part.told_log_start = asked.read.log_start_offset
            if asked.read.size_bytes > 0 and state.is_incremental:
                take_out(session, part)
                append_last(session, part)
        if state.is_incremental:
            asked.is_included = must
    mutex_unlock(&session.lock)


cdef void session_drop(FetchState *state) noexcept nogil:
    if state.session != NULL:
        atomic_add(&(<FetchSession *>state.session).cache.bytes, -state.charge)
    session_release(<FetchSession *>state.session)
    state.session = NULL
