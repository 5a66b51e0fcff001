"""Native Fetch: parse, resolve, read; wait in the purgatory when there is too little; answer with file regions.

Life of a FetchState: made by the handler, kept by its Operation's counts, freed by the last of them. The request is
answered once, by the thread that completes the operation (or by the handler when nothing has to be awaited), which
reads the log again (spec: timer-and-purgatory 8.2, log-storage 5.5, KIP-227 for sessions).
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc
from libc.string cimport memset

from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.requests.request cimport ACTION_CLOSE, Request
from kbroker.common._errors cimport NONE, UNKNOWN_SERVER_ERROR
from kbroker.server.apis.api01_fetch._delayed_fetch cimport free_state, park_fetch
from kbroker.server.apis.api01_fetch._fetch_partitions cimport drop_reads, read_partitions, resolve_partitions
from kbroker.server.apis.api01_fetch._fetch_request cimport parse_fetch
from kbroker.server.apis.api01_fetch._fetch_response cimport respond_to_fetch, build_response
from kbroker.server.apis.api01_fetch._fetch_session cimport SessionCache, session_begin
from kbroker.server.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.server.native._native_types cimport Handler, NativeApisCore, Outcome, OUTCOME_RESPONDED, OUTCOME_DELAYED
from kbroker.server.quota._client_sensors cimport ClientCache
from kbroker.server.quota._quota_enforcement cimport fetch_window_bytes, gate_request, quotas_are_set


cdef void limit_sizes(FetchState *state, ClientCache *clients) noexcept nogil:
    """No more at once than the broker allows, or than fits into the window of the client's quota."""
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
    """An unknown isolation level: -1 everywhere, in the shapes Kafka 4.3.1 gives it."""
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
    cdef FetchState *state = <FetchState *>calloc(1, sizeof(FetchState))
    cdef bint any_error = False
    cdef int64_t found
    cdef int32_t readable = 0
    if state == NULL:
        request.action = ACTION_CLOSE
        return OUTCOME_RESPONDED
    state.request = request
    state.native_apis = handler.native_apis
    state.version = request.api_version
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
                request.local_done_ns = clock_now_ns(handler.native_apis.clock)
                if park_fetch(handler, state):
                    return OUTCOME_DELAYED
                read_partitions(state, &any_error, &readable)
            respond_to_fetch(state, handler.clients)
    if request.local_done_ns == 0:      # else it was judged
        request.local_done_ns = clock_now_ns(handler.native_apis.clock)
    free_state(state)
    return OUTCOME_RESPONDED
