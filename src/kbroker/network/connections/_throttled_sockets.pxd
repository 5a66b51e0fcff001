"""Accepted sockets that are not served, each until its time is over: a heap, the earliest first. Owned by one thread.

(Kafka's queue has the latest first, so that an early one waits for it; no client can tell but by the waste.)
"""
from libc.stdint cimport int32_t, int64_t

cdef struct ThrottledSocket:
    int64_t end_ms
    int fd

cdef struct ThrottledSockets:
    ThrottledSocket *heap            # owned
    int32_t count
    int32_t capacity

cdef bint throttle_socket(ThrottledSockets *throttled, int fd, int64_t end_ms) noexcept nogil     # false: memory is out
# those with end_ms < now_ms; how many
cdef int32_t close_throttled(ThrottledSockets *throttled, int64_t now_ms) noexcept nogil
cdef void throttled_sockets_free(ThrottledSockets *throttled) noexcept nogil                       # closes them all
