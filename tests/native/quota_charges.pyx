"""Requests judged by quotas as by a native handler, and counters locked meanwhile, for tests."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.requests.request cimport Request, Responder, request_free, request_new, session_new
from kbroker._core.sync cimport atomic_load, mutex_lock, mutex_unlock
from kbroker.network._kafka_request cimport kafka_charge_network, kafka_context_type, kafka_request
from kbroker.quota._client_quotas cimport ClientQuotaManager, ClientQuotaManagers
from kbroker.quota._client_sensors cimport ClientQuotas, ClientSensors, sensors_release
from kbroker.quota._quota_enforcement cimport (
    ClientCache, client_cache_free, client_cache_new, gate_fetch, gate_produce, gate_request,
)


cdef void drop(Responder *self, Request *first) noexcept nogil:
    """Free the messages that mute and unmute a connection."""
    cdef Request *following
    while first is not NULL:
        following = first.next
        request_free(first)
        first = following


cdef Responder CONNECTION
CONNECTION.respond = drop


cdef class ChargedRequest:
    """Request of a client; with ``caches`` its counters are the ones that a handler thread caches."""

    cdef ClientQuotaManagers managers
    cdef Request *request
    cdef ClientCache *cache
    cdef int64_t judged_ns

    def __cinit__(self, ClientQuotaManagers managers not None, bytes user not None, bytes client_id not None,
                  bint caches):
        cdef bytes principal = b"User:" + user
        self.managers = managers
        self.request = request_new(kafka_context_type(), len(client_id))
        self.request.responder = &CONNECTION
        self.request.session = session_new(principal)
        memcpy(self.request.payload, <const char *>client_id, len(client_id))
        kafka_request(self.request).client_id = self.request.payload
        kafka_request(self.request).client_id_bytes = len(client_id)
        if caches:
            self.cache = client_cache_new()

    def __dealloc__(self):
        request_free(self.request)
        client_cache_free(self.cache)

    def judge(self, str kind not None, int64_t size_bytes, int64_t handler_ns):
        """Charge a request of a size in bytes, "produce", "fetch" or another; return its delay in milliseconds."""
        cdef ClientQuotas *quotas = self.managers.quotas
        cdef int64_t now_ns = clock_now_ns(quotas.clock)
        cdef bint produces = kind == "produce", fetches = kind == "fetch"
        cdef int64_t delay_ms
        self.judged_ns = now_ns
        self.request.dequeue_ns = now_ns - handler_ns
        with nogil:
            if produces:
                self.request.size_bytes = size_bytes
                delay_ms = gate_produce(quotas, self.cache, self.request, True, now_ns)
            elif fetches:
                delay_ms = gate_fetch(quotas, self.cache, self.request, size_bytes, now_ns)
            else:
                delay_ms = gate_request(quotas, self.cache, self.request, now_ns)
        return delay_ms

    def sent(self, int64_t network_ns):
        """Charge the time of the network thread, as after the last byte of the response."""
        self.request.response_sent_ns = self.judged_ns
        self.request.network_ns = network_ns
        kafka_charge_network(self.request)

    def forget_managers(self):
        self.managers = None


cdef class HeldCounter:
    """Client's counter whose lock the test holds until `release`, so that a record waits."""

    cdef ClientQuotaManager manager
    cdef ClientSensors *sensors
    cdef int64_t before_ms

    def __cinit__(self, ClientQuotaManager manager not None, str user not None, str client_id not None):
        self.manager = manager
        self.sensors = manager.find(user, client_id, 0)
        self.before_ms = atomic_load(&self.sensors.quota.last_record_ms)
        mutex_lock(&self.sensors.quota.lock)

    def is_awaited(self):
        """Return whether a record has begun since; a record stores its time before it takes the lock."""
        return atomic_load(&self.sensors.quota.last_record_ms) != self.before_ms

    def release(self):
        mutex_unlock(&self.sensors.quota.lock)
        sensors_release(self.sensors)
