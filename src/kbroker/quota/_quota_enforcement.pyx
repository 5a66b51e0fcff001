"""Charges of native requests: bytes and time, the larger of two delays, and the network time at the end.

Source: ``KafkaApis.handleProduceRequest``, ``KafkaApis.handleFetchRequest``, ``RequestHandlerHelper``,
``ClientRequestQuotaManager``, ``SensorAccess``.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, int8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strlen

from kbroker._core.codec.bytes cimport store_32
from kbroker._core.metrics.sensor_core cimport (
    NO_CAP, RECORD_ACCEPTED, Violation, metric_used, sensor_is_removed, sensor_record, sensor_record_numbered,
    sensor_record_strict,
)
from kbroker._core.requests.request cimport Request, Session, session_release, session_retain
from kbroker._core.sync cimport atomic_add_fetch, atomic_load, atomic_load_relaxed
from kbroker.common._quota_counter cimport KINDS, judge
from kbroker.network._kafka_request cimport KafkaRequest, kafka_request
from kbroker.quota._client_sensors cimport (
    KIND_FETCH, KIND_MUTATION, KIND_PRODUCE, KIND_REQUEST, PERCENT_PER_NS, SHADOW_TYPE, THROTTLE_SERVED, ClientSensors,
    Judgement, QuotaManager, client_sensors, epoch_ms_of, give_counts, is_enabled, max_value_in_window, quotas_release,
    quotas_retain, quotas_retain_used, record_and_judge, sensors_release, sensors_retain, throttle_channel,
)
from kbroker.common._text cimport Text, same_text, text_at
from kbroker.quota._quota_events cimport (
    EVENT_SHADOW, EVENT_UPDATE, EVENT_VERDICT, QuotaEvent, QuotaEvents, VerdictEvent, publish_verdicts,
    quota_event_at, quota_events_add,
)

cdef struct Charge:             # of a request to one manager
    ClientSensors *sensors      # NULL: the manager has no quota
    int64_t generation          # of the manager's quotas, by which they were found
    bint is_counted
    int32_t throttle_ms
    Judgement judgement


cdef enum:
    # counts on a counter that a handler thread takes at once and passes to its requests one by one
    COUNTS_AT_ONCE = 1024


cdef Text user_of(const Session *session) noexcept nogil:
    """Return the principal's name without "User:"."""
    cdef Text user
    cdef const char *at
    user.data = NULL
    user.size_bytes = 0
    if session == NULL:
        return user
    at = session.principal
    while at[0] != 0 and at[0] != c':':
        at += 1
    user.data = at + 1 if at[0] != 0 else session.principal
    user.size_bytes = <int32_t>strlen(user.data)
    return user


cdef inline Text client_id_of(Request *request) noexcept nogil:
    """Return the client id; a null one counts as empty."""
    cdef KafkaRequest *kafka = kafka_request(request)
    cdef Text client_id
    client_id.data = kafka.client_id
    client_id.size_bytes = kafka.client_id_bytes if kafka.client_id != NULL else 0
    return client_id


cdef ClientCache *client_cache_new() noexcept nogil:
    return <ClientCache *>calloc(1, sizeof(ClientCache))


cdef void client_cache_free(ClientCache *cache) noexcept nogil:
    cdef int i
    if cache == NULL:
        return
    for i in range(CACHED_CLIENTS):
        forget(&cache.clients[i])
    free(cache)


cdef void forget(CachedClient *client) noexcept nogil:
    cdef int place
    for place in range(2 * KINDS):
        forget_sensors(client, place)
    session_release(client.session)
    client.session = NULL


cdef inline void forget_sensors(CachedClient *client, int place) noexcept nogil:
    give_counts(client.sensors[place], 1 + client.spare_counts[place])
    client.sensors[place] = NULL
    client.spare_counts[place] = 0


