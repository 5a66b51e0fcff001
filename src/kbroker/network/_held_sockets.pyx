# cython: freethreading_compatible=True
"""The heap of sockets that are held for a while and then closed; see the contract in the .pxd."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, realloc

cdef extern from "socket_io.h" nogil:
    void kb_close_socket(int fd)


cdef bint hold_socket(HeldSockets *held, int fd, int64_t end_ms) noexcept nogil:
    cdef HeldSocket *larger
    cdef int32_t at, parent
    if held.count == held.capacity:
        larger = <HeldSocket *>realloc(held.heap, <size_t>(held.capacity * 2 + 8) * sizeof(HeldSocket))
        if larger is NULL:
            return False
        held.heap = larger
        held.capacity = held.capacity * 2 + 8
    at = held.count
    held.count += 1
    while at > 0:
        parent = (at - 1) // 2
        if held.heap[parent].end_ms <= end_ms:
            break
        held.heap[at] = held.heap[parent]
        at = parent
    held.heap[at].end_ms = end_ms
    held.heap[at].fd = fd
    return True


cdef void drop_first(HeldSockets *held) noexcept nogil:
    cdef HeldSocket last
    cdef int32_t at = 0
    cdef int32_t child
    held.count -= 1
    last = held.heap[held.count]
    while True:
        child = at * 2 + 1
        if child >= held.count:
            break
        if child + 1 < held.count and held.heap[child + 1].end_ms < held.heap[child].end_ms:
            child += 1
        if last.end_ms <= held.heap[child].end_ms:
            break
        held.heap[at] = held.heap[child]
        at = child
    held.heap[at] = last


cdef int32_t close_held(HeldSockets *held, int64_t now_ms) noexcept nogil:
    cdef int32_t closed = 0
    while held.count > 0 and held.heap[0].end_ms < now_ms:
        kb_close_socket(held.heap[0].fd)
        drop_first(held)
        closed += 1
    return closed


cdef void held_free(HeldSockets *held) noexcept nogil:
    close_held(held, INT64_MAX)
    free(held.heap)
    held.heap = NULL
    held.capacity = 0
