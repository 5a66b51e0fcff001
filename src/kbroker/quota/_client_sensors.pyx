"""Counters of clients: found by their tags, created when absent, removed after an hour without a record.

When there are too many counters of made-up client ids, the least recently recorded one is evicted, but none that is
over its quota, unless all are. A client gains nothing by that: a changed client id has a new counter anyway,
and a throttled connection stays throttled. Counters whose user or client id has a quota are never evicted.

A lazily updated heap finds the least recently recorded counter; recording does not touch it. Its keys are at or before
the true times and are updated on look-up, so each update is paid for by a record.

Throttled channels are entries of the timing wheel, ended in the millisecond they are due; one wheel and one thread
serve all types.

Source: ``ClientQuotaManager``, ``QuotaUtils``, ``ThrottledChannel``, ``ClientQuotaManager.ThrottledChannelReaper``.
"""
from libc.float cimport DBL_MAX
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.clock cimport Clock, clock_now_ns, clock_release, clock_retain
from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker._core.containers.heap cimport HeapEntry, heap_add, heap_clear, heap_raise, heap_remove, heap_top
from kbroker._core.containers.linked_list cimport ChainNode, chain_append, chain_remove
from kbroker._core.metrics.metric_config cimport QUOTA_NONE, StatConfig
from kbroker._core.metrics.sensor_core cimport (
    RECORD_ACCEPTED, metric_get_config, sensor_check, sensor_has_expired, sensor_is_removed, sensor_new, sensor_record,
    sensor_release,
)
from kbroker._core.metrics.stats cimport FORM_SAMPLED, SAMPLE_AVG
from kbroker._core.requests.request cimport (
    ACTION_END_THROTTLE, ACTION_START_THROTTLE, Request, Responder, control_message, request_free,
)
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_cas, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.timer.timing_wheel cimport (
    TimerEntry, timer_add, timer_cancel, timer_close, timer_collect, timer_new, timer_release, timer_take_due,
)
from kbroker.common._quota_counter cimport (
    NO_LIMIT, Judgement, add_metric, counter_judge, counter_sensor_new, counter_throttle_ms, limited_config, set_limit,
)
from kbroker.common._text cimport Text, same_text
from kbroker.quota._entities cimport (
    PART_DEFAULT, Match, entities_bits, entities_clear, entities_limit, entities_match, entities_remove, entities_set,
    entity_level, names_client_id,
)
from kbroker.quota._quota_events cimport verdicts_destroy, verdicts_init


cdef enum:
    RECHECK_MS = 1000           # wait until a counter over its quota is considered for eviction again

cdef double PERCENT_PER_NS = 100.0 / 1000000000


# ------------------------------------------------------------ lifetime

cdef ClientQuotas *quotas_new(Clock *clock, const StatConfig *unlimited, const StatConfig *client,
                              const StatConfig *controller, int64_t most_made_up, uint64_t seed) noexcept nogil:
    cdef ClientQuotas *quotas = <ClientQuotas *>calloc(1, sizeof(ClientQuotas))
    cdef QuotaManager *manager
    cdef int place
    if quotas == NULL:
        return NULL
    atomic_store(&quotas.refs, 1)
    atomic_store(&quotas.holders, 1)
    mutex_init(&quotas.throttled_lock)
    verdicts_init(&quotas.verdicts)
    verdicts_init(&quotas.shadow_verdicts)
    quotas.clock = clock_retain(clock)
    for place in range(2 * KINDS):
        manager = manager_at(quotas, place)
        mutex_init(&manager.lock)
        manager.place = place
        manager.kind = place % KINDS
        manager.is_shadow = place >= KINDS
        manager.quotas = quotas
        manager.most_made_up = most_made_up
        manager.entities.seed = seed
        limited_config(
            manager.kind, controller if manager.kind == KIND_MUTATION else client, &manager.limited, &manager.cap_ms)
        manager.unlimited = unlimited[0]
        manager.unlimited.quota_kind = QUOTA_NONE
        manager.window_s = (manager.limited.samples - 1) * (<double>manager.limited.window_ms / 1000)
    quotas.timer = timer_new(quotas.clock, 1, 20)
    if quotas.timer == NULL:
        quotas_release(quotas)
        return NULL
    return quotas