cdef inline uint64_t small_hash(const char *data, int64_t size_bytes) noexcept nogil:
    """Hash the first and the last eight bytes, which is good enough for 64 slots."""
    cdef uint64_t first = 0, last = 0
    cdef size_t n = <size_t>(size_bytes if size_bytes < 8 else 8)
    if size_bytes > 0:
        memcpy(&first, data, n)
        memcpy(&last, data + size_bytes - n, n)
    return ((first * <uint64_t>0x9E3779B97F4A7C15) ^ last) * <uint64_t>0xBF58476D1CE4E5B9 >> 40


cdef inline bint is_of(const CachedClient *client, const Request *request, Text client_id) noexcept nogil:
    return client.session == request.session and same_text(text_at(client.client_id, client.client_id_bytes), client_id)


cdef inline CachedClient *cached_client(ClientCache *cache, Request *request, Text client_id) noexcept nogil:
    """Return the entry of a request's client, usually the entry that the previous request used."""
    cdef CachedClient *client = cache.latest
    if client != NULL and is_of(client, request, client_id):
        return client
    client = &cache.clients[small_hash(client_id.data, client_id.size_bytes) & (CACHED_CLIENTS - 1)]
    cache.latest = client
    if not is_of(client, request, client_id):
        forget(client)
        client.session = session_retain(request.session)
        client.client_id_bytes = <int32_t>client_id.size_bytes
        if client_id.size_bytes > 0:
            memcpy(client.client_id, client_id.data, <size_t>client_id.size_bytes)
    return client


cdef void find(Charge *charge, QuotaManager *manager, ClientCache *cache, Request *request,
               int64_t now_ms) noexcept nogil:
    """Look up the counter of a request's client, as Kafka does before each record.

    The counter that an earlier look-up returned may be freed.
    """
    cdef Text client_id = client_id_of(request)
    cdef CachedClient *client
    # read first: the look-up returns the counter of this generation or of a later one
    charge.generation = atomic_load(&manager.generation)
    charge.is_counted = cache == NULL or client_id.size_bytes > CACHED_ID_BYTES or request.session == NULL
    if charge.is_counted:
        charge.sensors = client_sensors(manager, user_of(request.session), client_id, now_ms)
        return
    client = cached_client(cache, request, client_id)
    charge.sensors = client.sensors[manager.place]
    if charge.sensors != NULL and (
            client.generation[manager.place] != charge.generation or sensor_is_removed(charge.sensors.quota)):
        forget_sensors(client, manager.place)
        charge.sensors = NULL
    if charge.sensors == NULL:
        charge.sensors = client_sensors(manager, user_of(request.session), client_id, now_ms)
        client.sensors[manager.place] = charge.sensors
        client.generation[manager.place] = charge.generation


cdef void count_for_request(QuotaManager *manager, ClientCache *cache, ClientSensors *sensors,
                            bint is_counted) noexcept nogil:
    cdef int64_t *spare
    if is_counted:
        sensors_retain(sensors)
        return
    spare = &cache.latest.spare_counts[manager.place]
    if spare[0] == 0:
        atomic_add_fetch(&sensors.refs, COUNTS_AT_ONCE)
        spare[0] = COUNTS_AT_ONCE
    spare[0] -= 1


cdef void store_throttle(char *at, int32_t throttle_ms) noexcept nogil:
    store_32(at, throttle_ms)


cdef inline double handler_percent(Request *request, int64_t now_ns) noexcept nogil:
    """Return handler time as percent of a thread and second; this ends the local time."""
    cdef KafkaRequest *kafka = kafka_request(request)
    if kafka.local_done_ns == 0:
        kafka.local_done_ns = now_ns
    return <double>max(kafka.local_done_ns - request.dequeue_ns, 0) * PERCENT_PER_NS


# ---------------------------------------------------------------- notes for the request log, and verdicts

