# cython: freethreading_compatible=True
"""Notes of a request in one growing piece of memory; see the contract in the .pxd."""
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.requests.request cimport TRAIL_ROOM_BYTES, Request
from kbroker.server.quota._entities cimport Text

if sizeof(QuotaEvents) > TRAIL_ROOM_BYTES:
    raise ImportError("a quota_events has no room in its request")


cdef void quota_events_free(void *given) noexcept nogil:
    cdef QuotaEvents *quota_events = <QuotaEvents *>given
    if quota_events.data != quota_events.inline_data:
        free(quota_events.data)


cdef QuotaEvents *quota_events_of(Request *request) noexcept nogil:
    cdef QuotaEvents *quota_events = <QuotaEvents *>request.quota_events
    if quota_events == NULL:
        quota_events = <QuotaEvents *>request.quota_events_capacity
        quota_events.size_bytes = quota_events.note_count = 0
        quota_events.verdict_count = quota_events.published_bytes = 0
        quota_events.capacity = TRAIL_INLINE_BYTES
        quota_events.data = quota_events.inline_data
        request.quota_events = quota_events
        request.release_quota_events = quota_events_free
    return quota_events


cdef bint make_space(QuotaEvents *quota_events, int32_t size_bytes) noexcept nogil:
    cdef int64_t capacity = quota_events.capacity
    cdef char *grown
    while capacity < <int64_t>quota_events.size_bytes + size_bytes:
        capacity *= 2
    if capacity > 1 << 30:
        return False
    grown = <char *>malloc(<size_t>capacity)
    if grown == NULL:
        return False
    memcpy(grown, quota_events.data, <size_t>quota_events.size_bytes)
    if quota_events.data != quota_events.inline_data:
        free(quota_events.data)
    quota_events.data = grown
    quota_events.capacity = <int32_t>capacity
    return True


cdef QuotaEvent *quota_events_add(Request *request, int kind, Text user, Text client_id) noexcept nogil:
    cdef QuotaEvents *quota_events = quota_events_of(request)
    cdef QuotaEvent *note
    cdef char *texts
    cdef size_t head = sizeof(VerdictEvent) if kind == EVENT_VERDICT else sizeof(QuotaEvent)
    cdef size_t text_bytes = <size_t>user.size_bytes + <size_t>client_id.size_bytes
    cdef int32_t size_bytes = <int32_t>((head + text_bytes + 7) & ~<size_t>7)
    if quota_events.size_bytes + size_bytes > quota_events.capacity and not make_space(quota_events, size_bytes):
        return NULL
    note = <QuotaEvent *>(quota_events.data + quota_events.size_bytes)
    memset(note, 0, head)
    note.size_bytes = size_bytes
    note.kind = <int8_t>kind
    note.user_bytes = user.size_bytes
    note.client_id_bytes = client_id.size_bytes
    texts = <char *>note + head
    if user.size_bytes > 0:
        memcpy(texts, user.data, <size_t>user.size_bytes)
    if client_id.size_bytes > 0:
        memcpy(texts + user.size_bytes, client_id.data, <size_t>client_id.size_bytes)
    quota_events.size_bytes += size_bytes
    quota_events.note_count += 1
    quota_events.verdict_count += kind == EVENT_VERDICT
    return note


cdef QuotaEvent *quota_event_at(QuotaEvents *quota_events, int32_t at) noexcept nogil:
    if quota_events == NULL or at >= quota_events.size_bytes:
        return NULL
    return <QuotaEvent *>(quota_events.data + at)
