"""Python's handle of sensors, with arguments checked; charges of several sensors; sensors of one owner by name.

Source: ``Sensor.java``, ``Metrics.java``; KIP-599 (strict and permissive), ``ControllerMutationQuotaManager``; the
largest of several delays as in ``KafkaApis``.
"""
cimport cython
from threading import Lock, RLock
from types import MappingProxyType
from typing import NamedTuple

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.arguments cimport integer
from kbroker._core.clock cimport borrow_clock, clock_epoch_ms, clock_release, clock_retain
from kbroker._core.metrics.metric cimport Metric, checked_time
from kbroker._core.metrics.metric_config cimport MetricConfig, StatConfig, borrow_config, level_number
from kbroker._core.metrics.sensor_core cimport (
    CHARGE_ACCEPTED, LARGEST_CHARGES, NO_CAP, RECORD_ACCEPTED, Charge, MetricCore, SensorCore, Violation,
    metric_has_throttle, sensor_add_metric, sensor_add_stat, sensor_check, sensor_has_expired, sensor_is_removed,
    sensor_metric, sensor_new, sensor_record, sensor_record_own_and_unlock, sensor_record_strict, sensor_release,
    sensor_retain, sensors_charge,
)
from kbroker._core.metrics.stats cimport PART_WHOLE, Stat, StatSpec
from kbroker._core.sync cimport atomic_load, atomic_store, mutex_try_lock


cdef int LARGEST_DEPTH = 64


cdef SensorCore *borrow_sensor(object sensor) except NULL:
    if not isinstance(sensor, Sensor):
        raise TypeError(f"sensor must be a Sensor, not {type(sensor).__name__}")
    return (<Sensor>sensor).sensor


class QuotaViolationError(Exception):
    """Violation of a metric's quota. It is cheap to raise; except by a strict check, the value stays recorded.

    Attributes: metric (the Metric), value (observed), bound, throttle_time_ms (time until the average is back at the
    bound, uncapped; None for a metric that is neither a rate nor a token bucket).
    Source: ``QuotaViolationException.java``; the delay, which KIP-13 put into it, by ``QuotaUtils.java``.
    """

    def __init__(self, metric, value, bound, throttle_time_ms):
        super().__init__(metric, value, bound, throttle_time_ms)
        self.metric = metric
        self.value = value
        self.bound = bound
        self.throttle_time_ms = throttle_time_ms

    def __str__(self):
        return f"'{self.metric.name}' violated quota. Actual: {self.value}, Threshold: {self.bound}"


cdef int count_ancestors(Sensor sensor, set seen, int depth) except -1:
    if sensor in seen:
        raise ValueError(f"sensor {sensor.name!r} is reached twice through parents")
    if depth > LARGEST_DEPTH:
        raise ValueError(f"sensors may be nested at most {LARGEST_DEPTH} deep")
    seen.add(sensor)
    for parent in sensor.parents:
        count_ancestors(parent, seen, depth + 1)
    return 0


