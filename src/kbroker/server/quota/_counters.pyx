# cython: freethreading_compatible=True
"""Counters of clients: found by their tags, made where there are none, forgotten after an hour without a record.

Where there are too many of made-up client ids, the one whose latest record is the oldest goes, but none that is over
its quota, unless all are. Nobody gains by that: a stranger who changes his client id has a new counter anyway, and a
connection that is throttled stays so. Counters that name a user or client id of the settings are never evicted.

A handler thread keeps the counters of its latest clients (``ClientCache``), so that an enforced quota takes no lock but
the sensor's. Source: ``ClientQuotaManager``, ``SensorAccess``, ``QuotaUtils``.
"""
from libc.float cimport DBL_MAX
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, strlen

from kbroker._core.clock cimport clock_release, clock_retain
from kbroker._core.metric_config cimport StatConfig
from kbroker._core.request cimport Request, Session, session_release, session_retain
from kbroker._core.sample_window cimport SAMPLE_AVG
from kbroker._core.sensor_core cimport (
    RECORD_ACCEPTED, metric_get_config, sensor_check, sensor_has_expired, sensor_is_removed, sensor_new,
    sensor_release,
)
from kbroker._core.stats cimport FORM_SAMPLED
from kbroker._core.sync cimport atomic_add, atomic_load, atomic_store, mutex_destroy, mutex_lock, mutex_unlock
from kbroker._core.timing_wheel cimport timer_release
from kbroker.common._quota_counter cimport (
    NO_LIMIT, Judgement, add_metric, counter_judge, counter_sensor_new, counter_throttle_ms, set_limit,
)
from kbroker.server._topics cimport hash_seeded, mix_hash
from kbroker.server.quota._entities cimport (
    PART_DEFAULT, Match, Text, entities_bits, entities_clear, entities_limit, entities_match,
    entities_remove, entities_set, entity_level, is_default_client_id, same_text,
)
from kbroker.server.quota._recency cimport (
    RecencyEntry, recency_add, recency_clear, recency_oldest, recency_remove, recency_renew,
)
from kbroker.server.quota._verdict cimport verdicts_destroy

cdef enum:
    RECHECK_MS = 1000           # a counter over its quota is not looked at for eviction again so soon

cdef double PERCENT_PER_NS = 100.0 / 1000000000


# ---------------------------------------------------------------- life

cdef ClientQuotas *quotas_retain(ClientQuotas *quotas) noexcept nogil:
    atomic_add(&quotas.refs, 1)
    return quotas


cdef void quotas_release(ClientQuotas *quotas) noexcept nogil:
    cdef int kind
    if quotas == NULL or atomic_add(&quotas.refs, -1) != 0:
        return
    for kind in range(KINDS):
        clear_manager(&quotas.managers[kind])
    sensor_release(quotas.exempt)
    timer_release(quotas.timer)
    mutex_destroy(&quotas.throttled_lock)
    verdicts_destroy(&quotas.verdicts)
    clock_release(quotas.clock)
    free(quotas)


cdef void release_all(ClientSensors *sensors) noexcept nogil:
    """Give back a list by `next`."""
    cdef ClientSensors *following
    while sensors != NULL:
        following = sensors.next
        sensors_release(sensors)
        sensors = following


