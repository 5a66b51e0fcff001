"""Creation, response and end of a Request and of a Session; see the contract in the .pxd."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen

from kbroker._core.open_file cimport open_file_release
from kbroker._core.requests.memory_pool cimport pool_decref, pool_free
from kbroker._core.sync cimport atomic_add_fetch, atomic_store

cdef extern from *:
    """
    /* ASan reports accesses to kept memory, and to the room behind a payload before its use. */
    #ifdef __SANITIZE_ADDRESS__
    #include <sanitizer/asan_interface.h>
    #else
    #define ASAN_POISON_MEMORY_REGION(data, size_bytes) ((void)0)
    #define ASAN_UNPOISON_MEMORY_REGION(data, size_bytes) ((void)0)
    #endif
    """
    void forbid "ASAN_POISON_MEMORY_REGION"(const void *data, size_t size_bytes) noexcept nogil
    void allow "ASAN_UNPOISON_MEMORY_REGION"(const void *data, size_t size_bytes) noexcept nogil

cdef enum:
    CACHED_REQUESTS = 64               # maximum of a loop
    RECYCLABLE_PAYLOAD_BYTES = 512     # with the struct, more than malloc returns without a search of its free lists


cdef Session *session_new(const char *principal) noexcept nogil:
    cdef Session *session = <Session *>calloc(1, sizeof(Session))
    cdef size_t size = strlen(principal) + 1
    if session is NULL:
        return NULL
    session.principal = <char *>malloc(size)
    if session.principal is NULL:
        free(session)
        return NULL
    memcpy(session.principal, principal, size)
    atomic_store(&session.refs, 1)
    return session


cdef Session *session_retain(Session *session) noexcept nogil:
    atomic_add_fetch(&session.refs, 1)
    return session


cdef void session_release(Session *session) noexcept nogil:
    if session is NULL or atomic_add_fetch(&session.refs, -1) != 0:
        return
    free(session.principal)
    free(session)


cdef Request *cache_take(RequestCache *cache, size_t size_bytes) noexcept nogil:
    """Take the first request from the cache; the first ``size_bytes`` of its memory may be used."""
    cdef Request *request = cache.first
    allow(request, size_bytes)
    cache.first = request.next
    cache.count -= 1
    return request


cdef Request *request_new(const ContextType *type, int64_t payload_bytes) noexcept nogil:
    return request_new_from(NULL, type, payload_bytes)


cdef Request *request_new_from(
        RequestCache *cache, const ContextType *type, int64_t payload_bytes) noexcept nogil:
    cdef Request *request = NULL
    cdef size_t size_bytes = sizeof(Request), zeroed_end = sizeof(Request)
    cdef bint is_recyclable = cache is not NULL and payload_bytes <= RECYCLABLE_PAYLOAD_BYTES
    if payload_bytes < 0:
        return NULL
    if type is not NULL:
        size_bytes += <size_t>type.size_bytes
        zeroed_end += <size_t>type.zeroed_bytes
    if is_recyclable and cache.first is not NULL:
        request = cache_take(cache, size_bytes + RECYCLABLE_PAYLOAD_BYTES)
    else:
        request = <Request *>malloc(
            size_bytes + <size_t>(RECYCLABLE_PAYLOAD_BYTES if is_recyclable else payload_bytes))
    if request is NULL:
        return NULL
    memset(&request.next, 0, zeroed_end - <size_t>(<char *>&request.next - <char *>request))
    request.context_type = type
    request.is_recyclable = is_recyclable
    request.payload = <char *>request + size_bytes
    if is_recyclable:
        forbid(request.payload + payload_bytes, <size_t>(RECYCLABLE_PAYLOAD_BYTES - payload_bytes))
    request.size_bytes = payload_bytes
    request.capacity_bytes = payload_bytes
    request.segments = request.inline_segments
    request.segment_capacity = INLINE_SEGMENTS
    return request


cdef Request *control_message(const Request *about, int action) noexcept nogil:
    cdef Request *message = request_new(NULL, 0)
    if message is not NULL:
        message.action = action
        message.responder = about.responder
        message.channel = about.channel
        message.channel_number = about.channel_number
    return message


cdef void release_all(Request *request) noexcept nogil:
    if request.release_state is not NULL and request.state is not NULL:
        request.release_state(request)
    if request.context_type is not NULL and request.context_type.release is not NULL:
        request.context_type.release(request)
    if request.response_hook_arg is not NULL:
        request.release_response_hook(request.response_hook_arg)
    request_clear_response(request)
    request_release_payload(request)
    session_release(request.session)


cdef void request_free(Request *request) noexcept nogil:
    if request is not NULL:
        release_all(request)
        free(request)


cdef void request_free_into(RequestCache *cache, Request *request) noexcept nogil:
    release_all(request)
    if request.is_recyclable and cache.count < CACHED_REQUESTS:
        request.next = cache.first
        cache.first = request
        cache.count += 1
        forbid(request, <size_t>(context_end(request) - <char *>request) + RECYCLABLE_PAYLOAD_BYTES)
    else:
        free(request)


cdef void request_cache_clear(RequestCache *cache) noexcept nogil:
    while cache.first is not NULL:
        free(cache_take(cache, sizeof(Request)))


cdef void request_leave_account(Request *request) noexcept nogil:
    if request.charge_account is not NULL:
        atomic_add_fetch(request.charge_account, -request.pool_charge)
        request.charge_account = NULL


cdef void request_release_payload(Request *request) noexcept nogil:
    free(request.payload_owned)
    request.payload_owned = NULL
    request.payload = NULL
    if request.pool is not NULL:
        request_leave_account(request)
        if request.pool_charge > 0:
            pool_free(request.pool, request.pool_charge)
        request.pool_charge = 0
        pool_decref(request.pool)
        request.pool = NULL


cdef char *context_end(const Request *request) noexcept nogil:
    return <char *>request_context(request) + (
        0 if request.context_type is NULL else request.context_type.size_bytes)


cdef char *request_room(Request *request, int64_t *size_bytes) noexcept nogil:
    cdef char *room
    size_bytes[0] = RECYCLABLE_PAYLOAD_BYTES - request.size_bytes
    if request.is_recyclable and size_bytes[0] > INLINE_OUT_BYTES:
        room = context_end(request) + request.size_bytes
        allow(room, <size_t>size_bytes[0])
        return room
    size_bytes[0] = INLINE_OUT_BYTES
    return request.inline_out


cdef Segment *next_segment(Request *request) noexcept nogil:
    """Return one more segment, zeroed; NULL: out of memory."""
    cdef Segment *grown
    cdef int32_t capacity
    if request.segment_count == request.segment_capacity:
        capacity = request.segment_capacity * 4
        grown = <Segment *>malloc(<size_t>capacity * sizeof(Segment))
        if grown is NULL:
            return NULL
        memcpy(grown, request.segments, <size_t>request.segment_count * sizeof(Segment))
        free(request.segments_owned)
        request.segments = grown
        request.segments_owned = grown
        request.segment_capacity = capacity
    grown = &request.segments[request.segment_count]
    memset(grown, 0, sizeof(Segment))
    return grown


cdef char *request_reserve(Request *request, int64_t size_bytes) noexcept nogil:
    cdef Segment *last
    cdef char *region
    if size_bytes < 0:
        return NULL
    if size_bytes <= INLINE_OUT_BYTES - request.inline_used:
        region = request.inline_out + request.inline_used
        if request.segment_count > 0:
            last = &request.segments[request.segment_count - 1]
            if last.kind == SEGMENT_MEMORY and last.owned is NULL and last.data + last.size_bytes == region:
                last.size_bytes += size_bytes       # one iovec for neighbours
                request.inline_used += <int32_t>size_bytes
                request.response_bytes += size_bytes
                return region
        if not request_add_memory(request, region, size_bytes, NULL):
            return NULL
        request.inline_used += <int32_t>size_bytes
        return region
    region = <char *>malloc(<size_t>size_bytes)
    if region is NULL:
        return NULL
    if not request_add_memory(request, region, size_bytes, region):
        free(region)
        return NULL
    return region


cdef bint request_add_memory(Request *request, char *data, int64_t size_bytes, char *owned) noexcept nogil:
    cdef Segment *segment = next_segment(request)
    if segment is NULL:
        return False
    segment.kind = SEGMENT_MEMORY
    segment.data = data
    segment.size_bytes = size_bytes
    segment.owned = owned
    request.segment_count += 1
    request.response_bytes += size_bytes
    return True


cdef bint request_add_file(Request *request, OpenFile *file, int64_t position, int64_t size_bytes) noexcept nogil:
    cdef Segment *segment = next_segment(request)
    if segment is NULL:
        return False                # the count stays the caller's
    segment.kind = SEGMENT_FILE
    segment.file = file
    segment.position = position
    segment.size_bytes = size_bytes
    request.segment_count += 1
    request.response_bytes += size_bytes
    return True


cdef void request_clear_response(Request *request) noexcept nogil:
    cdef int32_t i
    for i in range(request.segment_count):
        free(request.segments[i].owned)
        if request.segments[i].kind == SEGMENT_FILE:
            open_file_release(request.segments[i].file)
    free(request.segments_owned)
    request.segments_owned = NULL
    request.segments = request.inline_segments
    request.segment_capacity = INLINE_SEGMENTS
    request.segment_count = 0
    request.inline_used = 0
    request.response_bytes = 0