cdef void note_update(Request *request, int kind, ClientSensors *sensors, int64_t sequence, int64_t now_ms,
                      double value, bint is_checked) noexcept nogil:
    """Note a recorded value, from which a reader of the request log can replay the counter; only with a request log."""
    cdef QuotaEvent *note = quota_events_add(request, EVENT_UPDATE, sensors.user, sensors.client_id)
    if note != NULL:
        note.quota_type = <int8_t>kind
        note.flag = is_checked
        note.sequence = sequence
        note.time_ms = now_ms
        note.value = value


cdef void note_verdict(Request *request, const QuotaManager *manager, ClientSensors *sensors,
                       const Judgement *judgement, int64_t now_ms, int64_t served_ms, bint refuses) noexcept nogil:
    cdef VerdictEvent *verdict
    cdef int event = EVENT_SHADOW if manager.is_shadow else EVENT_VERDICT
    verdict = <VerdictEvent *>quota_events_add(request, event, sensors.user, sensors.client_id)
    if verdict == NULL:
        return
    verdict.note.quota_type = <int8_t>manager.kind
    verdict.note.level = <int8_t>atomic_load_relaxed(&sensors.level)
    verdict.note.flag = refuses
    verdict.note.sequence = judgement.sequence
    verdict.note.time_ms = now_ms
    verdict.note.value = judgement.observed
    verdict.limit = judgement.limit
    verdict.window_ms = judgement.window_ms
    verdict.asked_ms = judgement.asked_ms
    verdict.served_ms = served_ms


cdef void note_served(Request *request, const QuotaManager *manager, int64_t served_ms) noexcept nogil:
    """Note the throttle time sent to the client in the longest verdict of the manager that set it."""
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka_request(request).quota_events
    cdef int event = EVENT_SHADOW if manager.is_shadow else EVENT_VERDICT
    cdef QuotaEvent *note = quota_event_at(quota_events, 0)
    cdef VerdictEvent *longest = NULL
    cdef int32_t at = 0
    while note != NULL:
        if note.kind == event and note.quota_type == manager.kind and (
                longest == NULL or (<VerdictEvent *>note).asked_ms > longest.asked_ms):
            longest = <VerdictEvent *>note
        at += note.size_bytes
        note = quota_event_at(quota_events, at)
    if longest != NULL:
        longest.served_ms = served_ms


cdef void settle_verdicts(ClientQuotas *quotas, Request *request) noexcept nogil:
    publish_verdicts(&quotas.verdicts, &quotas.shadow_verdicts, request)


# ---------------------------------------------------------------- network time, at the end of a request

cdef ClientSensors *find_again(ClientSensors *sensors, Request *request, int64_t now_ms) noexcept nogil:
    """Return the client's present counter in exchange for a counter and the caller's count on it; else that counter."""
    cdef QuotaManager *manager = sensors.manager
    cdef ClientSensors *found = NULL
    if quotas_retain_used(manager.quotas):
        found = client_sensors(manager, user_of(request.session), client_id_of(request), now_ms)
        quotas_release(manager.quotas)
    if found == NULL:
        return sensors
    sensors_release(sensors)
    return found


cdef inline void charge_network_time(Request *request, ClientSensors *sensors, int64_t generation,
                                     bint notes) noexcept nogil:
    cdef QuotaManager *manager = sensors.manager
    cdef int64_t sequence, now_ms
    cdef double percent
    # the first request of a batch of responses has the network time of all of them
    if request.response_sent_ns != 0 and request.network_ns > 0:
        percent = <double>request.network_ns * PERCENT_PER_NS
        now_ms = epoch_ms_of(manager.quotas.clock, request.response_sent_ns)
        if atomic_load(&manager.generation) != generation or sensor_is_removed(sensors.quota):
            sensors = find_again(sensors, request, now_ms)
        sensor_record_numbered(sensors.quota, percent, now_ms, False, NULL, &sequence)
        if notes:
            note_update(request, KIND_REQUEST, sensors, sequence, now_ms, percent, False)
    sensors_release(sensors)


