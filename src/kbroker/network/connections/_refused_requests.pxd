"""Requests whose connection is closed without a response, for the log and the metrics.

Written without the GIL by network threads and handlers; read by one thread now and then. Lock: ``lock``, a leaf.
"""
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64, Mutex

cdef enum RefusalReason:
    REFUSED_UNKNOWN_API = 0
    REFUSED_UNSUPPORTED_VERSION = 1
    REFUSED_MALFORMED_HEADER = 2
    REFUSED_MALFORMED_BODY = 3
    REFUSED_INVALID_RECEIVE = 4     # an impossible size
    REFUSED_FAILED_PRODUCE = 5      # without acks: closing is the only way to report an error to its client
    REFUSAL_REASONS = 6

cdef enum:
    KEPT_REFUSALS = 10          # the first since the last ``take``; later ones are only counted
    LISTENER_BYTES = 64

cdef struct RefusalEntry:
    int reason
    int16_t api_key             # best guess; -1: the request was too short
    int16_t api_version
    int32_t correlation_id
    int32_t error_code          # the first one, for REFUSED_FAILED_PRODUCE
    int32_t size_bytes          # of the request; the declared size for REFUSED_INVALID_RECEIVE
    int32_t local_port
    int32_t remote_port
    int32_t processor_id        # the last two parts of the connection id
    int32_t index
    char local_host[64]
    char remote_host[64]
    char listener_name[LISTENER_BYTES]

cdef struct RefusedTable:
    AtomicI64 refs
    AtomicI64 counts[REFUSAL_REASONS]
    Mutex lock
    int32_t kept                # guarded by lock, like the next two
    int64_t left_out
    RefusalEntry refusals[KEPT_REFUSALS]

cdef const char *refusal_reason(int reason) noexcept nogil      # name of a reason

cdef RefusedTable *refused_retain(RefusedTable *table) noexcept nogil
cdef void refused_release(RefusedTable *table) noexcept nogil
# Record a refusal, on any thread; a channel exists as long as it has outstanding requests. NULL: nothing is counted.
cdef void refused_request(RefusedTable *table, int reason, Request *request) noexcept nogil
cdef void refused_receive(RefusedTable *table, const void *channel, int processor_id) noexcept nogil    # a Channel

cdef class RefusedRequests:
    cdef RefusedTable *table    # owned count
