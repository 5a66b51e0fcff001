"""All sensors of one owner by name: unique metric names, removal with children, expiry of idle ones."""
cimport cython

from threading import RLock
from types import MappingProxyType

from kbroker._core.clock cimport borrow_clock
from kbroker._core.metrics.metric_config cimport MetricConfig, borrow_config
from kbroker._core.metrics.sensor cimport Sensor

EXPIRY_INTERVAL_MS = 30_000     # how often the owner calls expire_inactive, the first time after as long


@cython.final
cdef class SensorRegistry:
    """Sensors by name and their metrics by name; either may be anything hashable for metrics, text for sensors.

    Args:
        config: for sensors that bring none.
        clock: of every sensor; None is the process's system clock.
        expires: whether ``expire_inactive`` removes anything. The registry starts no thread: the owner calls it every
            ``EXPIRY_INTERVAL_MS``.
    Threads: any. One lock for creation, addition, removal and expiry; looking up takes none. The lock of ``Sensor.add``
    is taken before it.
    Source: ``Metrics.java``.
    """

    cdef readonly object config
    cdef readonly object clock
    cdef readonly bint expires
    cdef object _lock
    cdef dict _sensors
    cdef dict _metrics
    cdef dict _children         # sensor -> list of sensors whose parent it is
    cdef dict _claims           # sensor -> list of metric names it has claimed

    def __cinit__(self, config=None, clock=None, *, bint expires=False):
        borrow_clock(clock)
        self.config = MetricConfig() if config is None else config
        borrow_config(self.config)
        self.clock = clock
        self.expires = expires
        self._lock = RLock()
        self._sensors = {}
        self._metrics = {}
        self._children = {}
        self._claims = {}

    def sensor(self, str name not None, config=None, *, parents=(), inactive_expiration_ms=None, record_level="INFO"):
        """Return the sensor of this name, made by the other arguments (those of ``Sensor``) if there is none.

        Raises: ValueError as ``Sensor``, or for a parent that is no longer registered here.
        """
        found = self._sensors.get(name)
        if found is not None:
            return found
        with self._lock:
            found = self._sensors.get(name)
            if found is not None:
                return found
            parents = tuple(parents)
            made = Sensor(
                name, self.config if config is None else config, parents=parents, record_level=record_level,
                inactive_expiration_ms=inactive_expiration_ms, clock=self.clock, registry=self)
            for parent in parents:
                if self._sensors.get(parent.name) is not parent:
                    raise ValueError(f"parent {parent.name!r} is not registered here")
            for parent in parents:
                self._children.setdefault(parent, []).append(made)
            self._sensors[name] = made
            return made

    def get_sensor(self, name):
        """Return the sensor of this name, or None."""
        return self._sensors.get(name)

    def get_metric(self, name):
        """Return the metric of this name, or None."""
        return self._metrics.get(name)

    def adopt(self, sensor) -> None:
        """Register a sensor made elsewhere, with its metrics, in the place of one of its name.

        Raises: ValueError if another sensor has one of the metric names, or the sensor belongs to another registry.
        """
        with self._lock:
            stale = self._sensors.get(sensor.name)
            if stale is sensor:
                return
            if stale is not None:
                self._remove(stale)
            names = list(sensor.metrics)
            for name in names:
                if name in self._metrics:
                    raise ValueError(f"a metric named {name!r} exists already")
            sensor._join(self)
            self._sensors[sensor.name] = sensor
            self._claims[sensor] = names
            self._metrics.update(sensor.metrics)

    def remove_sensor(self, name) -> bool:
        """Remove a sensor, its metrics and, with them, every sensor below it; False if there is none.

        A removed sensor (``is_removed``) can still be recorded into, but the registry no longer shows its metrics.
        """
        with self._lock:
            found = self._sensors.get(name)
            if found is None:
                return False
            self._remove(found)
            return True

    def _remove(self, sensor) -> None:
        if self._sensors.get(sensor.name) is not sensor:
            return
        del self._sensors[sensor.name]
        sensor._mark_removed()
        for name in self._claims.pop(sensor, ()):       # also those that Sensor.add has not yet tied to the sensor
            self._metrics.pop(name, None)
        for parent in sensor.parents:
            siblings = self._children.get(parent)
            if siblings is not None and sensor in siblings:
                siblings.remove(sensor)
                if not siblings:
                    del self._children[parent]
        for child in self._children.pop(sensor, ()):
            self._remove(child)

    def expire_inactive(self, time_ms=None) -> list:
        """Remove the sensors that have been idle for longer than they may; return their names.

        Nothing happens in a registry without ``expires``.
        """
        removed = []
        if not self.expires:
            return removed
        for name, sensor in list(self._sensors.items()):
            if sensor.has_expired(time_ms):
                with self._lock:
                    if sensor.has_expired(time_ms) and self._sensors.get(name) is sensor:
                        self._remove(sensor)
                        removed.append(name)
        return removed

    @property
    def sensors(self):
        """A live, read-only mapping of name to Sensor."""
        return MappingProxyType(self._sensors)

    @property
    def metrics(self):
        """A live, read-only mapping of name to Metric."""
        return MappingProxyType(self._metrics)

    def _claim(self, sensor, metrics) -> bool:
        """Register the names of new metrics, all or none: False for a removed sensor, ValueError if one is taken."""
        with self._lock:
            if sensor.is_removed:
                return False
            for metric in metrics:
                if metric.name in self._metrics:
                    raise ValueError(f"a metric named {metric.name!r} exists already")
            for metric in metrics:
                self._metrics[metric.name] = metric
                self._claims.setdefault(sensor, []).append(metric.name)
            return True

    def _disclaim(self, sensor, metrics) -> None:
        with self._lock:
            claims = self._claims.get(sensor, [])
            for metric in metrics:
                if metric.name in claims:
                    claims.remove(metric.name)
                    self._metrics.pop(metric.name, None)

    def __repr__(self):
        return f"<SensorRegistry, {len(self._sensors)} sensors, {len(self._metrics)} metrics>"
