"""The client quota managers for Python: limits are set here, throttles end here.

Requests without a native handler are judged here. The verdict observer runs under the lock of the connection limits and
locks only leaves: the ring's and the listener's.
Source: ``QuotaFactory.QuotaManagers``, ``ClientQuotaManager``, ``ClientRequestQuotaManager``,
``ControllerMutationQuotaManager``.
"""
cimport cython
import os
from operator import index, itemgetter
from typing import NamedTuple

from libc.float cimport DBL_MAX
from libc.stdint cimport int32_t, int64_t, int8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.clock cimport borrow_clock, clock_now_ns
from kbroker._core.metrics.metric cimport checked_time
from kbroker._core.metrics.metric_config cimport MetricConfig, Quota, borrow_config
from kbroker._core.metrics.sensor cimport borrow_sensor
from kbroker._core.metrics.sensor import QuotaViolationError
from kbroker._core.metrics.sensor_core cimport Violation, sensor_record, sensor_retain
from kbroker._core.metrics.stats import CumulativeSum, Rate
from kbroker._core.requests.request cimport Request
from kbroker._core.sync cimport atomic_load, atomic_load_relaxed, atomic_store, mutex_lock, mutex_unlock
from kbroker._core.thread_setup cimport kb_block_signals, kb_short_slice
from kbroker._core.timer.timing_wheel cimport timer_close, timer_is_quiet
from kbroker.common._quota_counter cimport NO_LIMIT
from kbroker.common._text cimport Text
from kbroker.common.quotas import enforced_key, is_shadow_key
from kbroker.network._kafka_request cimport kafka_request
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections._quota_core cimport ConnectionVerdict, VerdictObserver
from kbroker.network.processor._inbound cimport InboundRequest
from kbroker.quota._client_sensors cimport (
    KINDS, KIND_MUTATION, KIND_REQUEST, ClientQuotas, ClientSensors, QuotaManager, client_sensors, is_enabled,
    manager_at, quotas_new, quotas_release, quotas_retain, record_and_get_throttle, sensors_release, throttled_advance,
    throttled_close, update_quota,
)
from kbroker.quota._counter_metrics cimport new_counter_metrics
from kbroker.quota._counter_metrics import TYPES
from kbroker.quota._entities cimport (
    PART_DEFAULT, PART_EXACT, PART_NONE, Match, encoded, entities_match, part_of, text_of,
)
from kbroker.quota._entities import sanitize
from kbroker.quota._quota_enforcement cimport (
    charge_mutation, charge_request, gate_exempt, serve_shadows, settle_verdicts, throttle_request,
)
from kbroker.quota._quota_events cimport (
    EVENT_SHADOW, EVENT_VERDICT, QUOTA_CONNECTION_RATE, QUOTA_TYPES, VerdictEvent, VerdictRing, publish_connection,
    verdict_rows,
)
from kbroker.quota.verdict import Verdict


# --------------------------------------------- the quotas of one type

class Resolution(NamedTuple):
    """Quota that applies to a user and a client id.

    ``limit``: 2**63 as a float where no quota matches. ``level``: the matching one of the eight levels (1 the most
    specific), 0 for none. ``user_tag`` (percent-encoded), ``client_id_tag``: the name of the counter.
    """

    limit: float
    level: int
    user_tag: str
    client_id_tag: str


