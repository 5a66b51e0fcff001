"""The client quota managers of all types for Python: limits are set here, throttles end here.

The verdict observer runs under the lock of the connection limits and locks only leaves: the ring's and the listener's.
Source: ``QuotaFactory.QuotaManagers``.
"""
import os
from operator import index, itemgetter

from libc.stdint cimport int32_t, int64_t, int8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.metrics.metric cimport checked_time
from kbroker._core.metrics.metric_config cimport MetricConfig, Quota, borrow_config
from kbroker._core.metrics.sensor cimport borrow_sensor
from kbroker._core.metrics.sensor_core cimport sensor_retain
from kbroker._core.metrics.stats import CumulativeSum, Rate
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport atomic_load, atomic_load_relaxed, atomic_store, mutex_lock, mutex_unlock
from kbroker._core.thread_setup cimport kb_block_signals, kb_short_slice
from kbroker._core.timer.timing_wheel cimport timer_close, timer_is_quiet
from kbroker.common._quota_counter cimport NO_LIMIT
from kbroker.common.quotas import enforced_key, is_shadow_key
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections._quota_core cimport ConnectionVerdict, VerdictObserver
from kbroker.network._kafka_request cimport kafka_request
from kbroker.network.processor._inbound cimport InboundRequest
from kbroker.quota._client_quota_manager cimport ClientQuotaManager, new_manager
from kbroker.quota._counter_metrics cimport new_counter_metrics
from kbroker.quota._counter_metrics import TYPES
from kbroker.quota._client_sensors cimport (
    KINDS, KIND_MUTATION, KIND_REQUEST, ClientQuotas, QuotaManager, is_enabled, manager_at, quotas_new, quotas_release,
    quotas_retain, update_quota,
)
from kbroker.common._text cimport Text
from kbroker.quota._entities cimport PART_DEFAULT, PART_EXACT, PART_NONE, encoded, part_of, text_of
from kbroker.quota._quota_enforcement cimport (
    charge_request, gate_exempt, serve_shadows, settle_verdicts, throttle_request,
)
from kbroker.quota._quota_events cimport (
    EVENT_SHADOW, EVENT_VERDICT, QUOTA_CONNECTION_RATE, QUOTA_TYPES, VerdictEvent, VerdictRing, publish_connection,
    verdict_rows,
)
from kbroker.quota._throttled_channel_reaper cimport throttled_advance, throttled_close
from kbroker.quota.verdict import Verdict


cdef struct VerdictRelay:
    VerdictObserver observer    # first: the network layer uses only this
    ClientQuotas *quotas        # counted
    VerdictListener *listener   # one count, or NULL


cdef void publish_verdict(VerdictObserver *observer, const ConnectionVerdict *given) noexcept nogil:
    cdef VerdictRelay *relay = <VerdictRelay *>observer
    cdef VerdictEvent verdict
    memset(&verdict, 0, sizeof(verdict))
    verdict.note.kind = EVENT_SHADOW if given.is_shadow else EVENT_VERDICT
    verdict.note.quota_type = QUOTA_CONNECTION_RATE
    verdict.note.flag = <int8_t>given.is_refused
    verdict.note.time_ms = given.time_ms
    verdict.note.value = given.observed
    verdict.limit = given.limit
    verdict.window_ms = given.window_ms
    verdict.asked_ms = given.asked_ms
    verdict.served_ms = given.served_ms
    publish_connection(
        &relay.quotas.shadow_verdicts if given.is_shadow else &relay.quotas.verdicts, &verdict, given.address)
    if relay.listener != NULL:
        relay.listener.verdict(relay.listener, &verdict, given.address)


cdef void release_observer(VerdictObserver *observer) noexcept nogil:
    cdef VerdictRelay *relay = <VerdictRelay *>observer
    quotas_release(relay.quotas)
    if relay.listener != NULL:
        relay.listener.release(relay.listener)
    free(relay)


cdef bint observe_verdicts(ConnectionQuotas connections, ClientQuotas *quotas, VerdictListener *listener) except False:
    cdef VerdictRelay *relay = <VerdictRelay *>calloc(1, sizeof(VerdictRelay))
    cdef VerdictObserver *before
    if relay == NULL:
        raise MemoryError
    relay.observer.verdict = publish_verdict
    relay.observer.release = release_observer
    relay.quotas = quotas_retain(quotas)
    relay.listener = listener
    with nogil:
        mutex_lock(&connections.core.lock)
        before = connections.core.observer
        connections.core.observer = &relay.observer
        mutex_unlock(&connections.core.lock)
        if before != NULL:
            before.release(before)
    return True


VERDICT_TYPES = (*TYPES, "ConnectionRate")
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")

MAX_COUNTERS = 5_000    # of one type, for client ids that only a default quota covers

cdef enum:
    REAP_MS = 200


