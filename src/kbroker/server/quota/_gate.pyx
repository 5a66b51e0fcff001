# cython: freethreading_compatible=True
"""Charging native requests: bytes and time, the larger of two delays, the network time at the end.

Source: ``KafkaApis.handleProduceRequest``, ``KafkaApis.handleFetchRequest``, ``RequestHandlerHelper``,
``ClientRequestQuotaManager``.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

from kbroker._core.request cimport Request
from kbroker._core.sensor_core cimport sensor_record
from kbroker.server.quota._counters cimport (
    KIND_FETCH, KIND_PRODUCE, KIND_REQUEST, PERCENT_PER_NS, THROTTLE_SERVED, ClientSensors, QuotaManager,
    count_for_request, epoch_ms_of, is_enabled, max_value_in_window, quotas_release, quotas_retain,
    record_and_get_throttle, sensors_of_request, sensors_release,
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
    if request.response_sent_ns != 0 and request.network_ns > 0:   # of a run, the first request carries it all
        sensor_record(sensors.quota, <double>request.network_ns * PERCENT_PER_NS,
                      epoch_ms_of(sensors.clock, request.response_sent_ns), False, NULL)
    sensors_release(sensors)


cdef void charge_exempt(Request *request) noexcept nogil:
    cdef ClientQuotas *quotas = <ClientQuotas *>request.network_account
    if request.response_sent_ns != 0 and request.network_ns > 0:
        sensor_record(quotas.exempt, <double>request.network_ns * PERCENT_PER_NS,
                      epoch_ms_of(quotas.clock, request.response_sent_ns), False, NULL)
    quotas_release(quotas)


# ---------------------------------------------------------------- charges

cdef struct Charge:             # against one manager
    ClientSensors *sensors      # NULL: the manager has no quota
    bint is_counted
    int32_t throttle_ms


cdef inline void clear(Charge *charge) noexcept nogil:
    charge.sensors = NULL
    charge.is_counted = False
    charge.throttle_ms = 0


cdef inline void give_back(Charge *charge) noexcept nogil:
    if charge.is_counted:
        sensors_release(charge.sensors)


cdef inline void find(Charge *charge, QuotaManager *manager, ClientCache *cache, Request *request,
                      int64_t now_ms) noexcept nogil:
    charge.sensors = sensors_of_request(manager, cache, request, now_ms, &charge.is_counted)


cdef inline void charge_bytes(Charge *charge, QuotaManager *manager, ClientCache *cache, Request *request,
                              int64_t size_bytes, int64_t now_ms) noexcept nogil:
    clear(charge)
    if not is_enabled(manager):
        return
    find(charge, manager, cache, request, now_ms)
    if charge.sensors != NULL:
        charge.throttle_ms = record_and_get_throttle(manager, charge.sensors, <double>size_bytes, now_ms)
        request.throttle_ms[manager.kind] = charge.throttle_ms


cdef inline void charge_time(Charge *charge, ClientQuotas *quotas, ClientCache *cache, Request *request,
                             int64_t now_ns, int64_t now_ms) noexcept nogil:
    """The handler's time now, the network threads' when the request ends."""
    cdef QuotaManager *manager = &quotas.managers[KIND_REQUEST]
    clear(charge)
    if not is_enabled(manager):
        return
    find(charge, manager, cache, request, now_ms)
    if charge.sensors == NULL:
        return
    if request.charge_network == NULL:
        count_for_request(manager, cache, charge.sensors, charge.is_counted)
        request.network_account = charge.sensors
        request.charge_network = charge_client
    charge.throttle_ms = record_and_get_throttle(manager, charge.sensors, handler_percent(request, now_ns), now_ms)
    request.throttle_ms[KIND_REQUEST] = charge.throttle_ms


cdef inline int32_t serve(ClientQuotas *quotas, int kind, Request *request, Charge *bandwidth, Charge *time,
                          int64_t now_ms) noexcept nogil:
    """Throttle by the larger of two delays, once; gives the counters back."""
    cdef int32_t longest_ms = max(bandwidth.throttle_ms, time.throttle_ms, 0)
    if longest_ms > 0:
        request.throttle_ms[THROTTLE_SERVED] = longest_ms
        if bandwidth.throttle_ms > time.throttle_ms:
            throttle_channel(quotas, &quotas.managers[kind], bandwidth.sensors, request, longest_ms, now_ms)
        else:
            throttle_channel(quotas, &quotas.managers[KIND_REQUEST], time.sensors, request, longest_ms, now_ms)
    give_back(bandwidth)
    give_back(time)
    return longest_ms


cdef int32_t gate_produce(ClientQuotas *quotas, ClientCache *cache, Request *request, bint has_answer,
                          int64_t now_ns) noexcept nogil:
    cdef Charge bandwidth, time
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    charge_bytes(&bandwidth, &quotas.managers[KIND_PRODUCE], cache, request, request.size_bytes, now_ms)
    if has_answer:
        charge_time(&time, quotas, cache, request, now_ns, now_ms)
    else:
        clear(&time)
        gate_exempt(quotas, request, now_ns)
    return serve(quotas, KIND_PRODUCE, request, &bandwidth, &time, now_ms)


cdef int32_t gate_fetch(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t response_bytes,
                        int64_t now_ns) noexcept nogil:
    cdef Charge bandwidth, time
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    charge_time(&time, quotas, cache, request, now_ns, now_ms)
    charge_bytes(&bandwidth, &quotas.managers[KIND_FETCH], cache, request, response_bytes, now_ms)
    if bandwidth.throttle_ms > 0 or time.throttle_ms > 0:
        if bandwidth.sensors == NULL:       # given back although nobody counted it, as Kafka does
            find(&bandwidth, &quotas.managers[KIND_FETCH], cache, request, now_ms)
        if bandwidth.sensors != NULL:
            sensor_record(bandwidth.sensors.quota, -<double>response_bytes, now_ms, False, NULL)
    return serve(quotas, KIND_FETCH, request, &bandwidth, &time, now_ms)


cdef int32_t gate_request(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t now_ns) noexcept nogil:
    cdef Charge none, time
    cdef int64_t now_ms
    if not quotas_are_set(quotas):
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    clear(&none)
    charge_time(&time, quotas, cache, request, now_ns, now_ms)
    return serve(quotas, KIND_REQUEST, request, &none, &time, now_ms)


cdef int32_t charge_request(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil:
    cdef Charge time
    charge_time(&time, quotas, NULL, request, now_ns, epoch_ms_of(quotas.clock, now_ns))
    give_back(&time)
    return time.throttle_ms


cdef void throttle_request(ClientQuotas *quotas, QuotaManager *manager, Request *request, int32_t throttle_ms,
                           int64_t now_ns) noexcept nogil:
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, now_ns)
    cdef Charge by
    find(&by, manager, NULL, request, now_ms)
    request.throttle_ms[manager.kind] = throttle_ms
    request.throttle_ms[THROTTLE_SERVED] = throttle_ms
    throttle_channel(quotas, manager, by.sensors, request, throttle_ms, now_ms)
    give_back(&by)


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
    cdef Charge by
    cdef double most
    if not quotas_are_set(quotas) or not is_enabled(&quotas.managers[KIND_FETCH]):
        return INT32_MAX
    manager = &quotas.managers[KIND_FETCH]
    find(&by, manager, cache, request, epoch_ms_of(quotas.clock, now_ns))
    if by.sensors == NULL:
        return INT32_MAX
    most = max_value_in_window(manager, by.sensors)
    give_back(&by)
    return INT32_MAX if most >= INT32_MAX else <int32_t>most
