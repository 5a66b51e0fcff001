"""Times of requests by API: histograms that one network thread writes and any thread reads.

One table per network thread, so that no two threads write to one cache line; readers add the tables up.
Source: ``RequestChannel.Request.updateRequestMetrics``, ``RequestMetrics.java`` (whose histograms decay; these count).
"""
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport AtomicI64

cdef struct Recorder:
    # Called once per completed request (sent, not needed, or its channel closed), after its network time is charged and
    # before it is freed. On the network thread that owns its channel; is_late: on any thread, after that thread's end,
    # several at a time.
    void (*record)(Recorder *self, Request *request, bint is_late) noexcept nogil
    void (*retain)(Recorder *self) noexcept nogil
    void (*release)(Recorder *self) noexcept nogil

cdef class RequestRecorder:     # base class of the recorders
    cdef Recorder *recorder     # counted by the subclass

cdef enum:
    METRIC_SLOTS = 130          # API keys 0 to 127, and two more for Fetch
    SLOT_FETCH_CONSUMER = 128
    SLOT_FETCH_FOLLOWER = 129
    TIME_BUCKETS = 18
    VERSION_SLOTS = 32
    ERROR_SLOTS = 160           # error codes from -1; the last slot is for all others

cdef enum:                      # kinds of time
    TIME_REQUEST_QUEUE = 0
    TIME_LOCAL = 1
    TIME_REMOTE = 2
    TIME_THROTTLE = 3
    TIME_RESPONSE_QUEUE = 4
    TIME_RESPONSE_SEND = 5
    TIME_TOTAL = 6
    TIME_MESSAGE_CONVERSIONS = 7    # only of requests that have this time
    TIME_KINDS = 8

cdef struct ApiMetrics:
    AtomicI64 count
    AtomicI64 request_bytes     # of bodies, as Kafka's RequestBytes
    AtomicI64 response_bytes
    AtomicI64 network_ns
    AtomicI64 by_version[VERSION_SLOTS]
    AtomicI64 errors[ERROR_SLOTS]
    AtomicI64 sum_us[TIME_KINDS]
    AtomicI64 buckets[TIME_KINDS][TIME_BUCKETS]     # not cumulative

cdef struct MetricsTable:
    AtomicI64 refs
    AtomicI64 apis[METRIC_SLOTS]    # ApiMetrics *, created by the writer on first use

cdef MetricsTable *metrics_retain(MetricsTable *table) noexcept nogil
cdef void metrics_release(MetricsTable *table) noexcept nogil
# Splits the time of a completed request into microseconds by kind; false: it was never handled.
cdef bint request_times(Request *request, int64_t *us) noexcept nogil
# On the network thread that owns the table, once per completed request (sent, not needed, or its channel closed).
cdef void metrics_record(MetricsTable *table, Request *request) noexcept nogil

cdef class RequestMetrics:
    cdef MetricsTable *table    # owned count
