"""Times of requests by API, histograms that one network thread writes and any thread reads; samples of requests.

One table per network thread, so that no two threads write to one cache line; readers add the tables up.
Source: ``RequestChannel.Request.updateRequestMetrics``, ``RequestMetrics.java`` (whose histograms decay; these count).

The samples, each with its times, are the slowest requests of the last minutes and, while snapshots are taken, the
latest. No lock: the network thread owns them, and a snapshot of its loop copies them. Without snapshots a request costs
one or two comparisons, unless it is among the slowest.
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
# Call it on the network thread that owns the table, once per completed request (sent, not needed, or channel closed).
cdef void metrics_record(MetricsTable *table, Request *request) noexcept nogil

cdef class RequestMetrics:
    cdef MetricsTable *table    # owned count

# ---------------------------------------------------- samples

cdef enum:
    LATEST_KEPT = 64
    SLOWEST_KEPT = 16           # per window; those of the previous window are kept too
    SAMPLE_ID_BYTES = 64

cdef struct RequestSample:
    int64_t ended_ns
    int64_t channel_number
    int64_t request_bytes
    int64_t response_bytes
    int64_t us[TIME_KINDS]      # as in RequestMetrics: queue, local, remote, throttle, response queue, send, total
    int64_t rank_us             # rank by slowness; without a Fetch's remote time, which is a wait for records
    int32_t correlation_id
    int32_t error_code
    int16_t api_key
    int16_t api_version
    int32_t client_id_bytes
    char client_id[SAMPLE_ID_BYTES]

cdef struct RequestSamples:
    int64_t least_ns            # a request whose total is at most this is not among the slowest
    int64_t latest_until_ns     # end of the time in which the latest are kept
    int64_t window_ends_ns
    int32_t slowest_count
    int32_t before_count
    int64_t latest_count        # total; the ring has the last LATEST_KEPT
    RequestSample slowest[SLOWEST_KEPT]
    RequestSample before[SLOWEST_KEPT]      # of the previous window
    RequestSample latest[LATEST_KEPT]

# Network thread only, once for each completed request.
cdef void keep_sample(RequestSamples *samples, Request *request) noexcept nogil
# Network thread only: copy into a snapshot, and keep the latest for another LOOKING_NS.
cdef void copy_samples(RequestSamples *samples, RequestSamples *into, int64_t now_ns) noexcept nogil
cdef dict samples_as_dict(RequestSamples *samples, int64_t now_ns)


cdef inline bint is_sampled(RequestSamples *samples, const Request *request) noexcept nogil:
    return (request.response_sent_ns - request.start_ns > samples.least_ns
            or request.response_sent_ns < samples.latest_until_ns
            or request.response_sent_ns >= samples.window_ends_ns)
