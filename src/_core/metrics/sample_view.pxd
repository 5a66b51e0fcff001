"""Python's window onto the samples of a sensor: a buffer that copies nothing."""
from kbroker._core.metrics.sample_window cimport SampleWindow
from kbroker._core.metrics.sensor_core cimport SensorCore

cdef class SampleView:
    cdef SensorCore *sensor     # owned count: keeps the memory, that of older blocks too
    cdef void *data
    cdef bint is_histogram
    cdef Py_ssize_t shape[2]
    cdef Py_ssize_t strides[2]

cdef SampleView new_sample_view(SensorCore *sensor, SampleWindow *window, bint is_histogram)
