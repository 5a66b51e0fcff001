"""The quotas of one type for Python; requests that no native handler serves are judged here.

Source: ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager``.
"""
cimport cython
from typing import NamedTuple

from libc.float cimport DBL_MAX
from libc.stdint cimport int32_t, int64_t

from kbroker._core.metrics.metric cimport checked_time
from kbroker._core.requests.request cimport Request
from kbroker._core.metrics.sensor import QuotaViolationError
from kbroker._core.metrics.sensor_core cimport Violation, sensor_record
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.common._quota_counter cimport NO_LIMIT
from kbroker.network.processor._inbound cimport InboundRequest
from kbroker.quota._client_sensors cimport (
    KIND_MUTATION, ClientQuotas, ClientSensors, QuotaManager, client_sensors, is_enabled, quotas_release, quotas_retain,
    record_and_get_throttle, sensors_release,
)
from kbroker.quota._counter_metrics import TYPES
from kbroker.common._text cimport Text
from kbroker.quota._entities cimport Match, encoded, entities_match, text_of
from kbroker.quota._entities import sanitize
from kbroker.quota._quota_enforcement cimport charge_mutation


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
        """Return whether these are shadow quotas, which only judge and count."""
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
        Returns: 0 while the quota is kept or none is set; Kafka's int32, so one of 25 days and more may be negative.
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
        """Return a view of this manager, and of its shadows' manager, whose counters note on a request what they are
        charged for it. Shadows refuse nothing.

        It has ``is_enabled`` and ``sensor``, whose result has the ``record`` and ``record_strict`` of a Sensor. Use it
        before the response is sent.
        """
        cdef NotedManager view = NotedManager.__new__(NotedManager)
        self.demand()
        view.manager = self
        view.request = request
        return view

    def __repr__(self):
        return f"<ClientQuotaManager {'shadow ' if self.is_shadow else ''}{self.name}>"


cdef ClientSensors *find_sensors(QuotaManager *manager, user, client_id, int64_t now_ms) except NULL:
    """Return the counter of a client, with a count."""
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
