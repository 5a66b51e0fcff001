"""What a network thread offers to those who record finished requests: one call per request, nothing where nobody does.

A recorder is counted: by its handle and by each processor core that has it.
"""
from kbroker._core.requests.request cimport Request

cdef struct Recorder:
    # Once per request that is over (sent, needless, or its channel gone), its network time charged, before it is freed.
    # On the network thread that owns its channel; is_late: on any, after that thread's end, several at a time.
    void (*record)(Recorder *self, Request *request, bint is_late) noexcept nogil
    void (*retain)(Recorder *self) noexcept nogil
    void (*release)(Recorder *self) noexcept nogil

cdef class RequestRecorder:     # base of those who make one
    cdef Recorder *recorder     # counted by the subclass