cdef void charge_shadow(Request *request) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    if kafka.shadow_account != NULL:
        charge_network_time(request, <ClientSensors *>kafka.shadow_account, kafka.shadow_generation, False)
        kafka.shadow_account = NULL


cdef inline void charge_accounts(Request *request, bint notes) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    charge_network_time(request, <ClientSensors *>kafka.network_account, kafka.network_generation, notes)
    charge_shadow(request)


cdef void charge_client(Request *request) noexcept nogil:
    charge_accounts(request, False)


cdef void charge_and_note_client(Request *request) noexcept nogil:
    charge_accounts(request, True)


cdef void charge_exempt(Request *request) noexcept nogil:
    cdef ClientQuotas *quotas = <ClientQuotas *>kafka_request(request).network_account
    if request.response_sent_ns != 0 and request.network_ns > 0:
        sensor_record(quotas.exempt, <double>request.network_ns * PERCENT_PER_NS,
                      epoch_ms_of(quotas.clock, request.response_sent_ns), False, NULL)
    quotas_release(quotas)
    charge_shadow(request)


# ---------------------------------------------------------------- charges

cdef inline bint notes_updates(ClientQuotas *quotas) noexcept nogil:
    return atomic_load_relaxed(&quotas.notes_updates) != 0


cdef inline void clear(Charge *charge) noexcept nogil:
    charge.judgement.asked_ms = 0
    charge.sensors = NULL
    charge.is_counted = False
    charge.throttle_ms = 0


cdef inline void give_back(Charge *charge) noexcept nogil:
    if charge.is_counted:
        sensors_release(charge.sensors)


cdef inline void record(Charge *charge, ClientQuotas *quotas, QuotaManager *manager, Request *request, double value,
                        int64_t now_ms) noexcept nogil:
    charge.throttle_ms = record_and_judge(manager, charge.sensors, value, now_ms, &charge.judgement)
    if manager.is_shadow:
        return
    kafka_request(request).throttle_ms[manager.kind] = charge.throttle_ms
    if notes_updates(quotas):
        note_update(request, manager.kind, charge.sensors, charge.judgement.sequence, now_ms, value, True)


cdef inline void charge_bytes(Charge *charge, ClientQuotas *quotas, QuotaManager *manager, ClientCache *cache,
                              Request *request, int64_t size_bytes, int64_t now_ms) noexcept nogil:
    clear(charge)
    if not is_enabled(manager):
        return
    find(charge, manager, cache, request, now_ms)
    if charge.sensors != NULL:
        record(charge, quotas, manager, request, <double>size_bytes, now_ms)


cdef inline bint has_no_account(const KafkaRequest *kafka) noexcept nogil:
    """Return whether neither an enforced quota nor exempt time is charged when the request ends."""
    return kafka.charge_network == NULL or kafka.charge_network == charge_shadow


cdef inline void charge_network_later(ClientQuotas *quotas, QuotaManager *manager, ClientCache *cache,
                                      Request *request, const Charge *charge) noexcept nogil:
    """Register the charge of a request's network time at its end; only once, however often the request is judged."""
    cdef KafkaRequest *kafka = kafka_request(request)
    if manager.is_shadow:
        if kafka.shadow_account != NULL:
            return
        count_for_request(manager, cache, charge.sensors, charge.is_counted)
        kafka.shadow_account = charge.sensors
        kafka.shadow_generation = charge.generation
        if kafka.charge_network == NULL:
            kafka.charge_network = charge_shadow
    elif has_no_account(kafka):
        count_for_request(manager, cache, charge.sensors, charge.is_counted)
        kafka.network_account = charge.sensors
        kafka.network_generation = charge.generation
        kafka.charge_network = charge_and_note_client if notes_updates(quotas) else charge_client


