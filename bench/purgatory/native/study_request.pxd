"""What the designs have in common: a fake request, what happens to it, and the functions a design brings.

A request is one allocation: the design's own part, then StudyRequest, then the payload.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.clock cimport Clock
from kbroker._core.sync cimport AtomicI64

cdef struct RunState:
    Clock *clock                # borrowed
    int64_t timeout_ms
    int64_t payload_bytes
    AtomicI64 left              # requests that are neither completed nor expired
    AtomicI64 stop              # the run is over, or given up
    AtomicI64 freed             # requests whose memory is given back
    int64_t expired             # the four are the expiring thread's
    int64_t expired_though_due
    int32_t *expiry_late_us
    int64_t room                # of expiry_late_us

cdef struct StudyRequest:
    RunState *run
    int64_t completes_at_ms
    int64_t made_ns

cdef struct Design:
    int64_t head_bytes          # size of the design's part
    void *state
    void (*prepare)(Design *design, StudyRequest *request) noexcept nogil      # count 1, the generator's
    void (*retain)(StudyRequest *request) noexcept nogil
    void (*release)(StudyRequest *request) noexcept nogil
    bint (*enqueue)(Design *design, StudyRequest *request, int64_t *keys, int32_t count) noexcept nogil
    bint (*force_complete)(StudyRequest *request) noexcept nogil
    bint (*turn)(Design *design, int64_t timeout_ms) noexcept nogil            # one turn of the reaper
    int64_t (*pending)(Design *design) noexcept nogil                          # in the timer
    void (*stop)(Design *design) noexcept nogil                                # ends a turn that waits
    void (*free)(Design *design) noexcept nogil                                # every thread has ended

cdef StudyRequest *request_new(RunState *run, Design *design, int32_t latency_ms) noexcept nogil
cdef bint request_is_due(StudyRequest *request) noexcept nogil
cdef void request_completed(StudyRequest *request) noexcept nogil              # whoever wins calls it
cdef void request_expired(StudyRequest *request) noexcept nogil                # after it, on the expiring thread
cdef void request_free(StudyRequest *request, void *head) noexcept nogil