cdef class ClientQuotaManagers:
    """The managers of all types over one registry, and the channels they have throttled.

    Args:
        clock: the broker's clock; None: the system clock.
        registry: the ``Metrics`` that exposes the counters.
        samples, window_seconds: quota.window.num and quota.window.size.seconds.
        controller_samples, controller_window_seconds: the same with controller.quota.
        max_counters: limit per type for client ids that a default quota covers (kbroker.quota.max.counters); a new
            counter then replaces the least recently recorded one that is within its quota.
    Raises: TypeError, ValueError for wrong arguments.
    Attributes: produce, fetch, request, controller_mutation: the managers by type. enforced: all four in the order of
    TYPES; shadows: those of the shadow quotas in the same order.
    Threads: any, but ``run_reaper`` is the body of one thread, and ``close`` must follow its end.
    """

    def __cinit__(self, clock, registry, *, samples=11, window_seconds=1, controller_samples=11,
                  controller_window_seconds=1, max_counters=MAX_COUNTERS):
        cdef ClientQuotas *quotas
        cdef MetricConfig client = MetricConfig(samples, index(window_seconds) * 1000)
        cdef MetricConfig controller = MetricConfig(controller_samples, index(controller_window_seconds) * 1000)
        cdef int kind
        cdef int64_t most_made_up = index(max_counters)
        cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")
        if most_made_up < 1:
            raise ValueError(f"max_counters must be >= 1, got {max_counters}")
        quotas = self.quotas = quotas_new(
            borrow_clock(clock), borrow_config(registry.config), &client.config, &controller.config, most_made_up, seed)
        if quotas == NULL:
            raise MemoryError
        self._clock = clock
        self.registry = registry
        self._own = []
        quotas.exempt = sensor_retain(borrow_sensor(self.own_sensor("exempt-Request", registry.metric_name(
            "exempt-request-time", "Request", (), "Tracking exempt-request-time utilization percentage"), Rate())))
        unlimited = Quota.upper(NO_LIMIT)
        self._counters = new_counter_metrics(quotas, clock, registry, [
            (controller if kind == KIND_MUTATION else client).replace(quota=unlimited) for kind in range(KINDS)])
        managers = []
        for kind in range(KINDS):
            name = registry.metric_name("queue-size", TYPES[kind], (), "Tracking the size of the delay queue")
            queue = self.own_sensor(f"{TYPES[kind]}-delayQueue", name, CumulativeSum())
            quotas.managers[kind].delay_queue = sensor_retain(borrow_sensor(queue))
            managers.append(new_manager(quotas, &quotas.managers[kind], self._counters, queue.metrics[name]))
        self.produce, self.fetch, self.request, self.controller_mutation = self.enforced = tuple(managers)
        self.shadows = tuple(
            [new_manager(quotas, &quotas.shadows[kind], self._counters, None) for kind in range(KINDS)])
        registry.add_source(self._counters.publish_to_registry)

    cdef object own_sensor(self, str sensor_name, object metric_name, object stat):
        """Return a sensor without a client."""
        sensor = self.registry.sensor(sensor_name)
        sensor.add(metric_name, stat)
        self._own.append(sensor)
        return sensor

    def __dealloc__(self):
        cdef ClientQuotas *quotas = self.quotas
        if quotas != NULL:
            with nogil:
                quotas_release(quotas)

    def update(self, user, client_id, str key not None, value) -> None:
        """Set or remove an entity's quota; it applies when this returns, and counters keep their values.

        Args:
            user, client_id: names, ``DEFAULT_ENTITY``, or None for an entity without that part.
            key: producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage (of one thread) or
                controller_mutation_rate (partitions a second); with the prefix "shadow." the shadow quota's.
            value: above zero; None removes the quota.
        Raises: ValueError, TypeError.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef int user_part = part_of(user), client_part = part_of(client_id), kind
        cdef bytes user_name = encoded(None if user_part == PART_DEFAULT else user, "user")
        cdef bytes client_name = encoded(None if client_part == PART_DEFAULT else client_id, "client_id")
        cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
        cdef bint removes = value is None, done
        cdef double limit = 0 if value is None else value
        cdef QuotaManager *manager
        if enforced_key(key) not in KEYS:
            raise ValueError(f"key must be one of {', '.join(KEYS)}, got {key!r}")
        if user_part == PART_NONE and client_part == PART_NONE:
            raise ValueError("an entity needs a user, a client id, or both")
        if user_part == PART_EXACT and not user_name or client_part == PART_EXACT and not client_name:
            raise ValueError("the name of an entity must not be empty")
        if not removes and not limit > 0:
            raise ValueError(f"a quota must be above 0, got {value}")
        kind = KEYS.index(enforced_key(key))
        manager = manager_at(quotas, KINDS + kind if is_shadow_key(key) else kind)
        with nogil:
            done = update_quota(quotas, manager, user_part, client_part, user_text, client_text, limit, removes)
        if not done:
            raise MemoryError

    def publish_to_registry(self) -> None:
        """Register new counters and remove evicted ones; called by the registry."""
        self._counters.publish_to_registry()

    def expire_inactive(self, time_ms=None) -> list:
        """Remove the counters without a record for more than an hour; return their sensors' names.

        The owner calls this every 30 s (``metrics.registry.EXPIRY_INTERVAL_MS``).
        """
        return self._counters.expire(checked_time(time_ms, self.quotas.clock))

    def charge(self, InboundRequest request not None) -> int:
        """Charge the handler time of a request whose response is about to be sent, and end that time.

        The network threads' time is charged once the response is sent.
        Returns: the delay in milliseconds by which its client is over its request_percentage. Raises: ValueError after
        its response.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef Request *judged = request.request
        cdef int32_t throttle_ms
        request.check_kafka()
        with nogil:
            throttle_ms = charge_request(quotas, judged, clock_now_ns(quotas.clock))
        return throttle_ms

    def charge_exempt(self, InboundRequest request not None) -> None:
        """Count the time of a request that is exempt from throttling. Raises: ValueError after its response."""
        cdef ClientQuotas *quotas = self.quotas
        cdef Request *judged = request.request
        request.check_kafka()
        with nogil:
            gate_exempt(quotas, judged, clock_now_ns(quotas.clock))

    def throttle(self, ClientQuotaManager manager not None, InboundRequest request not None,
                 int32_t throttle_time_ms) -> None:
        """Mute the connection of a request for throttle_ms from now, as decided by one of the managers.

        Call it once, before the response: that is sent at once, and the connection is read again when both have ended.
        Raises: ValueError after its response.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef QuotaManager *by = manager.manager
        cdef Request *judged = request.request
        request.check_kafka()
        if manager.quotas != quotas:
            raise ValueError("the manager is another broker's")
        if by.is_shadow:
            raise ValueError("a shadow quota throttles nothing")
        if throttle_time_ms > 0:
            with nogil:
                throttle_request(quotas, by, judged, throttle_time_ms, clock_now_ns(quotas.clock))

    @property
    def charges_time(self) -> bool:
        """Return whether an entity has a request_percentage, or a shadow of it."""
        return is_enabled(&self.quotas.managers[KIND_REQUEST]) or is_enabled(&self.quotas.shadows[KIND_REQUEST])

    def settle(self, InboundRequest request not None, bint serves_mutations=True) -> None:
        """Publish the verdicts on a request (``verdicts``), before its response.

        ``serves_mutations``: whether its response contains the delay of its mutations, if there was one.
        Raises: ValueError.
        """
        cdef Request *judged = request.request
        request.check_kafka()
        if kafka_request(judged).quota_events != NULL:
            with nogil:
                serve_shadows(self.quotas, judged, serves_mutations, clock_now_ns(self.quotas.clock))
                settle_verdicts(self.quotas, judged)

    def verdicts(self, bint take=False) -> list:
        """Return the latest Verdicts, the oldest first; ``take``: they are not returned again.

        At most 1024, and as many of shadows.
        """
        cdef list enforced = [Verdict.of(row) for row in verdict_rows(&self.quotas.verdicts, take)]
        cdef list shadows = [Verdict.of(row) for row in verdict_rows(&self.quotas.shadow_verdicts, take)]
        return sorted(enforced + shadows, key=itemgetter(0)) if shadows else enforced

    def verdict_totals(self, bint shadow=False) -> dict:
        """Return {quota type: (delays, refusals)} since the start, for VERDICT_TYPES.

        ``shadow``: delays and refusals that shadows would have caused.
        """
        cdef VerdictRing *ring = &self.quotas.shadow_verdicts if shadow else &self.quotas.verdicts
        cdef int i
        return {
            VERDICT_TYPES[i]: (atomic_load_relaxed(&ring.delays[i]), atomic_load_relaxed(&ring.refusals[i]))
            for i in range(QUOTA_TYPES)
        }

    def observe_connections(self, ConnectionQuotas connections not None) -> None:
        """Count verdicts on new connections too."""
        observe_verdicts(connections, self.quotas, NULL)

    def note_updates(self, bint on) -> None:
        """Set whether requests note the values that they record into counters, for a request log."""
        atomic_store(&self.quotas.notes_updates, on)

    def run_reaper(self) -> None:
        """Body of the thread that ends throttles; returns after ``stop_reaper``."""
        cdef ClientQuotas *quotas = self.quotas
        with nogil:
            kb_block_signals()
            kb_short_slice()
            while not atomic_load(&quotas.is_closed):
                throttled_advance(quotas, REAP_MS)

    def stop_reaper(self) -> None:
        """Let ``run_reaper`` return; no more channels are throttled, and throttled ones stay so until ``close``."""
        cdef ClientQuotas *quotas = self.quotas
        atomic_store(&quotas.is_closed, 1)
        with nogil:
            timer_close(quotas.timer)

    def advance(self) -> bool:
        """End the due throttles on the calling thread; return whether there were any. For use without a reaper."""
        cdef ClientQuotas *quotas = self.quotas
        cdef bint was_due
        with nogil:
            was_due = throttled_advance(quotas, 0)
        return was_due

    def close(self) -> None:
        """End all throttles and prevent others. Call it after ``run_reaper`` has returned; idempotent."""
        cdef ClientQuotas *quotas = self.quotas
        with nogil:
            throttled_close(quotas)

    @property
    def is_idle(self) -> bool:
        """Return whether no throttle is due, so that the reaper waits."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.quotas.timer)
        return quiet
