# cython: freethreading_compatible=True
"""Finding the counters of a request's client; see the contract in the .pxd. Source: ``SensorAccess``."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, strlen

from kbroker._core.requests.request cimport Request, Session, session_release, session_retain
from kbroker._core.metrics.sensor_core cimport sensor_is_removed
from kbroker._core.sync cimport atomic_add_fetch, atomic_load
from kbroker.common._quota_counter cimport KINDS
from kbroker.server.quota._counters cimport ClientSensors, QuotaManager, client_sensors, give_counts, sensors_retain
from kbroker.server.quota._entities cimport Text


cdef Text user_of(const Session *session) noexcept nogil:
    """Its principal without "User:"."""
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
        atomic_add_fetch(&sensors.refs, COUNTS_AT_ONCE)
        spare[0] = COUNTS_AT_ONCE
    spare[0] -= 1
