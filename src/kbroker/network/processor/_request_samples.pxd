"""Requests with their time line, kept by one network thread: the slowest of the last minutes, and the latest while
somebody looks.

No lock: the network thread's own; a snapshot of its loop copies them. Without a look a request costs a comparison or
two, unless it is among the slowest.
"""
from libc.stdint cimport int16_t, int32_t, int64_t
from kbroker._core.requests.request cimport Request
from kbroker.network._request_metrics cimport TIME_KINDS

cdef enum:
    LATEST_KEPT = 64
    SLOWEST_KEPT = 16           # of a window; those of the window before are kept too
    SAMPLE_ID_BYTES = 64

cdef struct RequestSample:
    int64_t ended_ns
    int64_t channel_number
    int64_t request_bytes
    int64_t response_bytes
    int64_t us[TIME_KINDS]      # as RequestMetrics: queue, local, remote, throttle, response queue, send, total
    int64_t rank_us             # by which it is slow: a Fetch waits for records on purpose
    int32_t correlation_id
    int32_t error_code
    int16_t api_key
    int16_t api_version
    int32_t client_id_bytes
    char client_id[SAMPLE_ID_BYTES]

cdef struct RequestSamples:
    int64_t least_ns            # a request whose total is no more than this is not among the slowest
    int64_t latest_until_ns     # until when the latest are kept
    int64_t window_ends_ns
    int32_t slowest_count
    int32_t before_count
    int64_t latest_count        # so far; the ring has the last LATEST_KEPT
    RequestSample slowest[SLOWEST_KEPT]
    RequestSample before[SLOWEST_KEPT]      # of the window before
    RequestSample latest[LATEST_KEPT]

# The network thread's, once for each request that is over, with its end known.
cdef void keep_sample(RequestSamples *samples, Request *request) noexcept nogil
# The network thread's: into a snapshot; the latest are kept for LOOKING_NS more.
cdef void copy_samples(RequestSamples *samples, RequestSamples *into, int64_t now_ns) noexcept nogil
cdef dict samples_as_dict(RequestSamples *samples, int64_t now_ns)


cdef inline bint is_sampled(RequestSamples *samples, const Request *request) noexcept nogil:
    return (request.response_sent_ns - request.start_ns > samples.least_ns
            or request.response_sent_ns < samples.latest_until_ns
            or request.response_sent_ns >= samples.window_ends_ns)
