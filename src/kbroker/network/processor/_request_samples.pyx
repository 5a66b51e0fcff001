"""The slowest requests of the last one to two minutes and, while snapshots are taken, the latest; see the contract."""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from kbroker._core.requests.request cimport Request
from kbroker.network._kafka_request cimport KafkaRequest, is_kafka_request, kafka_request
from kbroker.network._request_metrics cimport (
    TIME_KINDS, TIME_LOCAL, TIME_REMOTE, TIME_REQUEST_QUEUE, TIME_RESPONSE_QUEUE, TIME_RESPONSE_SEND, TIME_THROTTLE,
    TIME_TOTAL, request_times,
)

cdef enum:
    FETCH = 1                   # key of the API

cdef int64_t WINDOW_NS = 60_000_000_000
cdef int64_t LOOKING_NS = 30_000_000_000


cdef void fill(RequestSample *sample, Request *request, const int64_t *us) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int32_t n = kafka.client_id_bytes if kafka.client_id is not NULL else 0
    sample.ended_ns = request.response_sent_ns
    sample.channel_number = request.channel_number
    sample.request_bytes = request.size_bytes
    sample.response_bytes = request.response_bytes
    memcpy(sample.us, us, sizeof(sample.us))
    sample.correlation_id = kafka.correlation_id
    sample.error_code = 0
    for i in range(kafka.error_kinds):
        if kafka.errors[i].code != 0 and kafka.errors[i].count > 0 and sample.error_code == 0:
            sample.error_code = kafka.errors[i].code
    sample.api_key = kafka.api_key
    sample.api_version = kafka.api_version
    sample.client_id_bytes = n if n < SAMPLE_ID_BYTES else SAMPLE_ID_BYTES
    if n > 0:
        memcpy(sample.client_id, kafka.client_id, <size_t>sample.client_id_bytes)


cdef inline int64_t rank_of(Request *request, const int64_t *us) noexcept nogil:
    """Return the time by which requests are ranked: the total, without the remote time of a Fetch.

    A Fetch's remote time is a wait for records that its client requested.
    """
    return us[TIME_TOTAL] - (us[TIME_REMOTE] if kafka_request(request).api_key == FETCH else 0)


cdef void begin_window(RequestSamples *samples, int64_t now_ns) noexcept nogil:
    samples.before_count = 0
    if now_ns < samples.window_ends_ns + WINDOW_NS:     # else the window is older than the previous one
        samples.before_count = samples.slowest_count
        memcpy(samples.before, samples.slowest, sizeof(samples.slowest))
    samples.slowest_count = 0
    samples.least_ns = -1
    samples.window_ends_ns = now_ns + WINDOW_NS


cdef void keep_if_slow(RequestSamples *samples, Request *request, const int64_t *us) noexcept nogil:
    cdef int64_t rank_us = rank_of(request, us)
    cdef int32_t i, least = 0
    if request.response_sent_ns >= samples.window_ends_ns:
        begin_window(samples, request.response_sent_ns)
    if samples.slowest_count < SLOWEST_KEPT:
        least = samples.slowest_count
        samples.slowest_count += 1
    else:
        for i in range(1, SLOWEST_KEPT):
            if samples.slowest[i].rank_us < samples.slowest[least].rank_us:
                least = i
        if rank_us <= samples.slowest[least].rank_us:
            return
    fill(&samples.slowest[least], request, us)
    samples.slowest[least].rank_us = rank_us
    if samples.slowest_count == SLOWEST_KEPT:
        least = 0
        for i in range(1, SLOWEST_KEPT):
            if samples.slowest[i].rank_us < samples.slowest[least].rank_us:
                least = i
        samples.least_ns = samples.slowest[least].rank_us * 1000


cdef void keep_sample(RequestSamples *samples, Request *request) noexcept nogil:
    cdef int64_t us[TIME_KINDS]
    if not is_kafka_request(request) or not request_times(request, us):
        return
    if request.response_sent_ns < samples.latest_until_ns:
        fill(&samples.latest[samples.latest_count % LATEST_KEPT], request, us)
        samples.latest_count += 1
    keep_if_slow(samples, request, us)


cdef void copy_samples(RequestSamples *samples, RequestSamples *into, int64_t now_ns) noexcept nogil:
    if now_ns >= samples.window_ends_ns:
        begin_window(samples, now_ns)
    if now_ns >= samples.latest_until_ns:
        samples.latest_count = 0            # kept for an earlier snapshot: too old
    memcpy(into, samples, sizeof(RequestSamples))
    samples.latest_until_ns = now_ns + LOOKING_NS


# ---- with the GIL

cdef dict sample_as_dict(RequestSample *sample, int64_t now_ns):
    return {
        "api_key": sample.api_key,
        "api_version": sample.api_version,
        "correlation_id": sample.correlation_id,
        "client_id": sample.client_id[:sample.client_id_bytes].decode("utf-8", "replace"),
        "channel_number": sample.channel_number,
        "error_code": sample.error_code,
        "request_bytes": sample.request_bytes,
        "response_bytes": sample.response_bytes,
        "age_ms": round(max(0, now_ns - sample.ended_ns) / 1e6, 3),
        "request_queue_ms": sample.us[TIME_REQUEST_QUEUE] / 1000.0,
        "local_ms": sample.us[TIME_LOCAL] / 1000.0,
        "remote_ms": sample.us[TIME_REMOTE] / 1000.0,
        "response_queue_ms": sample.us[TIME_RESPONSE_QUEUE] / 1000.0,
        "send_ms": sample.us[TIME_RESPONSE_SEND] / 1000.0,
        "total_ms": sample.us[TIME_TOTAL] / 1000.0,
        "throttle_ms": sample.us[TIME_THROTTLE] // 1000,
    }


cdef dict samples_as_dict(RequestSamples *samples, int64_t now_ns):
    """Return the samples: ``latest``, newest first, and ``slowest``, unordered."""
    cdef int64_t kept = min(samples.latest_count, <int64_t>LATEST_KEPT)
    cdef int64_t i
    return {
        "latest": [
            sample_as_dict(&samples.latest[(samples.latest_count - 1 - i) % LATEST_KEPT], now_ns) for i in range(kept)],
        "slowest": [sample_as_dict(&samples.slowest[i], now_ns) for i in range(samples.slowest_count)] + [
            sample_as_dict(&samples.before[i], now_ns) for i in range(samples.before_count)],
    }