@cython.final
cdef class Sensor:
    """A named stream of values, the statistics it feeds, and parents that receive every value too.

    It can be used alone, or be created by ``SensorRegistry.sensor``, which keeps metric names unique and removes idle
    sensors.
    Args:
        name: name of the sensor.
        config: config of metrics added without one; its ``record_level`` decides whether this sensor records at all.
        parents: sensors that record every value as well, unless a check raised first.
        inactive_expiration_ms: idle time after which the sensor has expired, None for never.
        record_level: how detailed this sensor is.
        clock: the time of calls without one; None is the process's system clock.
        registry: the SensorRegistry that owns the metric names, or None.
    Raises: ValueError if a sensor is reached twice through parents or is nested more than 64 deep; TypeError.
    Threads: any; one lock per sensor, held for one record or measurement.
    Source: ``Sensor.java``.
    """

    def __cinit__(self, str name not None, config=None, *, parents=(), inactive_expiration_ms=None,
                  record_level="INFO", clock=None, registry=None):
        cdef SensorCore **cores = NULL
        cdef int64_t expiration_ms = INT64_MAX
        cdef bint records
        cdef int32_t count, i
        self.clock = clock_retain(borrow_clock(clock))
        self.config = MetricConfig() if config is None else config
        borrow_config(self.config)
        self.parents = tuple(parents)
        self.name = name
        self.registry = registry
        self._metrics = []
        self._by_name = {}
        self._adding = Lock()
        if inactive_expiration_ms is not None:
            if not 0 <= inactive_expiration_ms <= INT64_MAX:
                raise ValueError(f"inactive_expiration_ms must be 0 to {INT64_MAX}, got {inactive_expiration_ms}")
            expiration_ms = inactive_expiration_ms
        for parent in self.parents:
            borrow_sensor(parent)
        count_ancestors(self, set(), 0)
        records = level_number(record_level) <= (<MetricConfig>self.config).level
        count = len(self.parents)
        if count:
            cores = <SensorCore **>calloc(count, sizeof(SensorCore *))
            if cores is NULL:
                raise MemoryError
            for i in range(count):
                cores[i] = borrow_sensor(self.parents[i])
        self.sensor = sensor_new(cores, count, expiration_ms, records, clock_epoch_ms(self.clock))
        free(cores)
        if self.sensor is NULL:
            raise MemoryError

    def __dealloc__(self):
        sensor_release(self.sensor)
        clock_release(self.clock)

    cdef object find_metric(self, const MetricCore *metric):
        cdef Sensor parent
        if metric.sensor is self.sensor:
            return self._metrics[metric.index]
        for item in self.parents:
            parent = item
            found = parent.find_metric(metric)
            if found is not None:
                return found
        return None

    cdef object raise_violation(self, const Violation *violation):
        raise QuotaViolationError(
            self.find_metric(violation.metric), violation.observed, violation.bound,
            violation.throttle_ms if metric_has_throttle(violation.metric) else None)

    def add(self, name, StatSpec stat not None, config=None) -> bool:
        """Begin to keep ``stat`` as the metric ``name``, or as the metrics that a compound stat names.

        Args:
            name: any hashable value; None (only) for a Meter or Percentiles, which have their own names.
            stat: the statistic.
            config: None is the sensor's.
        Returns: False if the sensor has expired; True otherwise, even if it has this metric already.
        Raises: ValueError if the name belongs to another sensor of the registry; TypeError; MemoryError.
        """
        cdef const StatConfig *c_config
        cdef Stat *c_stat
        cdef StatSpec spec = stat
        parts = spec.parts or ((name, <int>PART_WHOLE, 0.0),)
        if spec.parts and name is not None:
            raise TypeError(f"a {type(stat).__name__} has its own names; pass None as name")
        if name is None and not spec.parts:
            raise TypeError("a metric needs a name")
        config = self.config if config is None else config
        c_config = borrow_config(config)
        with self._adding:      # one at a time: names stay unique, and places agree with the native list
            if self.has_expired() or self.is_removed:
                return False
            missing = [part for part in parts if part[0] not in self._by_name]
            metrics = [Metric(part[0]) for part in missing]
            if not missing:
                return True
            if self.registry is not None and not self.registry._claim(self, metrics):   # all of the names or none
                return False
            with nogil:
                c_stat = sensor_add_stat(self.sensor, &spec.shape, c_config)
            if c_stat is NULL:
                if self.registry is not None:
                    self.registry._disclaim(self, metrics)
                raise MemoryError
            for metric, (_, part, quantile) in zip(metrics, missing, strict=True):
                self.attach(metric, c_stat, part, quantile, config, bool(spec.parts))
        return True

    cdef int attach(self, Metric metric, Stat *stat, int32_t part, double quantile, object config,
                    bint is_compound) except -1:
        cdef const StatConfig *c_config = borrow_config(config)
        cdef MetricCore *core
        self._metrics.append(metric)
        with nogil:
            core = sensor_add_metric(self.sensor, stat, part, quantile, c_config, is_compound)
        if core is NULL:
            self._metrics.pop()
            if self.registry is not None:
                self.registry._disclaim(self, [metric])
            raise MemoryError
        metric.bind(self.sensor, core, self.clock, config)
        self._by_name[metric.name] = metric
        return 0

    @cython.binding(False)      # a method descriptor: the interpreter has a short cut for those
    def record(self, double value=1.0, time_ms=None, bint check=True) -> None:
        """Record ``value`` into every statistic and then, if ``check``, compare each metric with its quota.

        Args:
            value: any float; below zero subtracts recorded values.
            time_ms: milliseconds since 1970; None: the time of the clock.
            check: False records only.
        Raises: QuotaViolationError for the first violated metric; the value stays recorded, parents are not reached.
        """
        cdef int64_t now_ms = checked_time(time_ms, self.clock)
        cdef Violation violation
        if self.record_native(value, now_ms, check, &violation) != RECORD_ACCEPTED:
            self.raise_violation(&violation)

    cdef int record_native(self, double value, int64_t now_ms, bint check, Violation *violation) noexcept:
        """Record from Python; release the GIL only if another thread holds the lock, or if the sensor has parents."""
        cdef SensorCore *sensor = self.sensor
        cdef int result
        if sensor.parent_count == 0 and sensor.records and mutex_try_lock(&sensor.lock):
            atomic_store(&sensor.last_record_ms, now_ms)
            return sensor_record_own_and_unlock(sensor, value, now_ms, check, violation, NULL)
        with nogil:
            result = sensor_record(sensor, value, now_ms, check, violation)
        return result

    @cython.binding(False)
    def record_and_throttle(self, double value=1.0, time_ms=None, max_throttle_ms=None) -> int:
        """Record with check; return the delay of a violation instead of raising an error.

        Args: value, time_ms: as for ``record``. max_throttle_ms: the maximum delay, None for any.
        Returns: milliseconds until the average is back at the bound; 0 if every quota is kept.
        Raises: ValueError if the violated metric is neither a rate nor a token bucket (the value stays recorded).
        """
        cdef int64_t now_ms = checked_time(time_ms, self.clock)
        cdef int64_t cap_ms = INT64_MAX
        cdef Violation violation
        if max_throttle_ms is not None:
            cap_ms = integer(max_throttle_ms, "max_throttle_ms", INT64_MIN, INT64_MAX)
        if self.record_native(value, now_ms, True, &violation) == RECORD_ACCEPTED:
            return 0
        if not metric_has_throttle(violation.metric):
            name = self.find_metric(violation.metric).name
            raise ValueError(f"no delay follows from {name!r}: not a rate, no token bucket")
        return max(0, min(cap_ms, violation.throttle_ms))    # a lower bound causes no wait

    def record_strict(self, double value=1.0, time_ms=None) -> None:
        """Check first, and record without a check only if every quota is kept: a refused value is not recorded.

        The value itself may go far beyond the bound: only the values recorded before count.
        Raises: QuotaViolationError; nothing was recorded.
        """
        cdef int64_t now_ms = checked_time(time_ms, self.clock)
        cdef Violation violation
        cdef int result
        with nogil:
            result = sensor_record_strict(self.sensor, value, now_ms, &violation, NULL)
        if result != RECORD_ACCEPTED:
            self.raise_violation(&violation)

    def check_quotas(self, time_ms=None) -> None:
        """Compare each metric with its quota. Raises: QuotaViolationError for the first violation."""
        cdef int64_t now_ms = checked_time(time_ms, self.clock)
        cdef Violation violation
        cdef int result
        with nogil:
            result = sensor_check(self.sensor, now_ms, &violation)
        if result != RECORD_ACCEPTED:
            self.raise_violation(&violation)

    def has_expired(self, time_ms=None) -> bool:
        """Return whether the last record is longer ago than the sensor's idle time."""
        return sensor_has_expired(self.sensor, checked_time(time_ms, self.clock))

    @property
    def should_record(self) -> bool:
        """Return whether the config's level lets this sensor record."""
        return bool(self.sensor.records)

    @property
    def is_removed(self) -> bool:
        """Return whether the registry has removed this sensor; it still records, but no registry shows its metrics."""
        return sensor_is_removed(self.sensor)

    @property
    def last_record_time_ms(self) -> int:
        """Time of the last record, even one that a check refused; before the first record, time of the creation."""
        return atomic_load(&self.sensor.last_record_ms)

    @property
    def metrics(self) -> dict:
        """A copy of name to Metric, in the order of addition."""
        return dict(self._by_name)

    def _record_repeatedly(self, int64_t count, double value, int64_t time_ms) -> int:
        """Record and check `count` times, eight a millisecond; return the number of violations (for benchmarks)."""
        cdef Violation violation
        cdef int64_t violations = 0
        cdef int64_t i
        checked_time(time_ms, self.clock)
        with nogil:
            for i in range(count):
                violations += sensor_record(self.sensor, value, time_ms + (i >> 3), True, &violation)
        return violations

    def _join(self, registry) -> None:
        """Join a registry (SensorRegistry.adopt)."""
        if self.registry is not None and self.registry is not registry:
            raise ValueError(f"sensor {self.name!r} belongs to another registry")
        self.registry = registry

    def _mark_removed(self) -> None:
        atomic_store(&self.sensor.removed, 1)

    def __repr__(self):
        return f"<Sensor {self.name!r}, {len(self._by_name)} metrics>"


