"""Enforcement of quotas on a native response before it is sent.

Shadows are judged first, by the same functions over their own managers: they note verdicts, and nothing else about the
request or its response changes. The word that states whether quotas are set covers them too, so they cost nothing where
none is set.

Every function returns after one atomic load where no quota of Produce, Fetch or Request is set. A returned delay has
already begun: StartThrottling is queued, so the response, with the delay in it, must be passed to its responder
afterwards. ``cache`` belongs to the calling handler thread, NULL elsewhere: it holds the counters of the thread's
latest clients, each valid for a generation of its manager, so that an enforced quota takes no lock except the
sensor's.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.sensor_core cimport Violation
from kbroker._core.requests.request cimport Request, Session
from kbroker._core.sync cimport atomic_load
from kbroker.common._quota_counter cimport KINDS
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, QuotaManager

cdef enum:
    CACHED_CLIENTS = 64         # per handler thread, a power of two
    CACHED_ID_BYTES = 64        # longer client ids are looked up each time

cdef struct CachedClient:       # of one handler thread
    Session *session            # counted; NULL: free
    int32_t client_id_bytes
    char client_id[CACHED_ID_BYTES]
    int64_t generation[2 * KINDS]       # indexed by QuotaManager.place
    ClientSensors *sensors[2 * KINDS]   # counted
    int64_t spare_counts[2 * KINDS]     # further counts on them

cdef struct ClientCache:
    CachedClient *latest        # last result of cached_client
    CachedClient clients[CACHED_CLIENTS]

cdef ClientCache *client_cache_new() noexcept nogil
cdef void client_cache_free(ClientCache *cache) noexcept nogil

cdef inline int64_t set_types(ClientQuotas *quotas) noexcept nogil:
    """Return ClientQuotas.enabled_types: 0 without any quota or shadow; SHADOW_TYPE or more with shadows."""
    return 0 if quotas == NULL else atomic_load(&quotas.enabled_types)

cdef inline bint quotas_are_set(ClientQuotas *quotas) noexcept nogil:
    return set_types(quotas) != 0

# Return whether all Produce requests of a batch may be executed before the first is judged: they are of one client,
# which uses at most half of each quota with all their bytes and the earlier bytes that are not judged yet.
cdef bint has_headroom(ClientQuotas *quotas, ClientCache *cache, Request *head, int64_t earlier_bytes,
                       int64_t now_ns) noexcept nogil
# Call after the append. Without a response (acks=0) only bytes are judged; the handler's time is exempt.
cdef int32_t gate_produce(ClientQuotas *quotas, ClientCache *cache, Request *request, bint has_response,
                          int64_t now_ns) noexcept nogil
# response_bytes: of the whole response. With a delay they are subtracted again: the client gets an empty response.
cdef int32_t gate_fetch(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t response_bytes,
                        int64_t now_ns) noexcept nogil
# Judge any other request: only the handler's time counts.
cdef int32_t gate_request(ClientQuotas *quotas, ClientCache *cache, Request *request, int64_t now_ns) noexcept nogil
# The two halves of gate_request, for a caller that first compares the delay with another one. The first begins nothing.
cdef int32_t charge_request(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil
cdef void throttle_request(ClientQuotas *quotas, QuotaManager *manager, Request *request, int32_t throttle_ms,
                           int64_t now_ns) noexcept nogil
# Charge a mutation to a counter of a manager, strict (refused when already over the quota) or not, and note it;
# return the delay, or 0.
cdef int32_t charge_mutation(ClientQuotas *quotas, QuotaManager *manager, ClientSensors *sensors, Request *request,
                             double value, int64_t now_ms, bint is_strict, Violation *violation) noexcept nogil
# Note in the verdicts of shadows the delays they would have caused, for a request without a native handler; before the
# verdicts are settled. serves_mutations: whether its response contains a delay of mutations.
cdef void serve_shadows(ClientQuotas *quotas, Request *request, bint serves_mutations, int64_t now_ns) noexcept nogil
# Publish the verdicts noted on a request, before its response.
cdef void settle_verdicts(ClientQuotas *quotas, Request *request) noexcept nogil
# Count the times of a request that is exempt from throttling.
cdef void gate_exempt(ClientQuotas *quotas, Request *request, int64_t now_ns) noexcept nogil
# Return the maximum bytes of a fetch response, INT32_MAX for no limit.
cdef int32_t fetch_window_bytes(ClientQuotas *quotas, ClientCache *cache, Request *request,
                                int64_t now_ns) noexcept nogil
# Write throttle_time_ms into a response, big-endian.
cdef void store_throttle(char *at, int32_t throttle_ms) noexcept nogil