cdef ClientQuotas *quotas_retain(ClientQuotas *quotas) noexcept nogil:
    atomic_add_fetch(&quotas.refs, 1)
    return quotas


cdef bint quotas_retain_used(ClientQuotas *quotas) noexcept nogil:
    cdef int64_t refs = atomic_load(&quotas.refs)
    while refs > 0 and not atomic_cas(&quotas.refs, refs, refs + 1):
        refs = atomic_load(&quotas.refs)
    return refs > 0


cdef void leave(ClientQuotas *quotas) noexcept nogil:
    if atomic_add_fetch(&quotas.holders, -1) == 0:
        clock_release(quotas.clock)
        free(quotas)


cdef void quotas_release(ClientQuotas *quotas) noexcept nogil:
    cdef int place
    if quotas == NULL or atomic_add_fetch(&quotas.refs, -1) != 0:
        return
    for place in range(2 * KINDS):
        clear_manager(manager_at(quotas, place))
    sensor_release(quotas.exempt)
    timer_release(quotas.timer)
    mutex_destroy(&quotas.throttled_lock)
    verdicts_destroy(&quotas.verdicts)
    verdicts_destroy(&quotas.shadow_verdicts)
    leave(quotas)


cdef void release_all(ClientSensors *sensors) noexcept nogil:
    """Release the counts of a list by ``next``."""
    cdef ClientSensors *following
    while sensors != NULL:
        following = sensors.next
        sensors_release(sensors)
        sensors = following