cdef Sensor sensor_handle(SensorCore *core, str name, object clock, list metrics):
    cdef Sensor handle = Sensor.__new__(Sensor, name, None, clock=clock)
    cdef MetricCore *metric_core
    cdef Metric metric
    cdef int32_t index
    sensor_release(handle.sensor)
    handle.sensor = sensor_retain(core)
    for index, (metric_name, config) in enumerate(metrics):
        with nogil:
            metric_core = sensor_metric(core, index)
        if metric_core is NULL:
            raise ValueError(f"sensor {name!r} has no metric {index}")
        metric = Metric(metric_name)
        metric.bind(core, metric_core, handle.clock, config)
        handle._metrics.append(metric)
        handle._by_name[metric_name] = metric
    return handle


# --------------------------------------------- several limits at once

MODES = ("permissive", "strict", "unchecked")


class ChargeDecision(NamedTuple):
    """Result of a call of ``charge``.

    ``accepted``: False if a strict limit refused, and nothing was recorded. ``throttle_time_ms``: the longest delay.
    ``throttle_times_ms``: the delay of each limit, in their order; None if the violated metric has no formula for it.
    ``violated``: whether each limit is violated.
    """

    accepted: bool
    throttle_time_ms: int
    throttle_times_ms: tuple
    violated: tuple


