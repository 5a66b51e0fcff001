"""Request metrics of one network thread, written without GIL or lock when a request completes."""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.network.loop_types cimport count
from kbroker._core.requests.request cimport ACTION_NO_OP, Request
from kbroker._core.sync cimport AtomicI64, atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store
from kbroker.network._kafka_request cimport THROTTLE_KINDS, KafkaRequest, kafka_request


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


cdef inline int64_t or_before(int64_t stamp, int64_t fallback) noexcept nogil:
    """Return the stamp, or that of the previous step if it was never set: the step then took no time."""
    return stamp if stamp != 0 else fallback


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