cdef class ClientQuotaManager:
    """The quotas of one type, or its shadow quotas. Created by ``ClientQuotaManagers``.

    In all methods ``user`` is a principal's name without "User:", ``client_id`` may be None, which means the empty one,
    and ``time_ms`` is milliseconds since 1970 on the broker's clock, None for now.
    Threads: any.
    """

    def __init__(self):
        raise TypeError("a ClientQuotaManager is made by ClientQuotaManagers")

    def __dealloc__(self):
        cdef ClientQuotas *quotas = self.quotas
        if quotas != NULL:
            with nogil:
                quotas_release(quotas)

    cdef QuotaManager *demand(self) except NULL:
        if self.manager == NULL:
            raise ValueError("the ClientQuotaManager was not made by ClientQuotaManagers")
        return self.manager

    @property
    def is_enabled(self) -> bool:
        """Return whether an entity has a quota of this type; without one nothing is recorded."""
        return is_enabled(self.demand())

    @property
    def is_shadow(self) -> bool:
        """Return whether the quotas are shadow quotas, which are evaluated and counted, but not enforced."""
        return self.demand().is_shadow

    @property
    def queue_size(self) -> int:
        """Number of channels currently throttled by this manager."""
        self.demand()
        return 0 if self.queue is None else round(self.queue.measure())

    def resolve(self, str user not None, client_id=None):
        """Return the quota that applies to a client: a Resolution."""
        cdef bytes user_name = encoded(user, "user"), client_name = encoded(client_id, "client_id")
        cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
        cdef QuotaManager *manager = self.demand()
        cdef Match match
        with nogil:
            mutex_lock(&manager.lock)
            entities_match(&manager.entities, user_text, client_text, &match)
            mutex_unlock(&manager.lock)
        return Resolution(
            match.limit, match.level, sanitize(user) if match.user.size_bytes else "",
            client_id if match.client_id.size_bytes else "")

    cdef ClientSensors *find(self, user, client_id, int64_t now_ms) except NULL:
        return find_sensors(self.demand(), user, client_id, now_ms)

    def record_and_get_throttle(self, str user not None, client_id, double value, time_ms=None) -> int:
        """Record a value, and return the client's throttle time in milliseconds.

        A controller mutation is recorded only if its client is not already over its quota; other values always are.
        Args: value: bytes, percent of a thread, or mutations.
        Returns: 0 while the quota is kept or none is set; an int32 as in Kafka: a delay above 24 days may be negative.
        """
        cdef QuotaManager *manager = self.demand()
        cdef int64_t now_ms = checked_time(time_ms, manager.quotas.clock)
        cdef ClientSensors *sensors
        cdef int32_t throttle_ms
        if not is_enabled(manager):
            return 0
        sensors = self.find(user, client_id, now_ms)
        with nogil:
            throttle_ms = record_and_get_throttle(manager, sensors, value, now_ms)
            sensors_release(sensors)
        return throttle_ms

    def record_no_throttle(self, str user not None, client_id, double value, time_ms=None) -> None:
        """Record a value without a check; do nothing where no quota of the type is set."""
        if is_enabled(self.demand()):
            self.record(user, client_id, value, time_ms)

    def unrecord(self, str user not None, client_id, double value, time_ms=None) -> None:
        """Subtract a recorded value, without a check, even where no quota of the type is set."""
        self.record(user, client_id, -value, time_ms)

    cdef object record(self, user, client_id, double value, time_ms):
        cdef int64_t now_ms = checked_time(time_ms, self.demand().quotas.clock)
        cdef ClientSensors *sensors = self.find(user, client_id, now_ms)
        with nogil:
            sensor_record(sensors.quota, value, now_ms, False, NULL)
            sensors_release(sensors)

    def max_value_in_window(self, str user not None, client_id) -> float:
        """Return the maximum that a client may use within the window: limit x (samples - 1) x seconds.

        The largest float where no quota applies.
        """
        if not is_enabled(self.demand()):
            return DBL_MAX
        limit = self.resolve(user, client_id).limit
        return DBL_MAX if limit == NO_LIMIT else limit * self.manager.window_s

    def sensor(self, str user not None, client_id=None):
        """Return the Sensor of a client's counter, created if absent; native handlers record to the same one."""
        cdef int64_t now_ms = checked_time(None, self.demand().quotas.clock)
        cdef ClientSensors *sensors = self.find(user, client_id, now_ms)
        try:
            return self.metrics.find(self.manager, sensors)
        finally:
            with nogil:
                sensors_release(sensors)

    def noted(self, InboundRequest request not None):
        """Return a view of this manager and its shadows' manager, whose counters note their charges on a request.

        Shadows refuse nothing. The view has ``is_enabled`` and ``sensor``; a counter has the ``record`` and
        ``record_strict`` of a Sensor. Use the view before the response is sent.
        """
        cdef NotedManager view = NotedManager.__new__(NotedManager)
        self.demand()
        view.manager = self
        view.request = request
        return view

    def __repr__(self):
        return f"<ClientQuotaManager {'shadow ' if self.is_shadow else ''}{self.name}>"


cdef ClientSensors *find_sensors(QuotaManager *manager, user, client_id, int64_t now_ms) except NULL:
    """Return a counted reference to the counter of a client, created if absent. Raises: MemoryError."""
    cdef bytes user_name = encoded(user, "user"), client_name = encoded(client_id, "client_id")
    cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
    cdef ClientSensors *sensors
    with nogil:
        sensors = client_sensors(manager, user_text, client_text, now_ms)
    if sensors == NULL:
        raise MemoryError
    return sensors


cdef ClientQuotaManager new_manager(ClientQuotas *quotas, QuotaManager *of, CounterMetrics metrics, object queue):
    cdef ClientQuotaManager manager = ClientQuotaManager.__new__(ClientQuotaManager)
    manager.quotas = quotas_retain(quotas)
    manager.manager = of
    manager.metrics = metrics
    manager.queue = queue
    manager.name = TYPES[of.kind]
    return manager