cdef void clear_manager(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *sensors
    cdef int64_t i
    while True:
        sensors = take_untold(manager)
        if sensors == NULL:
            break
        sensors_release(sensors)
    release_all(manager.evicted)
    recency_clear(&manager.made_up)
    if manager.buckets != NULL:
        for i in range(manager.mask + 1):
            release_all(manager.buckets[i])
    free(manager.buckets)
    entities_clear(&manager.entities)
    sensor_release(manager.delay_queue)
    mutex_destroy(&manager.lock)


cdef ClientSensors *sensors_retain(ClientSensors *sensors) noexcept nogil:
    atomic_add(&sensors.refs, 1)
    return sensors


cdef void sensors_release(ClientSensors *sensors) noexcept nogil:
    give_counts(sensors, 1)


cdef void give_counts(ClientSensors *sensors, int64_t counts) noexcept nogil:
    if sensors == NULL or atomic_add(&sensors.refs, -counts) != 0:
        return
    sensor_release(sensors.quota)
    sensor_release(sensors.throttle_time)
    clock_release(sensors.clock)
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
    sensors.clock = clock_retain(manager.clock)
    sensors.quota = counter_sensor_new(
        manager.kind, &manager.limited, &manager.unlimited, match.limit, now_ms, &sensors.limited)
    # Goes with the counter: whoever looks that one up would make it anew at once.
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


cdef ClientSensors **find_link(QuotaManager *manager, uint64_t h, Text user, Text client_id) noexcept nogil:
    """Where the counter of these tags hangs; what it points at is NULL if there is none."""
    cdef ClientSensors **link = &manager.buckets[h & <uint64_t>manager.mask]
    while link[0] != NULL and not (
            link[0].hash == h and same_text(link[0].user, user) and same_text(link[0].client_id, client_id)):
        link = &link[0].next
    return link


cdef bint make_room(QuotaManager *manager) noexcept nogil:
    cdef int64_t size = 64, i
    cdef ClientSensors **buckets
    cdef ClientSensors *sensors
    cdef ClientSensors *following
    if manager.buckets != NULL and manager.count <= manager.mask:
        return True
    while size <= manager.count * 2:
        size *= 2
    buckets = <ClientSensors **>calloc(<size_t>size, sizeof(ClientSensors *))
    if buckets == NULL:
        return manager.buckets != NULL
    if manager.buckets != NULL:
        for i in range(manager.mask + 1):
            sensors = manager.buckets[i]
            while sensors != NULL:
                following = sensors.next
                sensors.next = buckets[sensors.hash & <uint64_t>(size - 1)]
                buckets[sensors.hash & <uint64_t>(size - 1)] = sensors
                sensors = following
    free(manager.buckets)
    manager.buckets = buckets
    manager.mask = size - 1
    return True


cdef ClientSensors *take_out(QuotaManager *manager, ClientSensors **link) noexcept nogil:
    """Take a counter out of the table; its count is the caller's."""
    cdef ClientSensors *sensors = link[0]
    link[0] = sensors.next
    sensors.next = NULL
    manager.count -= 1
    recency_remove(&manager.made_up, &sensors.recency)
    return sensors


cdef inline void mark_removed(ClientSensors *sensors) noexcept nogil:
    atomic_store(&sensors.quota.removed, 1)
    atomic_store(&sensors.throttle_time.removed, 1)


cdef void evict_one(QuotaManager *manager, int64_t now_ms) noexcept nogil:
    """Make room among the counters of made-up client ids."""
    cdef RecencyEntry *oldest
    cdef ClientSensors *sensors
    cdef int64_t used_ms
    while True:
        oldest = recency_oldest(&manager.made_up)
        sensors = <ClientSensors *>oldest
        if oldest.used_ms > now_ms:
            break                                   # all others too: each was over its quota a moment ago
        used_ms = min(<int64_t>atomic_load(&sensors.quota.last_record_ms), now_ms)
        if used_ms > oldest.used_ms:
            recency_renew(&manager.made_up, oldest, used_ms)
            continue
        if sensor_check(sensors.quota, now_ms, NULL) == RECORD_ACCEPTED:
            break
        recency_renew(&manager.made_up, oldest, now_ms + RECHECK_MS)
    take_out(manager, find_link(manager, sensors.hash, sensors.user, sensors.client_id))
    mark_removed(sensors)
    if sensors.is_untold:
        unlink_untold(manager, sensors)
        sensors_release(sensors)
        sensors_release(sensors)
    else:
        sensors.next = manager.evicted
        manager.evicted = sensors


cdef void link_untold(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    sensors_retain(sensors)
    sensors.is_untold = True
    sensors.untold_prev = manager.last_untold
    if manager.last_untold != NULL:
        manager.last_untold.untold_next = sensors
    else:
        manager.untold = sensors
    manager.last_untold = sensors


cdef void unlink_untold(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    """Its count is the caller's."""
    if sensors.untold_prev != NULL:
        sensors.untold_prev.untold_next = sensors.untold_next
    else:
        manager.untold = sensors.untold_next
    if sensors.untold_next != NULL:
        sensors.untold_next.untold_prev = sensors.untold_prev
    else:
        manager.last_untold = sensors.untold_prev
    sensors.untold_next = sensors.untold_prev = NULL
    sensors.is_untold = False


cdef ClientSensors *make_counter(QuotaManager *manager, const Match *match, uint64_t h, int64_t now_ms) noexcept nogil:
    """Make a counter and put it into the table, which has room; borrowed. NULL: memory is out."""
    cdef bint is_made_up = is_default_client_id(match.level)
    cdef ClientSensors *made
    cdef ClientSensors **link
    if is_made_up and manager.made_up.count >= manager.most_made_up:
        evict_one(manager, now_ms)
    made = new_sensors(manager, match, now_ms)
    if made == NULL or is_made_up and not recency_add(&manager.made_up, &made.recency, now_ms):
        sensors_release(made)
        return NULL
    made.hash = h
    link = &manager.buckets[h & <uint64_t>manager.mask]
    made.next = link[0]
    link[0] = made
    manager.count += 1
    link_untold(manager, made)
    return made


cdef ClientSensors *client_sensors(QuotaManager *manager, Text user, Text client_id, int64_t now_ms) noexcept nogil:
    cdef Match match
    cdef ClientSensors *found = NULL
    cdef ClientSensors **link
    cdef uint64_t h
    mutex_lock(&manager.lock)
    entities_match(&manager.entities, user, client_id, &match)
    h = hash_of(manager, match.user, match.client_id)
    if make_room(manager):
        link = find_link(manager, h, match.user, match.client_id)
        if link[0] != NULL and sensor_is_removed(link[0].quota):
            sensors_release(take_out(manager, link))
            link = find_link(manager, h, match.user, match.client_id)
        found = link[0]
        if found == NULL:
            found = make_counter(manager, &match, h, now_ms)
        if found != NULL:
            sensors_retain(found)
    mutex_unlock(&manager.lock)
    return found


# ---------------------------------------------------------------- the client of a request

cdef Text user_of(const Session *session) noexcept nogil:
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
    cdef int kind
    for kind in range(KINDS):
        forget_sensors(client, kind)
    session_release(client.session)
    client.session = NULL


cdef inline void forget_sensors(CachedClient *client, int kind) noexcept nogil:
    give_counts(client.sensors[kind], 1 + client.spare_counts[kind])
    client.sensors[kind] = NULL
    client.spare_counts[kind] = 0


cdef inline uint64_t small_hash(const char *data, int32_t size_bytes) noexcept nogil:
    """Good enough for 64 slots: the first and the last eight bytes."""
    cdef uint64_t first = 0, last = 0
    cdef size_t n = <size_t>(size_bytes if size_bytes < 8 else 8)
    if size_bytes > 0:
        memcpy(&first, data, n)
        memcpy(&last, data + size_bytes - n, n)
    return ((first * <uint64_t>0x9E3779B97F4A7C15) ^ last) * <uint64_t>0xBF58476D1CE4E5B9 >> 40


cdef ClientSensors *sensors_of_request(QuotaManager *manager, ClientCache *cache, Request *request, int64_t now_ms,
                                       bint *is_counted) noexcept nogil:
    cdef Text client_id
    cdef CachedClient *client
    cdef ClientSensors *sensors
    cdef int64_t generation
    client_id.data = request.client_id
    client_id.size_bytes = request.client_id_bytes if request.client_id != NULL else 0
    is_counted[0] = cache == NULL or client_id.size_bytes > CACHED_ID_BYTES or request.session == NULL
    if is_counted[0]:
        return client_sensors(manager, user_of(request.session), client_id, now_ms)
    client = &cache.clients[small_hash(client_id.data, client_id.size_bytes) & (CACHED_CLIENTS - 1)]
    cache.latest = client
    if client.session != request.session or client.client_id_bytes != client_id.size_bytes or (
            client_id.size_bytes > 0 and memcmp(client.client_id, client_id.data, <size_t>client_id.size_bytes) != 0):
        forget(client)
        client.session = session_retain(request.session)
        client.client_id_bytes = client_id.size_bytes
        if client_id.size_bytes > 0:
            memcpy(client.client_id, client_id.data, <size_t>client_id.size_bytes)
    generation = atomic_load(&manager.generation)       # first: what is looked up is of this one or a later one
    sensors = client.sensors[manager.kind]
    if sensors != NULL and (client.generation[manager.kind] != generation or sensor_is_removed(sensors.quota)):
        forget_sensors(client, manager.kind)
        sensors = NULL
    if sensors == NULL:
        sensors = client_sensors(manager, user_of(request.session), client_id, now_ms)
        client.sensors[manager.kind] = sensors
        client.generation[manager.kind] = generation
    return sensors


cdef void count_for_request(QuotaManager *manager, ClientCache *cache, ClientSensors *sensors,
                            bint is_counted) noexcept nogil:
    cdef int64_t *spare
    if is_counted:
        sensors_retain(sensors)
        return
    spare = &cache.latest.spare_counts[manager.kind]
    if spare[0] == 0:
        atomic_add(&sensors.refs, COUNTS_AT_ONCE)
        spare[0] = COUNTS_AT_ONCE
    spare[0] -= 1


# ---------------------------------------------------------------- judging

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
    """Bring a counter's limit up to the entities; under the manager's lock."""
    cdef int32_t level
    set_limit(sensors.limited, entities_limit(&manager.entities, sensors.user, sensors.client_id, &level))
    atomic_store(&sensors.level, level)


cdef bint update_quota(ClientQuotas *quotas, QuotaManager *manager, int user_part, int client_part, Text user,
                       Text client_id, double limit, bint removes) noexcept nogil:
    cdef int32_t level = entity_level(user_part, client_part)
    cdef int64_t before, after, i
    cdef ClientSensors *sensors
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
        atomic_add(&quotas.enabled_types, 1 if after else -1)
    if manager.buckets != NULL:
        if user_part != PART_DEFAULT and client_part != PART_DEFAULT:   # only the counter with these very tags
            sensors = find_link(manager, hash_of(manager, user, client_id), user, client_id)[0]
            if sensors != NULL:
                follow_limit(manager, sensors)
        else:
            for i in range(manager.mask + 1):
                sensors = manager.buckets[i]
                while sensors != NULL:
                    follow_limit(manager, sensors)
                    sensors = sensors.next
    atomic_add(&manager.generation, 1)
    mutex_unlock(&manager.lock)
    return done


cdef ClientSensors *take_expired(QuotaManager *manager, int64_t now_ms) noexcept nogil:
    cdef ClientSensors *expired = NULL
    cdef ClientSensors *sensors
    cdef ClientSensors **link
    cdef int64_t i
    mutex_lock(&manager.lock)
    if manager.buckets != NULL:
        for i in range(manager.mask + 1):
            link = &manager.buckets[i]
            while link[0] != NULL:
                sensors = link[0]
                if not sensor_has_expired(sensors.quota, now_ms):
                    link = &sensors.next
                    continue
                mark_removed(take_out(manager, link))
                sensors.next = expired
                expired = sensors
    mutex_unlock(&manager.lock)
    return expired


cdef ClientSensors *take_untold(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *sensors
    mutex_lock(&manager.lock)
    sensors = manager.untold
    if sensors != NULL:
        unlink_untold(manager, sensors)
    mutex_unlock(&manager.lock)
    return sensors


cdef void forget_untold(QuotaManager *manager, ClientSensors *sensors) noexcept nogil:
    cdef bint was_untold
    mutex_lock(&manager.lock)
    was_untold = sensors.is_untold
    if was_untold:
        unlink_untold(manager, sensors)
    mutex_unlock(&manager.lock)
    if was_untold:
        sensors_release(sensors)


cdef ClientSensors *take_evicted(QuotaManager *manager) noexcept nogil:
    cdef ClientSensors *evicted
    mutex_lock(&manager.lock)
    evicted = manager.evicted
    manager.evicted = NULL
    mutex_unlock(&manager.lock)
    return evicted
