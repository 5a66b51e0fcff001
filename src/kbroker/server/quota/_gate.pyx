# cython: freethreading_compatible=True
"""Charging native requests: bytes and time, the larger of two delays, the network time at the end.

Source: ``KafkaApis.handleProduceRequest``, ``KafkaApis.handleFetchRequest``, ``RequestHandlerHelper``,
``ClientRequestQuotaManager``.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

from kbroker._core.request cimport Request
from kbroker._core.sensor_core cimport sensor_record
from kbroker.server.quota._counters cimport (
    KIND_FETCH, KIND_PRODUCE, KIND_REQUEST, PERCENT_PER_NS, THROTTLE_SERVED, ClientSensors, QuotaManager, epoch_ms_of,
    is_enabled, max_value_in_window, quotas_release, quotas_retain, record_and_get_throttle, sensors_of_request,
    sensors_release, sensors_retain,
)
from kbroker.server.quota._throttled cimport throttle_channel


cdef void store_throttle(char *at, int32_t throttle_ms) noexcept nogil:
    cdef uint32_t value = <uint32_t>throttle_ms
    at[0] = <char>(value >> 24)
    at[1] = <char>(value >> 16)
    at[2] = <char>(value >> 8)
    at[3] = <char>value


cdef inline double handler_percent(Request *request, int64_t now_ns) noexcept nogil:
    """Handler time as percent of a thread and second; reading it ends the local time."""
    if request.local_done_ns == 0:
        request.local_done_ns = now_ns
    return <double>max(request.local_done_ns - request.dequeue_ns, 0) * PERCENT_PER_NS


# ---------------------------------------------------------------- network time, at the end of a request

cdef void charge_client(Request *request) noexcept nogil:
    cdef ClientSensors *sensors = <ClientSensors *>request.network_account
    if request.response_sent_ns != 0:
        sensor_record(sensors.quota, <double>request.network_ns * PERCENT_PER_NS,
                      epoch_ms_of(sensors.clock, request.response_sent_ns), False, NULL)
    sensors_release(sensors)


cdef void charge_exempt(Request *request) noexcept nogil:
    cdef ClientQuotas *quotas = <ClientQuotas *>request.network_account
    if request.response_sent_ns != 0:
        sensor_record(quotas.exempt, <double>request.network_ns * PERCENT_PER_NS,
                      epoch_ms_of(quotas.clock, request.response_sent_ns), False, NULL)
    quotas_release(quotas)


# ---------------------------------------------------------------- charges

cdef inline int32_t charge_bytes(QuotaManager *manager, ClientCache *cache, Request *request, int64_t size_bytes,
                                 int64_t now_ms, ClientSensors **sensors) noexcept nogil:
    """Bytes against one manager; the counter is the caller's to give back."""
    if not is_enabled(manager):
        return 0
    sensors[0] = sensors_of_request(manager, cache, request, now_ms)
    if sensors[0] == NULL:
        return 0
    request.throttle_ms[manager.kind] = record_and_get_throttle(manager, sensors[0], <double>size_bytes, now_ms)
    return <int32_t>request.throttle_ms[manager.kind]


cdef inline int32_t charge_time(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t now_ns,
                                int64_t now_ms, ClientSensors **sensors) noexcept nogil:
    """The handler's time now, the network threads' when the request ends; the counter is the caller's to give back."""
    cdef QuotaManager *manager = &quotas.managers[KIND_REQUEST]
    if not is_enabled(manager):
        return 0
    sensors[0] = sensors_of_request(manager, cache, request, now_ms)
    if sensors[0] == NULL:
        return 0
    if request.charge_network == NULL:
        request.network_account = sensors_retain(sensors[0])
        request.charge_network = charge_client
    request.throttle_ms[KIND_REQUEST] = record_and_get_throttle(
        manager, sensors[0], handler_percent(request, now_ns), now_ms)
    return <int32_t>request.throttle_ms[KIND_REQUEST]


cdef inline int32_t serve(ClientQuotas *quotas, int kind, Request *request, int32_t bandwidth_ms,
                          ClientSensors *bandwidth, int32_t time_ms, ClientSensors *time,
                          int64_t now_ms) noexcept nogil:
    """Throttle by the larger of two delays, once; gives the counters back."""
    cdef int32_t longest_ms = max(bandwidth_ms, time_ms, 0)
    if longest_ms > 0:
        request.throttle_ms[THROTTLE_SERVED] = longest_ms
        if bandwidth_ms > time_ms:
            throttle_channel(quotas, &quotas.managers[kind], bandwidth, request, bandwidth_ms, now_ms)
        else:
            throttle_channel(quotas, &quotas.managers[KIND_REQUEST], time, request, time_ms, now_ms)
    sensors_release(bandwidth)
    sensors_release(time)
    return longest_ms


