"""Registration in the metrics registry of the counters that native code has created, and removal of deleted ones.

Source: ``ClientQuotaManager.getOrCreateQuotaSensors``, ``getOrCreateSensor``.
"""
import threading

from libc.stdint cimport int64_t

from kbroker._core.metrics.metric_config cimport Quota, StatConfig
from kbroker._core.metrics.sensor cimport Sensor, sensor_handle
from kbroker._core.metrics.sensor_core cimport metric_get_config
from kbroker.quota._client_sensors cimport (
    KIND_MUTATION, KINDS, ClientQuotas, ClientSensors, QuotaManager, forget_unpublished, manager_at, quotas_release,
    quotas_retain, sensors_release, take_evicted, take_expired, take_unpublished,
)
from kbroker.quota._entities cimport decoded
from kbroker.quota._entities import sanitize

TYPES = ("Produce", "Fetch", "Request", "ControllerMutation")
RATES = ("byte-rate", "byte-rate", "request-time", "tokens")
# Groups of the shadows' metrics; not Kafka's.
SHADOW_GROUPS = ("kbroker:shadow-produce", "kbroker:shadow-fetch", "kbroker:shadow-request",
                 "kbroker:shadow-controller-mutation")

cdef enum:
    PUBLISHED_AT_ONCE = 500     # maximum registered by one call of the registry, some 50 ms


cdef class CounterMetrics:
    """The counters of all types in one registry. Created by ``ClientQuotaManagers``. Threads: any."""

    def __dealloc__(self):
        cdef ClientQuotas *quotas = self.quotas
        if quotas != NULL:
            with nogil:
                quotas_release(quotas)

    def publish_to_registry(self) -> None:
        """Add new counters to the registry, and remove evicted ones; called by the registry.

        At most PUBLISHED_AT_ONCE new ones, the oldest first; the next call adds more.
        """
        cdef QuotaManager *manager
        cdef ClientSensors *sensors
        cdef int place, left = PUBLISHED_AT_ONCE
        with self._lock:
            for place in range(2 * KINDS):
                manager = manager_at(self.quotas, place)
                with nogil:
                    sensors = take_evicted(manager)
                self.unpublish(manager, sensors)
                while left > 0:
                    with nogil:
                        sensors = take_unpublished(manager)
                    if sensors == NULL:
                        break
                    left -= 1
                    try:
                        self.register(manager, sensors)
                    finally:
                        with nogil:
                            sensors_release(sensors)

    cdef list unpublish(self, QuotaManager *manager, ClientSensors *gone):
        """Remove a list of counters from the registry, and release them; return their sensors' names."""
        cdef ClientSensors *following
        names = []
        while gone != NULL:
            following = gone.next
            for name in sensor_names(manager, gone):
                names.append(name)
                self.registry.discard_removed(name)
            with nogil:
                sensors_release(gone)
            gone = following
        return names

    cdef object register(self, QuotaManager *manager, ClientSensors *sensors):
        """Register the two sensors of a counter; return the first's handle, None if removed."""
        cdef StatConfig config
        cdef Sensor quota, throttle
        cdef int kind = manager.kind
        group = SHADOW_GROUPS[kind] if manager.is_shadow else TYPES[kind]
        tags = {"user": sanitize(decoded(sensors.user)), "client-id": decoded(sensors.client_id)}
        name = self.registry.metric_name
        with nogil:
            metric_get_config(sensors.limited, &config)
        limited = self._limited[kind].replace(quota=Quota.upper(config.bound))
        metrics = [(name(RATES[kind], group, tags, f"Tracking {RATES[kind]} per user/client-id"), limited)]
        if kind == KIND_MUTATION:
            metrics.insert(0, (name("mutation-rate", group, tags, "Tracking mutation-rate per user/client-id"),
                               self.registry.config))
        quota_name, throttle_name = sensor_names(manager, sensors)
        quota = sensor_handle(sensors.quota, quota_name, self._clock, metrics)
        metrics = [(name("throttle-time", group, tags, "Tracking average throttle-time per user/client-id"),
                    self.registry.config)]
        throttle = sensor_handle(sensors.throttle_time, throttle_name, self._clock, metrics)
        for handle in (quota, throttle):
            if handle.is_removed:
                return None
            try:
                self.registry.adopt(handle)
            except ValueError:      # client ids that are not UTF-8 may have the same text: the first one is shown
                return quota
            if handle.is_removed:   # removed meanwhile
                self.registry.discard(handle)
                return None
        return quota

    cdef object find(self, QuotaManager *manager, ClientSensors *sensors):
        """Return the registry's Sensor of a counter, registered if absent."""
        found = self.registry.get_sensor(sensor_names(manager, sensors)[0])
        if found is not None and (<Sensor>found).sensor == sensors.quota:
            return found
        with self._lock:
            with nogil:
                forget_unpublished(manager, sensors)
            return self.register(manager, sensors)

    cdef list expire(self, int64_t now_ms):
        """Remove the counters without a record for more than an hour; return their sensors' names."""
        cdef QuotaManager *manager
        cdef ClientSensors *expired
        cdef int place
        names = []
        with self._lock:
            self.publish_to_registry()
            for place in range(2 * KINDS):
                manager = manager_at(self.quotas, place)
                with nogil:
                    expired = take_expired(manager, now_ms)
                names += self.unpublish(manager, expired)
        return names


cdef tuple sensor_names(const QuotaManager *manager, ClientSensors *sensors):
    """Return the names of the sensors of a counter and of its throttle times."""
    suffix = f"{sanitize(decoded(sensors.user))}:{decoded(sensors.client_id)}"
    of = f"{'Shadow' if manager.is_shadow else ''}{TYPES[manager.kind]}"
    return f"{of}-{suffix}", f"{of}ThrottleTime-{suffix}"


cdef CounterMetrics new_counter_metrics(ClientQuotas *quotas, object clock, object registry, list limited):
    cdef CounterMetrics made = CounterMetrics.__new__(CounterMetrics)
    made.quotas = quotas_retain(quotas)
    made._clock = clock
    made.registry = registry
    made._limited = limited
    made._lock = threading.RLock()
    return made
