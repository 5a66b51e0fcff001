"""Incremental fetch sessions (KIP-227): the partitions that a client fetches, and the values last sent to it.

Locks: ``SessionCache.lock`` (ids, eviction), then ``FetchSession.lock`` (its partitions). Neither is held while
reading a log.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from kbroker.apis.api01_fetch._fetch_types cimport FetchState

cdef struct SessionCache

cdef SessionCache *session_cache_new(int32_t max_sessions, uint64_t hash_seed) noexcept nogil
cdef void session_cache_free(SessionCache *cache) noexcept nogil
cdef int32_t session_cache_count(SessionCache *cache) noexcept nogil
# Find or close the request's session, fill state.parts from it when it is incremental, and create one for a full
# request, which no other thread finds before session_end. False: out of memory. A refusal is state.error (70, 71, 106).
cdef bint session_begin(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil
# Note the names of the topics that a request by ids has found, for the next requests of its session.
cdef void session_note_names(FetchState *state) noexcept nogil
# Select the parts of an incremental response, before it is written.
cdef void session_select(FetchState *state) noexcept nogil
# Do this for a response that is sent; also store the values that the client gets, and open a new session if there
# is capacity: state.response_session_id is then its id.
cdef void session_end(SessionCache *cache, FetchState *state, int64_t now_ms) noexcept nogil
cdef void session_drop(FetchState *state) noexcept nogil      # releases the state's reference
