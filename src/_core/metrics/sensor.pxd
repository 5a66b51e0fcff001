"""Python's handle of a sensor; other modules borrow its native part."""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport Clock
from kbroker._core.metrics.metric cimport Metric
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore, Violation
from kbroker._core.metrics.stats cimport Stat

cdef class Sensor:
    cdef SensorCore *sensor     # owned count
    cdef Clock *clock           # owned count
    cdef object registry        # its SensorRegistry, or None
    cdef object config          # config of metrics added without one
    cdef readonly str name
    cdef readonly tuple parents
    cdef list _metrics          # Metric objects by MetricCore.index
    cdef dict _by_name
    cdef object _adding         # lock of Sensor.add
    cdef object raise_violation(self, const Violation *violation)
    cdef object find_metric(self, const MetricCore *metric)
    cdef int attach(self, Metric metric, Stat *stat, int32_t part, double quantile, object config,
                    bint is_compound) except -1
    cdef int record_native(self, double value, int64_t now_ms, bint check, Violation *violation) noexcept

cdef SensorCore *borrow_sensor(object sensor) except NULL           # TypeError unless a Sensor
# Return a handle of a sensor that native code has made, with its metrics: (name, MetricConfig) in their order. It
# belongs to no registry until SensorRegistry.adopt.
cdef Sensor sensor_handle(SensorCore *core, str name, object clock, list metrics)
