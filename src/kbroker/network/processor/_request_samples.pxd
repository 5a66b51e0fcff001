"""Samples of requests with their time line, kept by one network thread: the slowest of the last minutes and, while
snapshots are taken, the latest.

No lock: the network thread owns them, and a snapshot of its loop copies them. Without snapshots a request costs one or
two comparisons, unless it is among the slowest.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker.network._request_metrics cimport TIME_KINDS

cdef enum:
    LATEST_KEPT = 64
    SLOWEST_KEPT = 16           # per window; those of the previous window are kept too
    SAMPLE_ID_BYTES = 64

cdef struct RequestSample:
    int64_t ended_ns
    int64_t channel_number
    int64_t request_bytes
    int64_t response_bytes
    int64_t us[TIME_KINDS]      # as RequestMetrics: queue, local, remote, throttle, response queue, send, total
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
# Network thread only: copies into a snapshot, and keeps the latest for another LOOKING_NS.
cdef void copy_samples(RequestSamples *samples, RequestSamples *into, int64_t now_ns) noexcept nogil
cdef dict samples_as_dict(RequestSamples *samples, int64_t now_ns)


cdef inline bint is_sampled(RequestSamples *samples, const Request *request) noexcept nogil:
    return (request.response_sent_ns - request.start_ns > samples.least_ns
            or request.response_sent_ns < samples.latest_until_ns
            or request.response_sent_ns >= samples.window_ends_ns)