@cython.final
cdef class NotedManager:
    """View of the manager of controller mutations for one request. Created by ``ClientQuotaManager.noted``."""
    cdef ClientQuotaManager manager
    cdef InboundRequest request

    @property
    def is_enabled(self) -> bool:
        """Return whether an entity has a quota or a shadow."""
        return is_enabled(self.manager.manager) or is_enabled(&self.manager.quotas.shadows[KIND_MUTATION])

    def sensor(self, str user not None, client_id=None):
        """Return the counter of a client."""
        cdef NotedCounter counter = NotedCounter.__new__(NotedCounter)
        cdef ClientQuotas *quotas = self.manager.quotas
        cdef int64_t now_ms = checked_time(None, quotas.clock)
        counter.manager = self.manager
        counter.request = self.request
        if is_enabled(self.manager.manager):
            counter.sensors = find_sensors(self.manager.manager, user, client_id, now_ms)
        if is_enabled(&quotas.shadows[KIND_MUTATION]):
            counter.shadow = find_sensors(&quotas.shadows[KIND_MUTATION], user, client_id, now_ms)
        return counter


@cython.final
cdef class NotedCounter:
    """A client's counter, and its shadow's, that notes its charges and refusals on a request."""
    cdef ClientQuotaManager manager
    cdef InboundRequest request
    cdef ClientSensors *sensors     # counted; NULL: no quota is set
    cdef ClientSensors *shadow      # counted; NULL: no shadow is set

    def __dealloc__(self):
        cdef ClientSensors *sensors = self.sensors
        cdef ClientSensors *shadow = self.shadow
        with nogil:
            sensors_release(sensors)
            sensors_release(shadow)

    def record(self, double value, int64_t time_ms) -> None:
        """Charge, then check. Raises: QuotaViolationError; the charge stays."""
        self.charge(value, time_ms, False)

    def record_strict(self, double value, int64_t time_ms) -> None:
        """Check, and charge only if the quota is kept. Raises: QuotaViolationError; nothing was charged."""
        self.charge(value, time_ms, True)

    cdef object charge(self, double value, int64_t time_ms, bint is_strict):
        cdef ClientQuotas *quotas = self.manager.quotas
        cdef Request *request = self.request.request
        cdef Violation violation
        self.request.check_kafka()
        with nogil:
            if self.shadow != NULL:
                charge_mutation(quotas, &quotas.shadows[KIND_MUTATION], self.shadow, request, value, time_ms,
                                is_strict, &violation)
            violation.metric = NULL
            if self.sensors != NULL:
                charge_mutation(quotas, self.manager.manager, self.sensors, request, value, time_ms, is_strict,
                                &violation)
        if violation.metric != NULL:
            raise QuotaViolationError(None, violation.observed, violation.bound, max(violation.throttle_ms, 0))


# -------------------------------------------- the quotas of all types

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

MAX_COUNTERS = 5_000    # of one type, for client ids that no quota names

cdef enum:
    REAP_MS = 200


cdef class ClientQuotaManagers:
    """The managers of all types over one registry, and the channels they have throttled.

    Args:
        clock: the broker's clock; None: the system clock.
        registry: the ``Metrics`` that exposes the counters.
        samples, window_seconds: quota.window.num and quota.window.size.seconds.
        controller_samples, controller_window_seconds: the controller.quota settings of these names.
        max_counters: limit per type for client ids that no quota names (kbroker.quota.max.counters); a new
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
        """Register a sensor with one metric, which belongs to no client, and return it."""
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
        if kind == KIND_MUTATION:
            limit = min(limit, NO_LIMIT)    # an infinite rate would make the tokens NaN, and they would stay NaN
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
        """Mute the connection of a request for throttle_time_ms from now, as decided by one of the managers.

        Call it once, before the response, which is then sent without a delay. The connection is read again when the
        response is sent and the time has passed.
        Raises: ValueError after the response, for another broker's manager, and for the manager of a shadow quota.
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
            request.is_muted = True
            with nogil:
                throttle_request(quotas, by, judged, throttle_time_ms, clock_now_ns(quotas.clock))

    @property
    def charges_time(self) -> bool:
        """Return whether an entity has a request_percentage, or a shadow of it."""
        return is_enabled(&self.quotas.managers[KIND_REQUEST]) or is_enabled(&self.quotas.shadows[KIND_REQUEST])

    def settle(self, InboundRequest request not None, bint serves_mutations=True) -> None:
        """Publish the verdicts on a request (``verdicts``), before its response.

        ``serves_mutations``: whether its response contains the delay of its mutations, if there was one.
        Raises: ValueError after its response.
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

    def note_updates(self, bint on, bint appends=False) -> None:
        """Set whether requests note, for a request log, values recorded into counters, and offsets of appends."""
        atomic_store(&self.quotas.notes_updates, on)
        atomic_store(&self.quotas.notes_appends, appends)

    def run_reaper(self) -> None:
        """Body of the thread that ends throttles; returns after ``stop_reaper``."""
        cdef ClientQuotas *quotas = self.quotas
        with nogil:
            kb_block_signals()
            kb_short_slice()
            while not atomic_load(&quotas.is_closed):
                throttled_advance(quotas, REAP_MS)

    def stop_reaper(self) -> None:
        """End ``run_reaper``; no more channels are throttled, and throttled ones stay so until ``close``."""
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
        """Return whether no throttle is due or being ended, and the reaper waits (or has been closed)."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.quotas.timer)
        return quiet