def charge(charges, time_ms=None, *, clock=None):
    """Charge several sensors at once.

    Args:
        charges: up to 16 tuples of (sensor, value), (sensor, value, mode) or (sensor, value, mode, max_throttle_ms).
            value: the weight; below zero subtracts. mode: "permissive" (the default: recorded, then checked), "strict"
            (checked first; a violation refuses the whole call) or "unchecked". A sensor that appears twice is checked
            strictly before either is recorded. None as a sensor is not a limit.
        time_ms: milliseconds since 1970; None: the time of ``clock`` (None: the process's system clock).
    Returns: a ChargeDecision.
    Raises: ValueError, TypeError.
    Threads: any; the sensors are locked together.
    """
    cdef Charge c_charges[LARGEST_CHARGES]
    cdef int64_t now_ms = checked_time(time_ms, borrow_clock(clock))
    cdef int64_t throttle_ms = 0
    cdef int32_t count, i
    cdef int result
    cdef Charge *c_charge
    charges = list(charges)     # holds the sensors while the GIL is released
    if len(charges) > LARGEST_CHARGES:
        raise ValueError(f"{LARGEST_CHARGES} charges at most, got {len(charges)}")
    count = len(charges)
    for i in range(count):
        given = tuple(charges[i])
        if not 2 <= len(given) <= 4:
            raise ValueError(f"a charge is (sensor, value[, mode[, max_throttle_ms]]), got {len(given)} items")
        c_charge = &c_charges[i]
        sensor = given[0]
        if sensor is not None and not isinstance(sensor, Sensor):
            raise TypeError(f"sensor must be a Sensor or None, not {type(sensor).__name__}")
        mode = given[2] if len(given) > 2 else "permissive"
        if mode not in MODES:
            raise ValueError(f"mode must be permissive, strict or unchecked, got {mode!r}")
        c_charge.sensor = NULL
        if sensor is not None:
            c_charge.sensor = (<Sensor>sensor).sensor
        c_charge.value = given[1]
        c_charge.mode = MODES.index(mode)
        c_charge.cap_ms = NO_CAP
        if len(given) > 3 and given[3] is not None:
            c_charge.cap_ms = integer(given[3], "max_throttle_ms", 0, INT64_MAX)
        charges[i] = given
    with nogil:
        result = sensors_charge(c_charges, count, now_ms, &throttle_ms)
    delays, violated = [], []
    for i in range(count):
        c_charge = &c_charges[i]
        has_none = c_charge.is_violated and not metric_has_throttle(c_charge.violation.metric)
        delays.append(None if has_none else c_charge.throttle_ms)
        violated.append(bool(c_charge.is_violated))
    return ChargeDecision(result == CHARGE_ACCEPTED, throttle_ms, tuple(delays), tuple(violated))


# -------------------------------------------------- the registry

EXPIRY_INTERVAL_MS = 30_000     # interval of the owner's calls of expire_inactive, the first one included


@cython.final
cdef class SensorRegistry:
    """Sensors by name and their metrics by name. A sensor's name is text, a metric's name may be anything hashable.

    Args:
        config: config of sensors created without one.
        clock: clock of every sensor; None is the process's system clock.
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
        """Return the sensor of this name, created with the other arguments (those of ``Sensor``) if missing.

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
        """Register a sensor created elsewhere, with its metrics, in place of a removed sensor of its name.

        Raises: ValueError if another sensor has its name or one of the metric names, or the sensor belongs to another
        registry.
        """
        with self._lock:
            stale = self._sensors.get(sensor.name)
            if stale is sensor:
                return
            if stale is not None:
                if not stale.is_removed:
                    raise ValueError(f"a sensor named {sensor.name!r} exists already")
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
        """Remove a sensor, its metrics and its child sensors; return False if there is no such sensor.

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
        """Remove the sensors that have been idle for longer than their limit; return their names.

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
