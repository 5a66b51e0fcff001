# cython: freethreading_compatible=True
"""The client quota managers as Python sees them: limits come in here, cold requests are judged here.

Source: ``QuotaFactory.QuotaManagers``, ``ClientQuotaManager``, ``ClientRequestQuotaManager``,
``ControllerMutationQuotaManager``.
"""
cimport cython
import os
import threading
import weakref
from operator import index
from typing import NamedTuple
from urllib.parse import quote

from libc.float cimport DBL_MAX
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc

from kbroker._core.clock cimport borrow_clock, clock_now_ns, clock_retain
from kbroker._core.metric cimport checked_time
from kbroker._core.metric_config cimport QUOTA_NONE, MetricConfig, Quota, StatConfig, borrow_config
from kbroker._core.request cimport Request
from kbroker._core.sensor cimport Sensor, borrow_sensor, sensor_handle
from kbroker._core.sensor import QuotaViolationError
from kbroker._core.sensor_core cimport Violation, metric_get_config, sensor_record, sensor_retain
from kbroker._core.stats import CumulativeSum, Rate
from kbroker._core.sync cimport (
    atomic_load, atomic_load_relaxed, atomic_store, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.thread_setup cimport kb_block_signals, kb_short_slice
from kbroker._core.timing_wheel cimport timer_close, timer_is_quiet, timer_new
from kbroker.common._quota_counter cimport NO_LIMIT, limited_config
from kbroker.network._connection_quotas cimport ConnectionQuotas
from kbroker.network._inbound cimport InboundRequest
from kbroker.server.quota._connection_verdicts cimport observe_verdicts
from kbroker.server.quota._counters cimport (
    KIND_MUTATION, KIND_REQUEST, KINDS, ClientQuotas, ClientSensors, client_sensors, is_enabled, quotas_release,
    quotas_retain, forget_untold, record_and_get_throttle, sensors_release, take_evicted, take_expired, take_untold,
    update_quota,
)
from kbroker.server.quota._entities cimport (
    PART_DEFAULT, PART_EXACT, PART_NONE, Match, Text, entities_match,
)
from kbroker.server.quota._gate cimport (
    charge_mutation, charge_request, gate_exempt, settle_verdicts, throttle_request,
)
from kbroker.server.quota._throttled cimport throttled_advance, throttled_close
from kbroker.server.quota._verdict cimport QUOTA_TYPES, verdict_rows, verdicts_init
from kbroker.server.quota.verdict import Verdict


TYPES = ("Produce", "Fetch", "Request", "ControllerMutation")
VERDICT_TYPES = (*TYPES, "ConnectionRate")
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
RATES = ("byte-rate", "byte-rate", "request-time", "tokens")

MAX_COUNTERS = 5_000    # of one type and of client ids that only a default quota names

cdef enum:
    REAP_MS = 200
    TOLD_AT_ONCE = 500          # counters made known to the registry by one look into it, some 50 ms


class _DefaultEntity:
    """The default entity of a type, where there is none of its own."""

    def __repr__(self):
        return "DEFAULT_ENTITY"


DEFAULT_ENTITY = _DefaultEntity()


class Resolution(NamedTuple):
    """What holds for a user and a client id.

    ``limit``: 2**63 as a float where nothing matches. ``level``: which of the eight levels matched (1 the most
    specific), 0 for none. ``user_tag`` (percent-encoded), ``client_id_tag``: the name of the counter.
    """

    limit: float
    level: int
    user_tag: str
    client_id_tag: str


def sanitize(str name not None) -> str:
    """Return a user's name as it stands in metric tags: percent-encoded, as Kafka's ``Sanitizer`` does it."""
    return quote(name, safe="", encoding="utf-8", errors="replace").replace("~", "%7E")


cdef bytes encoded(object name, str what):
    if name is None:
        return b""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str or None, not {type(name).__name__}")
    return name.encode("utf-8", "surrogateescape")


cdef Text text_of(bytes data) noexcept:
    cdef Text text
    text.data = <const char *>data
    text.size_bytes = <int32_t>len(data)
    return text


cdef int part_of(object name) noexcept:
    return PART_NONE if name is None else (PART_DEFAULT if name is DEFAULT_ENTITY else PART_EXACT)


cdef class ClientQuotaManagers:
    """The managers of all types over one registry, and the channels they have throttled.

    Args:
        clock: the broker's clock; None is the system's.
        registry: the ``Metrics`` that shows the counters.
        samples, window_seconds: quota.window.num and quota.window.size.seconds.
        controller_samples, controller_window_seconds: the same with controller.quota.
        max_counters: of each type, of client ids without a quota of their own (kbroker.quota.max.counters); a further
            one replaces the one that nobody has recorded to for the longest, of those that are within their quota.
    Raises: TypeError, ValueError for wrong arguments.
    Threads: any, but ``run_reaper`` is the body of one thread, and ``close`` comes after its end.
    """

    def __cinit__(self, clock, registry, *, samples=11, window_seconds=1, controller_samples=11,
                  controller_window_seconds=1, max_counters=MAX_COUNTERS):
        cdef ClientQuotas *quotas
        cdef QuotaManager *manager
        cdef const StatConfig *unlimited = borrow_config(registry.config)
        cdef MetricConfig client = MetricConfig(samples, index(window_seconds) * 1000)
        cdef MetricConfig controller = MetricConfig(controller_samples, index(controller_window_seconds) * 1000)
        cdef int kind
        cdef int64_t most_made_up = index(max_counters)
        cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")
        if most_made_up < 1:
            raise ValueError(f"max_counters must be >= 1, got {max_counters}")
        borrow_clock(clock)
        quotas = self.quotas = <ClientQuotas *>calloc(1, sizeof(ClientQuotas))
        if quotas == NULL:
            raise MemoryError
        atomic_store(&quotas.refs, 1)
        mutex_init(&quotas.throttled_lock)
        verdicts_init(&quotas.verdicts)
        for kind in range(KINDS):
            manager = &quotas.managers[kind]
            mutex_init(&manager.lock)
            manager.kind = kind
            manager.most_made_up = most_made_up
            manager.entities.seed = seed
            limited_config(kind, &controller.config if kind == KIND_MUTATION else &client.config, &manager.limited,
                           &manager.cap_ms)
            manager.unlimited = unlimited[0]
            manager.unlimited.quota_kind = QUOTA_NONE
            manager.window_s = (manager.limited.samples - 1) * (<double>manager.limited.window_ms / 1000)
        quotas.clock = clock_retain(borrow_clock(clock))
        for kind in range(KINDS):
            quotas.managers[kind].clock = quotas.clock
        quotas.timer = timer_new(quotas.clock, 1, 20)
        if quotas.timer == NULL:
            raise MemoryError
        self._clock = clock
        self.registry = registry
        self._telling = threading.RLock()
        self._own = []
        exempt = registry.sensor("exempt-Request")
        exempt.add(registry.metric_name(
            "exempt-request-time", "Request", (), "Tracking exempt-request-time utilization percentage"), Rate())
        quotas.exempt = sensor_retain(borrow_sensor(exempt))
        self._own.append(exempt)
        managers = []
        for kind in range(KINDS):
            managers.append(self.make(kind, controller if kind == KIND_MUTATION else client))
        self.produce, self.fetch, self.request, self.controller_mutation = managers
        registry.add_source(self.tell_registry)

    cdef ClientQuotaManager make(self, int kind, MetricConfig config):
        """The handle of one manager, with its delay queue's sensor."""
        cdef ClientQuotaManager handle = ClientQuotaManager.__new__(ClientQuotaManager)
        name = self.registry.metric_name("queue-size", TYPES[kind], (), "Tracking the size of the delay queue")
        sensor = self.registry.sensor(f"{TYPES[kind]}-delayQueue")
        sensor.add(name, CumulativeSum())
        self._own.append(sensor)
        handle.quotas = quotas_retain(self.quotas)
        handle.manager = &self.quotas.managers[kind]
        handle.manager.delay_queue = sensor_retain(borrow_sensor(sensor))
        handle.owner = weakref.ref(self)
        handle.queue = sensor.metrics[name]
        handle.limited_config = config.replace(quota=Quota.upper(NO_LIMIT))
        handle.name = TYPES[kind]
        return handle

    def __dealloc__(self):
        cdef ClientQuotas *quotas = self.quotas
        if quotas != NULL:
            with nogil:
                quotas_release(quotas)

    def update(self, user, client_id, str key not None, value) -> None:
        """Give an entity a quota, or take it away; in force when this returns, and counters keep what they hold.

        Args:
            user, client_id: names, ``DEFAULT_ENTITY``, or None for an entity without that part.
            key: producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage (of one thread) or
                controller_mutation_rate (partitions a second).
            value: above zero; None removes.
        Raises: ValueError, TypeError.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef int user_part = part_of(user), client_part = part_of(client_id), kind
        cdef bytes user_name = encoded(None if user_part == PART_DEFAULT else user, "user")
        cdef bytes client_name = encoded(None if client_part == PART_DEFAULT else client_id, "client_id")
        cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
        cdef bint removes = value is None, done
        cdef double limit = 0 if value is None else value
        if key not in KEYS:
            raise ValueError(f"key must be one of {', '.join(KEYS)}, got {key!r}")
        if user_part == PART_NONE and client_part == PART_NONE:
            raise ValueError("an entity needs a user, a client id, or both")
        if user_part == PART_EXACT and not user_name or client_part == PART_EXACT and not client_name:
            raise ValueError("the name of an entity must not be empty")
        if not removes and not limit > 0:
            raise ValueError(f"a quota must be above 0, got {value}")
        kind = KEYS.index(key)
        with nogil:
            done = update_quota(quotas, &quotas.managers[kind], user_part, client_part, user_text, client_text, limit,
                                removes)
        if not done:
            raise MemoryError

    def tell_registry(self) -> None:
        """Make counters of clients that came and went since the last call known to the registry (which calls this).

        At most some hundreds of those that came, the oldest first: the rest at the next call.
        """
        cdef QuotaManager *manager
        cdef ClientSensors *sensors
        cdef int kind, left = TOLD_AT_ONCE
        with self._telling:
            for kind in range(KINDS):
                manager = &self.quotas.managers[kind]
                with nogil:
                    sensors = take_evicted(manager)
                self.untell(kind, sensors)
                while left > 0:
                    with nogil:
                        sensors = take_untold(manager)
                    if sensors == NULL:
                        break
                    left -= 1
                    try:
                        self.tell(kind, sensors)
                    finally:
                        with nogil:
                            sensors_release(sensors)

    cdef list untell(self, int kind, ClientSensors *gone):
        """Have the registry forget a list of removed counters, which is given back; returns their sensors' names."""
        cdef ClientSensors *following
        names = []
        while gone != NULL:
            following = gone.next
            user = gone.user.data[:gone.user.size_bytes].decode("utf-8", "replace")
            client = gone.client_id.data[:gone.client_id.size_bytes].decode("utf-8", "replace")
            suffix = f"{sanitize(user)}:{client}"
            for name in (f"{TYPES[kind]}-{suffix}", f"{TYPES[kind]}ThrottleTime-{suffix}"):
                names.append(name)
                self.registry.discard_removed(name)
            with nogil:
                sensors_release(gone)
            gone = following
        return names

    cdef object tell(self, int kind, ClientSensors *sensors):
        """Register the two sensors of a counter; returns the first's handle, None if it is gone or its name taken."""
        cdef bytes user = sensors.user.data[:sensors.user.size_bytes]
        cdef bytes client = sensors.client_id.data[:sensors.client_id.size_bytes]
        cdef ClientQuotaManager manager = (
            self.produce, self.fetch, self.request, self.controller_mutation)[kind]
        cdef StatConfig config
        cdef Sensor quota, throttle
        user_tag = sanitize(user.decode("utf-8", "replace"))
        client_tag = client.decode("utf-8", "replace")
        tags = {"user": user_tag, "client-id": client_tag}
        name = self.registry.metric_name
        with nogil:
            metric_get_config(sensors.limited, &config)
        limited = manager.limited_config.replace(quota=Quota.upper(config.bound))
        metrics = [(name(RATES[kind], TYPES[kind], tags, f"Tracking {RATES[kind]} per user/client-id"), limited)]
        if kind == KIND_MUTATION:
            metrics.insert(0, (name("mutation-rate", TYPES[kind], tags, "Tracking mutation-rate per user/client-id"),
                               self.registry.config))
        quota = sensor_handle(sensors.quota, f"{TYPES[kind]}-{user_tag}:{client_tag}", self._clock, metrics)
        metrics = [(name("throttle-time", TYPES[kind], tags, "Tracking average throttle-time per user/client-id"),
                    self.registry.config)]
        throttle = sensor_handle(
            sensors.throttle_time, f"{TYPES[kind]}ThrottleTime-{user_tag}:{client_tag}", self._clock, metrics)
        for handle in (quota, throttle):
            if handle.is_removed:
                return None
            try:
                self.registry.adopt(handle)
            except ValueError:      # two client ids that are no text may read the same
                return None
            if handle.is_removed:   # meanwhile
                self.registry.discard(handle)
                return None
        return quota

    def expire_inactive(self, time_ms=None) -> list:
        """Forget the counters without a record for more than an hour; return their sensors' names.

        The owner calls this every 30 s (``metrics.registry.EXPIRY_INTERVAL_MS``).
        """
        cdef int64_t now_ms = checked_time(time_ms, self.quotas.clock)
        cdef QuotaManager *manager
        cdef ClientSensors *expired
        cdef int kind
        names = []
        with self._telling:
            self.tell_registry()
            for kind in range(KINDS):
                manager = &self.quotas.managers[kind]
                with nogil:
                    expired = take_expired(manager, now_ms)
                names += self.untell(kind, expired)
        return names

    def charge(self, InboundRequest request not None) -> int:
        """Judge the handler's time of a request that is about to be answered, and end it.

        The network threads' time is charged once the answer is away.
        Returns: by how many milliseconds its client is over its request_percentage. Raises: ValueError when it was
        answered.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef Request *judged = request.request
        cdef int32_t throttle_ms
        request.check_open()
        with nogil:
            throttle_ms = charge_request(quotas, judged, clock_now_ns(quotas.clock))
        return throttle_ms

    def charge_exempt(self, InboundRequest request not None) -> None:
        """Count the time of a request that is never throttled for it. Raises: ValueError when it was answered."""
        cdef ClientQuotas *quotas = self.quotas
        cdef Request *judged = request.request
        request.check_open()
        with nogil:
            gate_exempt(quotas, judged, clock_now_ns(quotas.clock))

    def throttle(self, ClientQuotaManager manager not None, InboundRequest request not None,
                 int32_t throttle_time_ms) -> None:
        """Mute the connection of a request for so long from now, as decided by one of the managers.

        Call it once, before the answer: that goes out at once, and the connection is read again when both are over.
        Raises: ValueError when it was answered.
        """
        cdef ClientQuotas *quotas = self.quotas
        cdef QuotaManager *by = manager.manager
        cdef Request *judged = request.request
        request.check_open()
        if manager.quotas != quotas:
            raise ValueError("the manager is another broker's")
        if throttle_time_ms > 0:
            with nogil:
                throttle_request(quotas, by, judged, throttle_time_ms, clock_now_ns(quotas.clock))

    @property
    def charges_time(self) -> bool:
        """Whether any entity has a request_percentage."""
        return is_enabled(&self.quotas.managers[KIND_REQUEST])

    def settle(self, InboundRequest request not None) -> None:
        """Let the verdicts on a request be known (``verdicts``); before it is answered. Raises: ValueError."""
        cdef Request *judged = request.request
        request.check_open()
        if judged.trail != NULL:
            with nogil:
                settle_verdicts(self.quotas, judged)

    def verdicts(self, bint take=False) -> list:
        """Return the latest Verdicts, the oldest first, 1024 at most; ``take``: they are not returned again."""
        return [Verdict.of(row) for row in verdict_rows(&self.quotas.verdicts, take)]

    def verdict_totals(self) -> dict:
        """Return {quota type: (delays, refusals)} since the start, of VERDICT_TYPES."""
        cdef int i
        return {
            VERDICT_TYPES[i]: (atomic_load_relaxed(&self.quotas.verdicts.delays[i]),
                               atomic_load_relaxed(&self.quotas.verdicts.refusals[i]))
            for i in range(QUOTA_TYPES)
        }

    def observe_connections(self, ConnectionQuotas connections not None) -> None:
        """Count verdicts on new connections among these too."""
        observe_verdicts(connections, self.quotas, NULL)

    def note_updates(self, bint on) -> None:
        """Whether requests carry what they record into counters, for a request log."""
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
        """Let ``run_reaper`` return; channels are throttled no more, and those that are stay so until ``close``."""
        cdef ClientQuotas *quotas = self.quotas
        atomic_store(&quotas.is_closed, 1)
        with nogil:
            timer_close(quotas.timer)

    def advance(self) -> bool:
        """End the throttles that are due, on the calling thread; whether there were any. For those without a reaper."""
        cdef ClientQuotas *quotas = self.quotas
        cdef bint was_due
        with nogil:
            was_due = throttled_advance(quotas, 0)
        return was_due

    def close(self) -> None:
        """End all throttles now, and begin no more. After ``run_reaper`` has returned; twice does no harm."""
        cdef ClientQuotas *quotas = self.quotas
        with nogil:
            throttled_close(quotas)

    @property
    def is_quiet(self) -> bool:
        """Whether no throttle is due: the reaper waits."""
        cdef bint quiet
        with nogil:
            quiet = timer_is_quiet(self.quotas.timer)
        return quiet


cdef class ClientQuotaManager:
    """The quotas of one type. Made by ``ClientQuotaManagers``.

    In all methods ``user`` is a principal's name without "User:", ``client_id`` may be None, which is the empty one,
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
        """Whether any entity has a quota of this type; until one has, nothing is recorded."""
        return is_enabled(self.demand())

    @property
    def queue_size(self) -> int:
        """Channels throttled by this manager now."""
        self.demand()
        return round(self.queue.measure())

    def resolve(self, str user not None, client_id=None):
        """Return what holds for a client: a Resolution."""
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
        """The counter of a client, with a count."""
        cdef bytes user_name = encoded(user, "user"), client_name = encoded(client_id, "client_id")
        cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
        cdef QuotaManager *manager = self.demand()
        cdef ClientSensors *sensors
        with nogil:
            sensors = client_sensors(manager, user_text, client_text, now_ms)
        if sensors == NULL:
            raise MemoryError
        return sensors

    def record_and_get_throttle(self, str user not None, client_id, double value, time_ms=None) -> int:
        """Record, and return how many milliseconds the client is to be throttled.

        A controller mutation is recorded only if its client is not over its quota already; anything else always.
        Args: value: bytes, percent of a thread, or mutations.
        Returns: 0 while the quota is kept or none is set; Kafka's int32, so one of 25 days and more may be negative.
        """
        cdef QuotaManager *manager = self.demand()
        cdef int64_t now_ms = checked_time(time_ms, manager.clock)
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
        """Record without a check; nothing where no quota of the type is set."""
        if is_enabled(self.demand()):
            self.record(user, client_id, value, time_ms)

    def unrecord(self, str user not None, client_id, double value, time_ms=None) -> None:
        """Give back what was recorded, without a check, even where no quota of the type is set."""
        self.record(user, client_id, -value, time_ms)

    cdef object record(self, user, client_id, double value, time_ms):
        cdef int64_t now_ms = checked_time(time_ms, self.demand().clock)
        cdef ClientSensors *sensors = self.find(user, client_id, now_ms)
        with nogil:
            sensor_record(sensors.quota, value, now_ms, False, NULL)
            sensors_release(sensors)

    def max_value_in_window(self, str user not None, client_id) -> float:
        """Return the most that a client may use within the window: limit x (samples - 1) x seconds.

        The largest float where no quota holds.
        """
        if not is_enabled(self.demand()):
            return DBL_MAX
        limit = self.resolve(user, client_id).limit
        return DBL_MAX if limit == NO_LIMIT else limit * self.manager.window_s

    def sensor(self, str user not None, client_id=None):
        """Return the Sensor of a client's counter, made if there is none; native handlers record to the same one."""
        cdef int64_t now_ms = checked_time(None, self.demand().clock)
        cdef ClientQuotaManagers owner = self.owner()
        cdef QuotaManager *manager = self.manager
        cdef ClientSensors *sensors = self.find(user, client_id, now_ms)
        try:
            tags = self.resolve(user, client_id)
            found = owner.registry.get_sensor(f"{self.name}-{tags.user_tag}:{tags.client_id_tag}")
            if found is not None and (<Sensor>found).sensor == sensors.quota:
                return found
            with owner._telling:
                with nogil:
                    forget_untold(manager, sensors)
                return owner.tell(manager.kind, sensors)
        finally:
            with nogil:
                sensors_release(sensors)

    def noted(self, InboundRequest request not None):
        """Return a view of this manager whose counters note on a request what they are charged for it.

        It has ``is_enabled`` and ``sensor``, whose result has the ``record`` and ``record_strict`` of a Sensor. To be
        used before the request is answered.
        """
        cdef NotedManager view = NotedManager.__new__(NotedManager)
        self.demand()
        view.manager = self
        view.request = request
        return view

    def __repr__(self):
        return f"<ClientQuotaManager {self.name}>"


@cython.final
cdef class NotedManager:
    """The manager of controller mutations as one request sees it. Made by ``ClientQuotaManager.noted``."""
    cdef ClientQuotaManager manager
    cdef InboundRequest request

    @property
    def is_enabled(self) -> bool:
        """As the manager's."""
        return self.manager.is_enabled

    def sensor(self, str user not None, client_id=None):
        """Return the counter of a client."""
        cdef NotedCounter counter = NotedCounter.__new__(NotedCounter)
        counter.manager = self.manager
        counter.request = self.request
        counter.sensors = self.manager.find(user, client_id, checked_time(None, self.manager.quotas.clock))
        return counter


@cython.final
cdef class NotedCounter:
    """A client's counter that notes on a request what it is charged, and what it refuses."""
    cdef ClientQuotaManager manager
    cdef InboundRequest request
    cdef ClientSensors *sensors     # counted

    def __dealloc__(self):
        cdef ClientSensors *sensors = self.sensors
        with nogil:
            sensors_release(sensors)

    def record(self, double value, int64_t time_ms) -> None:
        """Charge, then check. Raises: QuotaViolationError; it stays charged."""
        self.charge(value, time_ms, False)

    def record_strict(self, double value, int64_t time_ms) -> None:
        """Check, and charge only if the quota is kept. Raises: QuotaViolationError; it was not charged."""
        self.charge(value, time_ms, True)

    cdef object charge(self, double value, int64_t time_ms, bint is_strict):
        cdef ClientQuotas *quotas = self.manager.quotas
        cdef Request *request = self.request.request
        cdef Violation violation
        self.request.check_open()
        violation.metric = NULL
        with nogil:
            charge_mutation(quotas, self.sensors, request, value, time_ms, is_strict, &violation)
        if violation.metric != NULL:
            raise QuotaViolationError(None, violation.observed, violation.bound, max(violation.throttle_ms, 0))
