"""Times of the requests of one network thread, written without GIL or lock when a request completes."""
cimport cython

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.network.loop_types cimport count
from kbroker._core.requests.request cimport ACTION_NO_OP, Request
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store
from kbroker.network._kafka_request cimport THROTTLE_KINDS, KafkaRequest, is_kafka_request, kafka_request, or_before


cdef class RequestRecorder:
    """Base of the recorders of one network thread's finished requests; records nothing. Each processor needs its own.
    """


cdef int64_t BOUNDS_US[TIME_BUCKETS - 1]
BOUNDS_US[:] = [
    50, 100, 250, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000,
    5_000_000, 10_000_000]

TIMES = (
    "RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "ThrottleTimeMs", "ResponseQueueTimeMs", "ResponseSendTimeMs",
    "TotalTimeMs", "MessageConversionsTimeMs")
BOUNDS_MS = tuple(<double>BOUNDS_US[i] / 1000 for i in range(TIME_BUCKETS - 1))
FETCH_CONSUMER, FETCH_FOLLOWER = SLOT_FETCH_CONSUMER, SLOT_FETCH_FOLLOWER


cdef MetricsTable *metrics_retain(MetricsTable *table) noexcept nogil:
    if table is not NULL:
        atomic_add_fetch(&table.refs, 1)
    return table


cdef void metrics_release(MetricsTable *table) noexcept nogil:
    cdef int32_t slot
    if table is NULL or atomic_add_fetch(&table.refs, -1) != 0:
        return
    for slot in range(METRIC_SLOTS):
        free(<void *>atomic_load(&table.apis[slot]))
    free(table)


cdef inline void note_time(ApiMetrics *api, int32_t kind, int64_t us) noexcept nogil:
    cdef int32_t bucket = 0
    if us < 0:
        us = 0
    while bucket < TIME_BUCKETS - 1 and us > BOUNDS_US[bucket]:
        bucket += 1
    count(&api.buckets[kind][bucket], 1)
    if us > 0:
        count(&api.sum_us[kind], us)


cdef void record_into(MetricsTable *table, int32_t slot, Request *request, const int64_t *us) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef ApiMetrics *api = <ApiMetrics *>atomic_load_relaxed(&table.apis[slot])
    cdef int32_t i
    if api is NULL:
        api = <ApiMetrics *>calloc(1, sizeof(ApiMetrics))
        if api is NULL:
            return
        atomic_store(&table.apis[slot], <int64_t>api)
    count(&api.count, 1)
    count(&api.request_bytes, request.size_bytes - kafka.header_bytes)
    count(&api.response_bytes, request.response_bytes)
    count(&api.network_ns, request.network_ns)
    if 0 <= kafka.api_version < VERSION_SLOTS:
        count(&api.by_version[kafka.api_version], 1)
    if request.action != ACTION_NO_OP:
        for i in range(kafka.error_kinds):
            count(&api.errors[error_slot(kafka.errors[i].code)], kafka.errors[i].count)
    for i in range(TIME_MESSAGE_CONVERSIONS):
        note_time(api, i, us[i])
    if us[TIME_MESSAGE_CONVERSIONS] > 0:
        note_time(api, TIME_MESSAGE_CONVERSIONS, us[TIME_MESSAGE_CONVERSIONS])


cdef inline int32_t error_slot(int32_t code) noexcept nogil:
    return code + 1 if -1 <= code < ERROR_SLOTS - 2 else ERROR_SLOTS - 1


cdef bint request_times(Request *request, int64_t *us) noexcept nogil:
    """Split the time of a completed request into microseconds by kind; false: it was never handled."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int64_t dequeued, local, ready, picked, asynchronous, throttle_ms = 0
    cdef int32_t i
    if request.dequeue_ns == 0 or not 0 <= kafka.api_key < SLOT_FETCH_CONSUMER:
        return False                # its header is unknown
    dequeued = request.dequeue_ns
    local = or_before(kafka.local_done_ns, dequeued)
    ready = or_before(request.response_ready_ns, local)
    picked = or_before(request.response_dequeue_ns, ready)
    asynchronous = kafka.callback_done_ns - kafka.callback_dequeue_ns
    for i in range(THROTTLE_KINDS):
        if kafka.throttle_ms[i] > throttle_ms:
            throttle_ms = kafka.throttle_ms[i]
    us[TIME_REQUEST_QUEUE] = (dequeued - request.start_ns) // 1000
    us[TIME_LOCAL] = (local - dequeued + asynchronous) // 1000
    us[TIME_REMOTE] = (ready - local - asynchronous) // 1000
    us[TIME_THROTTLE] = throttle_ms * 1000
    us[TIME_RESPONSE_QUEUE] = (picked - ready) // 1000
    us[TIME_RESPONSE_SEND] = (request.response_sent_ns - picked) // 1000
    us[TIME_TOTAL] = (request.response_sent_ns - request.start_ns) // 1000
    us[TIME_MESSAGE_CONVERSIONS] = (kafka.conversion_ns + 999) // 1000
    return True


cdef void metrics_record(MetricsTable *table, Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef int64_t us[TIME_KINDS]
    if not request_times(request, us):
        return
    record_into(table, kafka.api_key, request, us)
    if kafka.metric_slot != 0:
        record_into(table, kafka.metric_slot, request, us)


@cython.final
cdef class RequestMetrics:
    """Request metrics of one network thread: pass it to its Processor, read it from any thread.

    Threads: any reads; a request that is being recorded may be counted in part.
    """

    def __cinit__(self):
        self.table = <MetricsTable *>calloc(1, sizeof(MetricsTable))
        if self.table is NULL:
            raise MemoryError
        atomic_store(&self.table.refs, 1)

    def __dealloc__(self):
        metrics_release(self.table)

    def snapshot(self):
        """Return {slot: figures} of the APIs with requests; slot is the API key, FETCH_CONSUMER or FETCH_FOLLOWER.

        Figures: ``count``, ``request_bytes``, ``response_bytes``, ``network_ns``; ``versions`` and ``errors`` (number
        by code, None for all unknown codes); ``times``: for each name of TIMES a pair (sum in ms, number of requests in
        each bucket; the buckets' upper bounds are BOUNDS_MS, then infinity).
        """
        cdef ApiMetrics *api
        cdef int32_t slot, kind, i
        found = {}
        for slot in range(METRIC_SLOTS):
            api = <ApiMetrics *>atomic_load(&self.table.apis[slot])
            if api is NULL:
                continue
            found[slot] = {
                "count": atomic_load_relaxed(&api.count),
                "request_bytes": atomic_load_relaxed(&api.request_bytes),
                "response_bytes": atomic_load_relaxed(&api.response_bytes),
                "network_ns": atomic_load_relaxed(&api.network_ns),
                "versions": nonzero(api.by_version, VERSION_SLOTS, 0),
                "errors": nonzero(api.errors, ERROR_SLOTS, -1),
                "times": {
                    TIMES[kind]: (
                        <double>atomic_load_relaxed(&api.sum_us[kind]) / 1000,
                        [atomic_load_relaxed(&api.buckets[kind][i]) for i in range(TIME_BUCKETS)],
                    )
                    for kind in range(TIME_KINDS)
                },
            }
        return found


cdef dict nonzero(AtomicI64 *counters, int32_t size, int32_t first):
    cdef int32_t i
    cdef int64_t n
    found = {}
    for i in range(size):
        n = atomic_load_relaxed(&counters[i])
        if n:
            found[None if size == ERROR_SLOTS and i == size - 1 else i + first] = n
    return found


# ---------------------------------------------------- samples

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
