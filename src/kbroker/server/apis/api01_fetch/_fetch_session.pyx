"""Fetch sessions by id; see the .pxd for locks and contract. Source: KIP-227, FetchSession.java's behaviour."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._core.containers.hash_table cimport (
    HashNode, HashTable, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport mix_hash
from kbroker._core.sync cimport (
    AtomicI64, Mutex, atomic_add_fetch, atomic_load, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker.common._errors cimport (
    FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
)
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchPart, FetchState
from kbroker.server.apis.api01_fetch._session_partitions cimport (
    MOST_SESSION_BYTES, FetchSession, SessionPart, fetch_session_new, fetch_session_release, fill_state, find_part,
    forget_parts, put_part, serve_last,
)

cdef enum:
    INITIAL_EPOCH = 0
    FINAL_EPOCH = -1
    EVICTION_MS = 120000        # min.incremental.fetch.session.eviction.ms


cdef struct SessionCache:
    Mutex lock
    HashTable sessions          # counted each, by id
    AtomicI64 bytes             # what partitions of sessions, and copies of them, take
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


cdef FetchSession *find(SessionCache *cache, int32_t session_id) noexcept nogil:
    cdef HashNode *node = hash_first(&cache.sessions, hash_of(session_id))
    while node != NULL and (<FetchSession *>node).id != session_id:
        node = hash_next(node)
    return <FetchSession *>node


cdef void remove_session(SessionCache *cache, FetchSession *session) noexcept nogil:
    """One that is not closed; its count goes."""
    hash_remove(&cache.sessions, &session.node)
    session.is_closed = True
    fetch_session_release(session)


cdef bint evict_oldest(SessionCache *cache, int64_t now_ms) noexcept nogil:
    """The session that was used longest ago goes, if that is two minutes; false: none may go."""
    cdef FetchSession *oldest = NULL
    cdef HashNode *node = hash_after(&cache.sessions, NULL)
    while node != NULL:
        if oldest == NULL or (<FetchSession *>node).last_used_ms < oldest.last_used_ms:
            oldest = <FetchSession *>node
        node = hash_after(&cache.sessions, node)
    if oldest == NULL or now_ms - oldest.last_used_ms < EVICTION_MS:
        return False
    remove_session(cache, oldest)
    return True


cdef bint make_space(SessionCache *cache, int64_t now_ms) noexcept nogil:
    """For one more session, whose partitions are charged already; false: it may not stay."""
    while cache.sessions.count >= cache.max_sessions or atomic_load(&cache.bytes) > MOST_SESSION_BYTES:
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
        ok = ok and fill_state(session, state)
        if not ok:                          # the client begins anew, perhaps without a session
            state.error = FETCH_SESSION_ID_NOT_FOUND
    is_empty = session.parts.count == 0
    mutex_unlock(&session.lock)
    mutex_lock(&cache.lock)
    if not ok and not session.is_closed:
        remove_session(cache, session)
    if state.error != 0:
        mutex_unlock(&cache.lock)
        fetch_session_release(session)
        return True
    session.last_used_ms = now_ms
    if is_empty and not session.is_closed:
        remove_session(cache, session)      # nothing left to fetch: the client is told id 0
    mutex_unlock(&cache.lock)
    if is_empty:
        atomic_add_fetch(&cache.bytes, -state.charge)
        fetch_session_release(session)
        return True
    state.session = session
    state.is_incremental = True
    state.response_session_id = session.id
    return True


cdef bint make_session(SessionCache *cache, FetchState *state) noexcept nogil:
    cdef FetchSession *session = fetch_session_new(&cache.bytes, cache.hash_seed, state.version >= 13)
    cdef int32_t i
    if session == NULL:
        return False
    for i in range(state.part_count):
        if not put_part(session, &state.parts[i]):
            fetch_session_release(session)
            return True                     # this client goes on without a session
    state.session = session
    return True


cdef void open_session(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil:
    """Give the state's new session its number; where there is no room the client goes on without one."""
    cdef FetchSession *session = <FetchSession *>state.session
    mutex_lock(&cache.lock)
    if make_space(cache, now_ms) and hash_reserve(&cache.sessions):
        session.id = state.response_session_id = new_id(cache)
        session.last_used_ms = now_ms
        atomic_add_fetch(&session.refs, 1)
        hash_add(&cache.sessions, &session.node, hash_of(session.id))
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
            part.was_known = part.was_known or asked.was_known
            must = must or part.reported_high_watermark != asked.read.high_watermark
            must = must or part.reported_log_start != asked.read.log_start_offset
        if part != NULL and tells:
            # An error is told again every time, so it is never remembered as told.
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
