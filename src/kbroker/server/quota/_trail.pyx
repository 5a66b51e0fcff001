# cython: freethreading_compatible=True
"""Notes of a request in one growing piece of memory; see the contract in the .pxd."""
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kbroker._core.request cimport TRAIL_ROOM_BYTES, Request
from kbroker.server.quota._entities cimport Text

if sizeof(Trail) > TRAIL_ROOM_BYTES:
    raise ImportError("a trail has no room in its request")


cdef void trail_release(void *given) noexcept nogil:
    cdef Trail *trail = <Trail *>given
    if trail.data != trail.inline_data:
        free(trail.data)


cdef Trail *trail_of(Request *request) noexcept nogil:
    cdef Trail *trail = <Trail *>request.trail
    if trail == NULL:
        trail = <Trail *>request.trail_room
        trail.size_bytes = trail.note_count = trail.verdict_count = trail.published_bytes = 0
        trail.capacity = TRAIL_INLINE_BYTES
        trail.data = trail.inline_data
        request.trail = trail
        request.release_trail = trail_release
    return trail


cdef bint make_room(Trail *trail, int32_t size_bytes) noexcept nogil:
    cdef int64_t capacity = trail.capacity
    cdef char *grown
    while capacity < <int64_t>trail.size_bytes + size_bytes:
        capacity *= 2
    if capacity > 1 << 30:
        return False
    grown = <char *>malloc(<size_t>capacity)
    if grown == NULL:
        return False
    memcpy(grown, trail.data, <size_t>trail.size_bytes)
    if trail.data != trail.inline_data:
        free(trail.data)
    trail.data = grown
    trail.capacity = <int32_t>capacity
    return True


cdef Note *trail_add(Request *request, int kind, Text user, Text client_id) noexcept nogil:
    cdef Trail *trail = trail_of(request)
    cdef Note *note
    cdef char *texts
    cdef size_t head = sizeof(VerdictNote) if kind == NOTE_VERDICT else sizeof(Note)
    cdef size_t text_bytes = <size_t>user.size_bytes + <size_t>client_id.size_bytes
    cdef int32_t size_bytes = <int32_t>((head + text_bytes + 7) & ~<size_t>7)
    if trail.size_bytes + size_bytes > trail.capacity and not make_room(trail, size_bytes):
        return NULL
    note = <Note *>(trail.data + trail.size_bytes)
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
    trail.size_bytes += size_bytes
    trail.note_count += 1
    trail.verdict_count += kind == NOTE_VERDICT
    return note


cdef Note *trail_note(Trail *trail, int32_t at) noexcept nogil:
    if trail == NULL or at >= trail.size_bytes:
        return NULL
    return <Note *>(trail.data + at)