cdef void clear_manager(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *sensors
    cdef HashNode *node = hash_after(&manager.counters, NULL)
    cdef HashNode *following
    while True:
        sensors = take_unpublished(manager)
        if sensors == NULL:
            break
        sensors_release(sensors)
    release_all(manager.evicted)
    heap_clear(&manager.made_up)
    while node != NULL:
        following = hash_after(&manager.counters, node)
        sensors_release(<ClientSensors *>node)
        node = following
    hash_clear(&manager.counters)
    entities_clear(&manager.entities)
    sensor_release(manager.delay_queue)
    mutex_destroy(&manager.lock)


cdef ClientSensors *sensors_retain(ClientSensors *sensors) noexcept nogil:
    atomic_add_fetch(&sensors.refs, 1)
    return sensors


cdef void sensors_release(ClientSensors *sensors) noexcept nogil:
    give_counts(sensors, 1)


cdef void give_counts(ClientSensors *sensors, int64_t counts) noexcept nogil:
    if sensors == NULL or atomic_add_fetch(&sensors.refs, -counts) != 0:
        return
    sensor_release(sensors.quota)
    sensor_release(sensors.throttle_time)
    leave(sensors.manager.quotas)
    free(sensors)


cdef ClientSensors *new_sensors(QuotaManager *manager, const Match *match, int64_t now_ms) noexcept nogil:
    cdef ClientSensors *sensors = <ClientSensors *>calloc(
        1, sizeof(ClientSensors) + <size_t>match.user.size_bytes + <size_t>match.client_id.size_bytes)
    cdef char *behind
    cdef bint done
    if sensors == NULL:
        return NULL
    behind = <char *>sensors + sizeof(ClientSensors)
    if match.user.size_bytes > 0:
        memcpy(behind, match.user.data, <size_t>match.user.size_bytes)
    sensors.user.data = behind
    sensors.user.size_bytes = match.user.size_bytes
    behind += match.user.size_bytes
    if match.client_id.size_bytes > 0:
        memcpy(behind, match.client_id.data, <size_t>match.client_id.size_bytes)
    sensors.client_id.data = behind
    sensors.client_id.size_bytes = match.client_id.size_bytes
    atomic_store(&sensors.refs, 1)
    sensors.manager = manager
    atomic_add_fetch(&manager.quotas.holders, 1)
    sensors.quota = counter_sensor_new(
        manager.kind, &manager.limited, &manager.unlimited, match.limit, now_ms, &sensors.limited)
    # This sensor expires only together with the counter; otherwise the counter's next look-up would have to create it
    # again.
    sensors.throttle_time = sensor_new(NULL, 0, INT64_MAX, True, now_ms)
    done = sensors.quota != NULL and sensors.throttle_time != NULL
    atomic_store(&sensors.level, match.level)
    if done:
        done = add_metric(sensors.throttle_time, FORM_SAMPLED, SAMPLE_AVG, &manager.unlimited) != NULL
    if not done:
        sensors_release(sensors)
        return NULL
    return sensors


# ---------------------------------------------------------------- the table (under the manager's lock)

cdef uint64_t hash_of(const QuotaManager *manager, Text user, Text client_id) noexcept nogil:
    cdef uint64_t seed = manager.entities.seed
    return mix_hash(hash_seeded(user.data, user.size_bytes, seed) ^ hash_seeded(
        client_id.data, client_id.size_bytes, ~seed))


cdef ClientSensors *find(QuotaManager *manager, uint64_t h, Text user, Text client_id) noexcept nogil:
    """Return the counter of these tags, borrowed; NULL if there is none."""
    cdef HashNode *node = hash_first(&manager.counters, h)
    while node != NULL and not (same_text((<ClientSensors *>node).user, user)
                                and same_text((<ClientSensors *>node).client_id, client_id)):
        node = hash_next(node)
    return <ClientSensors *>node


cdef void take_out(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    """Remove a counter from the table; the caller gets its count."""
    hash_remove(&manager.counters, &sensors.node)
    heap_remove(&manager.made_up, &sensors.recency)


cdef inline ClientSensors *of_recency(HeapEntry *entry) noexcept nogil:
    return <ClientSensors *>(<char *>entry - sizeof(HashNode))


cdef inline void mark_removed(ClientSensors *sensors) noexcept nogil:
    atomic_store(&sensors.quota.removed, 1)
    atomic_store(&sensors.throttle_time.removed, 1)


cdef void evict_one(QuotaManager *manager, int64_t now_ms) noexcept nogil:
    """Evict one of the counters of made-up client ids."""
    cdef HeapEntry *oldest
    cdef ClientSensors *sensors
    cdef int64_t used_ms
    while True:
        oldest = heap_top(&manager.made_up)
        sensors = of_recency(oldest)
        if oldest.key > now_ms:
            break                                   # so are all other keys: all counters were over quota a moment ago
        used_ms = min(<int64_t>atomic_load(&sensors.quota.last_record_ms), now_ms)
        if used_ms > oldest.key:
            heap_raise(&manager.made_up, oldest, used_ms)
            continue
        if sensor_check(sensors.quota, now_ms, NULL) == RECORD_ACCEPTED:
            break
        heap_raise(&manager.made_up, oldest, now_ms + RECHECK_MS)
    take_out(manager, sensors)
    mark_removed(sensors)
    if sensors.is_unpublished:
        unlink_unpublished(manager, sensors)
        sensors_release(sensors)
        sensors_release(sensors)
    else:
        sensors.next = manager.evicted
        manager.evicted = sensors


cdef inline ClientSensors *of_unpublished(ChainNode *node) noexcept nogil:
    return <ClientSensors *>(<char *>node - sizeof(HashNode) - sizeof(HeapEntry))


cdef void link_unpublished(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    sensors_retain(sensors)
    sensors.is_unpublished = True
    chain_append(&manager.unpublished, &sensors.unpublished)


cdef void unlink_unpublished(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    """Remove a counter from the list; the caller gets its count."""
    chain_remove(&manager.unpublished, &sensors.unpublished)
    sensors.is_unpublished = False


cdef inline bint is_made_up(ClientSensors *sensors) noexcept nogil:
    """Return whether a counter is of a client id that no quota names, which a client may have invented."""
    return sensors.client_id.size_bytes > 0 and not names_client_id(<int32_t>atomic_load(&sensors.level))


cdef ClientSensors *make_counter(QuotaManager *manager, const Match *match, uint64_t h, int64_t now_ms) noexcept nogil:
    """Create a counter in the table, which has capacity; borrowed. NULL: out of memory."""
    cdef ClientSensors *made = new_sensors(manager, match, now_ms)
    if made == NULL:
        return NULL
    if is_made_up(made):
        if manager.made_up.count >= manager.most_made_up:
            evict_one(manager, now_ms)
        if not heap_add(&manager.made_up, &made.recency, now_ms):
            sensors_release(made)
            return NULL
    hash_add(&manager.counters, &made.node, h)
    link_unpublished(manager, made)
    return made


cdef ClientSensors *client_sensors(QuotaManager *manager, Text user, Text client_id, int64_t now_ms) noexcept nogil:
    cdef Match match
    cdef ClientSensors *found = NULL
    cdef uint64_t h
    mutex_lock(&manager.lock)
    entities_match(&manager.entities, user, client_id, &match)
    h = hash_of(manager, match.user, match.client_id)
    if hash_reserve(&manager.counters):
        found = find(manager, h, match.user, match.client_id)
        if found != NULL and sensor_is_removed(found.quota):
            take_out(manager, found)
            mark_removed(found)
            sensors_release(found)
            found = NULL
        if found == NULL:
            found = make_counter(manager, &match, h, now_ms)
        if found != NULL:
            sensors_retain(found)
    mutex_unlock(&manager.lock)
    return found


cdef ClientSensors *find_client_sensors(QuotaManager *manager, Text user, Text client_id, Match *match) noexcept nogil:
    cdef ClientSensors *found
    mutex_lock(&manager.lock)
    entities_match(&manager.entities, user, client_id, match)
    found = find(manager, hash_of(manager, match.user, match.client_id), match.user, match.client_id)
    if found != NULL and sensor_is_removed(found.quota):
        found = NULL
    if found != NULL:
        sensors_retain(found)
    mutex_unlock(&manager.lock)
    return found


# -------------------------------------------------------------- judgement

cdef int32_t record_and_judge(QuotaManager *manager, ClientSensors *sensors, double value, int64_t now_ms,
                              Judgement *judgement) noexcept nogil:
    return counter_judge(sensors.quota, manager.kind, value, now_ms, manager.cap_ms, judgement)


cdef int32_t record_and_get_throttle(QuotaManager *manager, ClientSensors *sensors, double value,
                                     int64_t now_ms) noexcept nogil:
    return counter_throttle_ms(sensors.quota, manager.kind, value, now_ms, manager.cap_ms)


cdef double max_value_in_window(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    cdef StatConfig config
    metric_get_config(sensors.limited, &config)
    return DBL_MAX if config.bound == NO_LIMIT else config.bound * manager.window_s


# ---------------------------------------------------------------- changes

cdef inline void follow_limit(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    """Update a counter's limit from the entities; under the manager's lock."""
    cdef int32_t level
    set_limit(sensors.limited, entities_limit(&manager.entities, sensors.user, sensors.client_id, &level))
    atomic_store(&sensors.level, level)
    if not is_made_up(sensors):
        heap_remove(&manager.made_up, &sensors.recency)
    elif sensors.recency.place == 0:    # without memory it stays until it is idle for an hour
        heap_add(&manager.made_up, &sensors.recency, atomic_load(&sensors.quota.last_record_ms))


cdef bint update_quota(ClientQuotas *quotas, QuotaManager *manager, int user_part, int client_part, Text user,
                       Text client_id, double limit, bint removes) noexcept nogil:
    cdef int32_t level = entity_level(user_part, client_part)
    cdef int64_t before, after, one_type = SHADOW_TYPE if manager.is_shadow else 1
    cdef ClientSensors *sensors
    cdef HashNode *node
    cdef bint done = True
    mutex_lock(&manager.lock)
    before = entities_bits(&manager.entities)
    if removes:
        entities_remove(&manager.entities, level, user, client_id)
    else:
        done = entities_set(&manager.entities, level, user, client_id, limit)
    after = entities_bits(&manager.entities)
    atomic_store(&manager.enabled, after)
    if manager.kind != KIND_MUTATION and (before == 0) != (after == 0):
        atomic_add_fetch(&quotas.enabled_types, one_type if after else -one_type)
    if user_part != PART_DEFAULT and client_part != PART_DEFAULT:       # only the counter with exactly these tags
        sensors = find(manager, hash_of(manager, user, client_id), user, client_id)
        if sensors != NULL:
            follow_limit(manager, sensors)
    else:
        node = hash_after(&manager.counters, NULL)
        while node != NULL:
            follow_limit(manager, <ClientSensors *>node)
            node = hash_after(&manager.counters, node)
    atomic_add_fetch(&manager.generation, 1)
    mutex_unlock(&manager.lock)
    return done


cdef ClientSensors *take_expired(QuotaManager *manager, int64_t now_ms) noexcept nogil:
    cdef ClientSensors *expired = NULL
    cdef ClientSensors *sensors
    cdef HashNode *node
    mutex_lock(&manager.lock)
    node = hash_after(&manager.counters, NULL)
    while node != NULL:
        sensors = <ClientSensors *>node
        node = hash_after(&manager.counters, node)
        if sensor_has_expired(sensors.quota, now_ms):
            take_out(manager, sensors)
            mark_removed(sensors)
            sensors.next = expired
            expired = sensors
    mutex_unlock(&manager.lock)
    return expired


cdef ClientSensors *take_unpublished(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *sensors = NULL
    mutex_lock(&manager.lock)
    if manager.unpublished.first != NULL:
        sensors = of_unpublished(manager.unpublished.first)
        unlink_unpublished(manager, sensors)
    mutex_unlock(&manager.lock)
    return sensors


cdef void forget_unpublished(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    cdef bint was_unpublished
    mutex_lock(&manager.lock)
    was_unpublished = sensors.is_unpublished
    if was_unpublished:
        unlink_unpublished(manager, sensors)
    mutex_unlock(&manager.lock)
    if was_unpublished:
        sensors_release(sensors)


cdef ClientSensors *take_evicted(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *evicted
    mutex_lock(&manager.lock)
    evicted = manager.evicted
    manager.evicted = NULL
    mutex_unlock(&manager.lock)
    return evicted


# ----------------------------------------------- throttled channels

cdef enum:
    ENDED_AT_ONCE = 32          # maximum number of network threads that get their ended throttles in one list each


cdef struct ThrottledChannel:
    TimerEntry entry            # first: the wheel uses only this
    ThrottledChannel *next      # ClientQuotas.throttled_lock
    ThrottledChannel *prev
    ClientQuotas *quotas        # counted
    QuotaManager *manager
    Request *ending             # owned


cdef struct Ends:               # of one network thread
    Responder *responder
    Request *first
    Request *last


cdef void never_fires(TimerEntry *entry) noexcept nogil:
    pass


cdef void throttle_channel(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                           int64_t throttle_ms, int64_t now_ms) noexcept nogil:
    cdef ThrottledChannel *channel
    cdef Request *starting
    if throttle_ms <= 0:
        return
    if sensors != NULL:
        sensor_record(sensors.throttle_time, <double>throttle_ms, now_ms, False, NULL)
    channel = <ThrottledChannel *>calloc(1, sizeof(ThrottledChannel))
    starting = control_message(request, ACTION_START_THROTTLE)
    if channel != NULL:
        channel.ending = control_message(request, ACTION_END_THROTTLE)
    if channel == NULL or starting == NULL or channel.ending == NULL:
        if channel != NULL:
            request_free(channel.ending)
        free(channel)
        request_free(starting)
        return
    starting.response_ready_ns = clock_now_ns(quotas.clock) + throttle_ms * 1000000
    starting.sequence = manager.kind + 1
    channel.entry.fire = never_fires
    channel.manager = manager
    mutex_lock(&quotas.throttled_lock)
    if atomic_load(&quotas.is_closed):
        mutex_unlock(&quotas.throttled_lock)
        request_free(channel.ending)
        free(channel)
        request_free(starting)
        return
    channel.quotas = quotas_retain(quotas)
    channel.next = <ThrottledChannel *>quotas.throttled
    if channel.next != NULL:
        channel.next.prev = channel
    quotas.throttled = channel
    # Under the lock, so that a close either does not find the channel, or finds it with its start already sent before
    # its end.
    starting.responder.respond(starting.responder, starting)
    timer_add(quotas.timer, &channel.entry, throttle_ms)
    mutex_unlock(&quotas.throttled_lock)
    sensor_record(manager.delay_queue, 1.0, now_ms, False, NULL)


cdef Request *end_of(ThrottledChannel *channel, int64_t now_ms) noexcept nogil:
    """Return the message that ends a throttle; the channel's entry is freed."""
    cdef ClientQuotas *quotas = channel.quotas
    cdef Request *ending = channel.ending
    mutex_lock(&quotas.throttled_lock)
    if channel.prev != NULL:
        channel.prev.next = channel.next
    else:
        quotas.throttled = channel.next
    if channel.next != NULL:
        channel.next.prev = channel.prev
    mutex_unlock(&quotas.throttled_lock)
    sensor_record(channel.manager.delay_queue, -1.0, now_ms, False, NULL)
    free(channel)
    ending.next = NULL
    quotas_release(quotas)              # never the last count, since the caller holds one
    return ending


cdef bint throttled_advance(ClientQuotas *quotas, int64_t timeout_ms) noexcept nogil:
    cdef Ends ends[ENDED_AT_ONCE]
    cdef int32_t count = 0, i
    cdef TimerEntry *entry
    cdef Request *ending
    cdef int64_t now_ms
    if not timer_collect(quotas.timer, timeout_ms):
        return False
    now_ms = epoch_ms_of(quotas.clock, clock_now_ns(quotas.clock))
    while True:
        entry = timer_take_due(quotas.timer)
        if entry == NULL:
            break
        ending = end_of(<ThrottledChannel *>entry, now_ms)
        i = 0
        while i < count and ends[i].responder != ending.responder:
            i += 1
        if i == ENDED_AT_ONCE:
            ending.responder.respond(ending.responder, ending)
            continue
        if i == count:
            count += 1
            ends[i].responder = ending.responder
            ends[i].first = ending
        else:
            ends[i].last.next = ending
        ends[i].last = ending
    for i in range(count):
        ends[i].responder.respond(ends[i].responder, ends[i].first)
    return True


cdef void throttled_close(ClientQuotas *quotas) noexcept nogil:
    cdef ThrottledChannel *channel
    cdef Request *ending
    cdef int64_t now_ms = epoch_ms_of(quotas.clock, clock_now_ns(quotas.clock))
    mutex_lock(&quotas.throttled_lock)
    atomic_store(&quotas.is_closed, 1)
    mutex_unlock(&quotas.throttled_lock)
    timer_close(quotas.timer)
    while True:
        mutex_lock(&quotas.throttled_lock)
        channel = <ThrottledChannel *>quotas.throttled
        mutex_unlock(&quotas.throttled_lock)
        if channel == NULL:
            return
        timer_cancel(quotas.timer, &channel.entry)
        ending = end_of(channel, now_ms)
        ending.responder.respond(ending.responder, ending)
