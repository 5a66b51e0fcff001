"""Responses that never arrive: their requests are executed, then kept or closed."""
from libc.stdint cimport int64_t
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex

cdef struct LostCore:
    AtomicI64 refs              # the handle, and each request whose response will be diverted here
    Mutex lock                  # leaf; guards the rest
    bint keeps
    Request *kept               # owned list by ``next``
    int64_t kept_count
    int64_t lost_count

cdef class SuppressedResponses:
    cdef LostCore *core         # counted

# owned by the caller, not completed yet
cdef void suppress_response(SuppressedResponses lost, Request *request) noexcept