cdef inline void charge_time(Charge *charge, ClientQuotas *quotas, QuotaManager *managers, ClientCache *cache,
                             Request *request, int64_t now_ns, int64_t now_ms) noexcept nogil:
    """Charge the handler's time now, and the network threads' time when the request ends."""
    cdef QuotaManager *manager = &managers[KIND_REQUEST]
    clear(charge)
    if not is_enabled(manager):
        return
    find(charge, manager, cache, request, now_ms)
    if charge.sensors == NULL:
        return
    charge_network_later(quotas, manager, cache, request, charge)
    record(charge, quotas, manager, request, handler_percent(request, now_ns), now_ms)


cdef void throttle(ClientQuotas *quotas, QuotaManager *manager, ClientCache *cache, Request *request,
                   int64_t throttle_ms, int64_t now_ms) noexcept nogil:
    """Record a throttle time at the client's counter; an enforced quota also throttles the channel."""
    cdef Charge by
    find(&by, manager, cache, request, now_ms)
    if not manager.is_shadow:
        kafka_request(request).throttle_ms[THROTTLE_SERVED] = throttle_ms
        throttle_channel(quotas, manager, by.sensors, request, throttle_ms, now_ms)
    elif by.sensors != NULL:
        sensor_record(by.sensors.throttle_time, <double>throttle_ms, now_ms, False, NULL)
    give_back(&by)


cdef inline int32_t serve(ClientQuotas *quotas, QuotaManager *managers, int kind, ClientCache *cache, Request *request,
                          Charge *bandwidth, Charge *time, int64_t now_ms) noexcept nogil:
    """Throttle once, by the larger of two delays, and release the counters; return the delay. Shadows delay nothing."""
    cdef int32_t longest_ms = max(bandwidth.throttle_ms, time.throttle_ms, 0)
    cdef bint bandwidth_wins = bandwidth.throttle_ms > time.throttle_ms
    if longest_ms > 0:
        if bandwidth.judgement.asked_ms > 0:
            note_verdict(request, &managers[kind], bandwidth.sensors, &bandwidth.judgement, now_ms,
                         longest_ms if bandwidth_wins else 0, False)
        if time.judgement.asked_ms > 0:
            note_verdict(request, &managers[KIND_REQUEST], time.sensors, &time.judgement, now_ms,
                         0 if bandwidth_wins else longest_ms, False)
        settle_verdicts(quotas, request)
    give_back(bandwidth)
    give_back(time)
    if longest_ms > 0:
        throttle(quotas, &managers[kind if bandwidth_wins else KIND_REQUEST], cache, request, longest_ms, now_ms)
    return longest_ms


cdef inline int32_t judge_produce(ClientQuotas *quotas, QuotaManager *managers, ClientCache *cache, Request *request,
                                  bint has_response, int64_t now_ns, int64_t now_ms) noexcept nogil:
    cdef Charge bandwidth, time
    charge_bytes(&bandwidth, quotas, &managers[KIND_PRODUCE], cache, request, request.size_bytes, now_ms)
    if has_response:
        charge_time(&time, quotas, managers, cache, request, now_ns, now_ms)
    else:
        clear(&time)
    return serve(quotas, managers, KIND_PRODUCE, cache, request, &bandwidth, &time, now_ms)


cdef int32_t gate_produce(ClientQuotas *quotas, ClientCache *cache, Request *request, bint has_response,
                          int64_t now_ns) noexcept nogil:
    cdef int64_t types = set_types(quotas), now_ms
    if types == 0:
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    if types >= SHADOW_TYPE:
        judge_produce(quotas, quotas.shadows, cache, request, has_response, now_ns, now_ms)
    if not has_response:
        gate_exempt(quotas, request, now_ns)
    return judge_produce(quotas, quotas.managers, cache, request, has_response, now_ns, now_ms)


