"""Accepted sockets that are not served, each until its time is over: a heap, the earliest first. Owned by one thread.

(Kafka's queue has the latest first, so that an early one waits for it; no client can tell but by the waste.)
"""
from libc.stdint cimport int32_t, int64_t

cdef struct HeldSocket:
    int64_t end_ms
    int fd

cdef struct HeldSockets:
    HeldSocket *heap            # owned
    int32_t count
    int32_t capacity

cdef bint hold_socket(HeldSockets *held, int fd, int64_t end_ms) noexcept nogil     # false: memory is out
cdef int32_t close_held(HeldSockets *held, int64_t now_ms) noexcept nogil   # those with end_ms < now_ms; how many
cdef void held_free(HeldSockets *held) noexcept nogil                       # closes them all