cdef int32_t gate_produce(ClientQuotas *quotas, ClientCache *cache, Request *request, bint has_answer,
                          int64_t now_ns) noexcept nogil:
    cdef ClientSensors *bandwidth = NULL
    cdef ClientSensors *time = NULL
    cdef int32_t bandwidth_ms, time_ms = 0
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    bandwidth_ms = charge_bytes(
        &quotas.managers[KIND_PRODUCE], cache, request, request.size_bytes, now_ms, &bandwidth)
    if has_answer:
        time_ms = charge_time(quotas, cache, request, now_ns, now_ms, &time)
    else:
        gate_exempt(quotas, request, now_ns)
    return serve(quotas, KIND_PRODUCE, request, bandwidth_ms, bandwidth, time_ms, time, now_ms)


cdef int32_t gate_fetch(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t response_bytes,
                        int64_t now_ns) noexcept nogil:
    cdef ClientSensors *bandwidth = NULL
    cdef ClientSensors *time = NULL
    cdef int32_t bandwidth_ms, time_ms
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    time_ms = charge_time(quotas, cache, request, now_ns, now_ms, &time)
    bandwidth_ms = charge_bytes(&quotas.managers[KIND_FETCH], cache, request, response_bytes, now_ms, &bandwidth)
    if bandwidth_ms > 0 or time_ms > 0:
        if bandwidth == NULL:       # given back although nobody counted it, as Kafka does
            bandwidth = sensors_of_request(&quotas.managers[KIND_FETCH], cache, request, now_ms)
        if bandwidth != NULL:
            sensor_record(bandwidth.quota, -<double>response_bytes, now_ms, False, NULL)
    return serve(quotas, KIND_FETCH, request, bandwidth_ms, bandwidth, time_ms, time, now_ms)


cdef int32_t gate_request(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t now_ns) noexcept nogil:
    cdef ClientSensors *time = NULL
    cdef int32_t time_ms
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    time_ms = charge_time(quotas, cache, request, now_ns, now_ms, &time)
    return serve(quotas, KIND_REQUEST, request, 0, NULL, time_ms, time, now_ms)


cdef int32_t charge_request(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil:
    cdef ClientSensors *time = NULL
    cdef int32_t time_ms = charge_time(quotas, NULL, request, now_ns, epoch_ms_of(quotas.clock, now_ns), &time)
    sensors_release(time)
    return time_ms


cdef void throttle_request(ClientQuotas *quotas, QuotaManager *manager, Request *request, int32_t throttle_ms,
                           int64_t now_ns) noexcept nogil:
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, now_ns)
    cdef ClientSensors *sensors = sensors_of_request(manager, NULL, request, now_ms)
    request.throttle_ms[manager.kind] = throttle_ms
    request.throttle_ms[THROTTLE_SERVED] = throttle_ms
    throttle_channel(quotas, manager, sensors, request, throttle_ms, now_ms)
    sensors_release(sensors)


cdef void gate_exempt(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil:
    if not quotas_are_set(quotas) or not is_enabled(&quotas.managers[KIND_REQUEST]):
        return
    sensor_record(quotas.exempt, handler_percent(request, now_ns), epoch_ms_of(quotas.clock, now_ns), False, NULL)
    if request.charge_network == NULL:
        request.network_account = quotas_retain(quotas)
        request.charge_network = charge_exempt


cdef int32_t fetch_window_bytes(ClientQuotas *quotas, ClientCache *cache, Request *request,
                                int64_t now_ns) noexcept nogil:
    cdef QuotaManager *manager
    cdef ClientSensors *sensors
    cdef double most
    if not quotas_are_set(quotas) or not is_enabled(&quotas.managers[KIND_FETCH]):
        return INT32_MAX
    manager = &quotas.managers[KIND_FETCH]
    sensors = sensors_of_request(manager, cache, request, epoch_ms_of(quotas.clock, now_ns))
    if sensors == NULL:
        return INT32_MAX
    most = max_value_in_window(manager, sensors)
    sensors_release(sensors)
    return INT32_MAX if most >= INT32_MAX else <int32_t>most