cdef inline bint uses_half(QuotaManager *manager, ClientCache *cache, Request *request, int64_t size_bytes,
                           int64_t now_ms) noexcept nogil:
    """Return whether a client would use at most half of its quota of one type."""
    cdef Charge by
    cdef bint is_kept
    if not is_enabled(manager):
        return True
    find(&by, manager, cache, request, now_ms)
    if by.sensors == NULL:
        return True
    is_kept = metric_used(by.sensors.limited, now_ms) + <double>size_bytes / max_value_in_window(
        manager, by.sensors) <= 0.5
    give_back(&by)
    return is_kept


cdef bint has_headroom(ClientQuotas *quotas, ClientCache *cache, Request *head, int64_t earlier_bytes,
                       int64_t now_ns) noexcept nogil:
    cdef Text client_id
    cdef Request *request = head
    cdef int64_t now_ms, size_bytes = earlier_bytes
    if not quotas_are_set(quotas):
        return True
    client_id = client_id_of(head)
    while request != NULL:
        if not same_text(client_id_of(request), client_id):
            return False
        size_bytes += request.size_bytes
        request = request.batch_next
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    return (uses_half(&quotas.managers[KIND_PRODUCE], cache, head, size_bytes, now_ms)
            and uses_half(&quotas.managers[KIND_REQUEST], cache, head, 0, now_ms))


cdef inline void unrecord(Charge *charge, ClientQuotas *quotas, QuotaManager *manager, ClientCache *cache,
                          Request *request, int64_t size_bytes, int64_t now_ms) noexcept nogil:
    """Subtract the bytes of a response that is sent empty, even if they were never counted, as Kafka does."""
    cdef int64_t sequence
    find(charge, manager, cache, request, now_ms)
    if charge.sensors != NULL:
        sensor_record_numbered(charge.sensors.quota, -<double>size_bytes, now_ms, False, NULL, &sequence)
        if notes_updates(quotas) and not manager.is_shadow:
            note_update(request, KIND_FETCH, charge.sensors, sequence, now_ms, -<double>size_bytes, False)
    give_back(charge)


cdef inline int32_t judge_fetch(ClientQuotas *quotas, QuotaManager *managers, ClientCache *cache, Request *request,
                                int64_t response_bytes, int64_t now_ns, int64_t now_ms) noexcept nogil:
    cdef Charge bandwidth, time
    cdef int32_t throttle_ms
    cdef QuotaManager *manager = &managers[KIND_FETCH]
    charge_time(&time, quotas, managers, cache, request, now_ns, now_ms)
    charge_bytes(&bandwidth, quotas, manager, cache, request, response_bytes, now_ms)
    throttle_ms = serve(quotas, managers, KIND_FETCH, cache, request, &bandwidth, &time, now_ms)
    if throttle_ms > 0:
        unrecord(&bandwidth, quotas, manager, cache, request, response_bytes, now_ms)
    return throttle_ms


cdef int32_t gate_fetch(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t response_bytes,
                        int64_t now_ns) noexcept nogil:
    cdef int64_t types = set_types(quotas), now_ms
    if types == 0:
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    if types >= SHADOW_TYPE:
        judge_fetch(quotas, quotas.shadows, cache, request, response_bytes, now_ns, now_ms)
    return judge_fetch(quotas, quotas.managers, cache, request, response_bytes, now_ns, now_ms)


cdef inline int32_t judge_request(ClientQuotas *quotas, QuotaManager *managers, ClientCache *cache, Request *request,
                                  int64_t now_ns, int64_t now_ms) noexcept nogil:
    cdef Charge none, time
    clear(&none)
    charge_time(&time, quotas, managers, cache, request, now_ns, now_ms)
    return serve(quotas, managers, KIND_REQUEST, cache, request, &none, &time, now_ms)


cdef int32_t gate_request(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t now_ns) noexcept nogil:
    cdef int64_t types = set_types(quotas), now_ms
    if types == 0:
        return 0
    now_ms = epoch_ms_of(quotas.clock, now_ns)
    if types >= SHADOW_TYPE:
        judge_request(quotas, quotas.shadows, cache, request, now_ns, now_ms)
    return judge_request(quotas, quotas.managers, cache, request, now_ns, now_ms)


