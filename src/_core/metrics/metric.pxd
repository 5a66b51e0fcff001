"""Python's handle of one number of a sensor, and its window onto the samples: a buffer that copies nothing."""
from libc.stdint cimport int64_t

from kbroker._core.clock cimport Clock
from kbroker._core.metrics.stats cimport SampleWindow
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore

cdef class SampleView:
    cdef SensorCore *sensor     # owned count: keeps the memory, that of older blocks too
    cdef void *data
    cdef bint is_histogram
    cdef Py_ssize_t shape[2]
    cdef Py_ssize_t strides[2]

cdef SampleView new_sample_view(SensorCore *sensor, SampleWindow *window, bint is_histogram)

cdef class Metric:
    cdef SensorCore *sensor     # owned count
    cdef MetricCore *metric
    cdef Clock *clock           # owned count
    cdef object _config
    cdef readonly object name
    cdef int bind(self, SensorCore *sensor, MetricCore *metric, Clock *clock, object config) except -1
    cdef int demand(self) except -1
    cdef int demand_rate(self) except -1

cdef int64_t checked_time(object time_ms, Clock *clock) except? -1  # None: now; ValueError beyond +-2**60
