"""The fake request of the study."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from kbroker._core.clock cimport clock_now_ms, clock_now_ns
from kbroker._core.sync cimport atomic_add

cdef enum:
    NS_PER_MS = 1000000


cdef StudyRequest *request_new(RunState *run, Design *design, int32_t latency_ms) noexcept nogil:
    cdef char *head = <char *>calloc(1, design.head_bytes + sizeof(StudyRequest) + run.payload_bytes)
    cdef StudyRequest *request
    if head is NULL:
        return NULL
    request = <StudyRequest *>(head + design.head_bytes)
    request.run = run
    request.made_ns = clock_now_ns(run.clock)
    request.completes_at_ms = request.made_ns // NS_PER_MS + latency_ms
    design.prepare(design, request)
    return request


cdef bint request_is_due(StudyRequest *request) noexcept nogil:
    return clock_now_ms(request.run.clock) >= request.completes_at_ms


cdef void request_completed(StudyRequest *request) noexcept nogil:
    atomic_add(&request.run.left, -1)


cdef void request_expired(StudyRequest *request) noexcept nogil:
    cdef RunState *run = request.run
    cdef int64_t late_ns = clock_now_ns(run.clock) - request.made_ns - run.timeout_ms * NS_PER_MS
    if run.expired < run.room:
        run.expiry_late_us[run.expired] = <int32_t>(late_ns // 1000)
    run.expired += 1
    if request.completes_at_ms - request.made_ns // NS_PER_MS < run.timeout_ms:
        run.expired_though_due += 1


cdef void request_free(StudyRequest *request, void *head) noexcept nogil:
    atomic_add(&request.run.freed, 1)
    free(head)
