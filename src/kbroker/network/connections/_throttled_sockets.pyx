# cython: freethreading_compatible=True
"""The heap of sockets that are throttled for a while and then closed; see the contract in the .pxd."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, realloc

cdef extern from "network/socket_io.h" nogil:
    void kb_close_socket(int fd)


cdef bint throttle_socket(ThrottledSockets *throttled, int fd, int64_t end_ms) noexcept nogil:
    cdef ThrottledSocket *larger
    cdef int32_t at, parent
    if throttled.count == throttled.capacity:
        larger = <ThrottledSocket *>realloc(
            throttled.heap, <size_t>(throttled.capacity * 2 + 8) * sizeof(ThrottledSocket))
        if larger is NULL:
            return False
        throttled.heap = larger
        throttled.capacity = throttled.capacity * 2 + 8
    at = throttled.count
    throttled.count += 1
    while at > 0:
        parent = (at - 1) // 2
        if throttled.heap[parent].end_ms <= end_ms:
            break
        throttled.heap[at] = throttled.heap[parent]
        at = parent
    throttled.heap[at].end_ms = end_ms
    throttled.heap[at].fd = fd
    return True


cdef void drop_first(ThrottledSockets *throttled) noexcept nogil:
    cdef ThrottledSocket last
    cdef int32_t at = 0
    cdef int32_t child
    throttled.count -= 1
    last = throttled.heap[throttled.count]
    while True:
        child = at * 2 + 1
        if child >= throttled.count:
            break
        if child + 1 < throttled.count and throttled.heap[child + 1].end_ms < throttled.heap[child].end_ms:
            child += 1
        if last.end_ms <= throttled.heap[child].end_ms:
            break
        throttled.heap[at] = throttled.heap[child]
        at = child
    throttled.heap[at] = last


cdef int32_t close_throttled(ThrottledSockets *throttled, int64_t now_ms) noexcept nogil:
    cdef int32_t closed = 0
    while throttled.count > 0 and throttled.heap[0].end_ms < now_ms:
        kb_close_socket(throttled.heap[0].fd)
        drop_first(throttled)
        closed += 1
    return closed


cdef void throttled_sockets_free(ThrottledSockets *throttled) noexcept nogil:
    close_throttled(throttled, INT64_MAX)
    free(throttled.heap)
    throttled.heap = NULL
    throttled.capacity = 0