cdef int32_t charge_request(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil:
    cdef Charge time
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, now_ns)
    cdef QuotaManager *managers = quotas.shadows
    while True:
        charge_time(&time, quotas, managers, NULL, request, now_ns, now_ms)
        if time.judgement.asked_ms > 0:
            note_verdict(request, &managers[KIND_REQUEST], time.sensors, &time.judgement, now_ms, 0, False)
        give_back(&time)
        if not managers.is_shadow:
            return time.throttle_ms
        managers = quotas.managers


cdef void serve_shadows(ClientQuotas *quotas, Request *request, bint serves_mutations, int64_t now_ns) noexcept nogil:
    cdef QuotaEvents *quota_events = <QuotaEvents *>kafka_request(request).quota_events
    cdef QuotaEvent *note
    cdef QuotaManager *manager
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, now_ns), time_ms = 0, mutations_ms = 0, cap_ms
    cdef int32_t at = 0
    note = quota_event_at(quota_events, at)
    while note != NULL:
        if note.kind != EVENT_SHADOW:
            pass
        elif note.quota_type != KIND_MUTATION:
            cap_ms = quotas.shadows[KIND_REQUEST].cap_ms
            time_ms = min((<VerdictEvent *>note).asked_ms, cap_ms)
        elif serves_mutations:      # the last one counts, less the time since
            mutations_ms = max((<VerdictEvent *>note).asked_ms - (now_ms - note.time_ms), 0)
        at += note.size_bytes
        note = quota_event_at(quota_events, at)
    if mutations_ms <= 0 and time_ms <= 0:
        return
    manager = &quotas.shadows[KIND_MUTATION if mutations_ms > time_ms else KIND_REQUEST]
    note_served(request, manager, max(mutations_ms, time_ms))
    throttle(quotas, manager, NULL, request, max(mutations_ms, time_ms), now_ms)


cdef void throttle_request(ClientQuotas *quotas, QuotaManager *manager, Request *request, int32_t throttle_ms,
                           int64_t now_ns) noexcept nogil:
    kafka_request(request).throttle_ms[manager.kind] = throttle_ms
    note_served(request, manager, throttle_ms)
    throttle(quotas, manager, NULL, request, throttle_ms, epoch_ms_of(quotas.clock, now_ns))


cdef int32_t charge_mutation(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                             double value, int64_t now_ms, bint is_strict, Violation *violation) noexcept nogil:
    cdef Judgement judgement
    cdef int result
    cdef int32_t throttle_ms = 0
    if is_strict:
        result = sensor_record_strict(sensors.quota, value, now_ms, violation, &judgement.sequence)
    else:
        result = sensor_record_numbered(sensors.quota, value, now_ms, True, violation, &judgement.sequence)
    if (result == RECORD_ACCEPTED or not is_strict) and notes_updates(quotas) and not manager.is_shadow:
        note_update(request, KIND_MUTATION, sensors, judgement.sequence, now_ms, value, True)
    if result != RECORD_ACCEPTED:
        throttle_ms = judge(&judgement, violation, NO_CAP)
        if judgement.asked_ms > 0 or is_strict:
            note_verdict(request, manager, sensors, &judgement, now_ms, 0, is_strict)
    return throttle_ms


cdef void gate_exempt(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil:
    cdef KafkaRequest *kafka = kafka_request(request)
    if not quotas_are_set(quotas) or not is_enabled(&quotas.managers[KIND_REQUEST]):
        return
    sensor_record(quotas.exempt, handler_percent(request, now_ns), epoch_ms_of(quotas.clock, now_ns), False, NULL)
    if has_no_account(kafka):
        kafka.network_account = quotas_retain(quotas)
        kafka.charge_network = charge_exempt


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
