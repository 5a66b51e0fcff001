# cython: freethreading_compatible=True
"""The samples of a metric as a buffer (PEP 3118), so that NumPy looks at them in place; NumPy itself is not needed
here.
"""
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE

from kbroker._core.metrics.sample_window cimport Sample, SampleWindow
from kbroker._core.metrics.sensor_core cimport SensorCore, sensor_release, sensor_retain
from kbroker._core.sync cimport mutex_lock, mutex_unlock

# As `cdef struct Sample` lies in memory: four items of eight bytes, no gaps.
cdef bytes SAMPLE_FORMAT = b"T{d:value:q:event_count:q:start_ms:q:last_event_ms:}"
cdef bytes COUNT_FORMAT = b"f"


cdef SampleView new_sample_view(SensorCore *sensor, SampleWindow *window, bint is_histogram):
    cdef SampleView view = SampleView.__new__(SampleView)
    view.sensor = sensor_retain(sensor)
    view.is_histogram = is_histogram
    with nogil:
        mutex_lock(&sensor.lock)
        view.data = <void *>window.counts if is_histogram else <void *>window.ring
        view.shape[0] = window.length
        view.shape[1] = window.scheme.bins if is_histogram else 1
        mutex_unlock(&sensor.lock)
    view.strides[1] = sizeof(float) if is_histogram else sizeof(Sample)
    view.strides[0] = view.shape[1] * view.strides[1]
    return view


@cython.final
@cython.no_gc
cdef class SampleView:
    """A live, read-only buffer of a metric's samples, or of its histogram counts: see ``Metric.view``.

    Holds the memory, so it may outlive its sensor. Threads: reading is not locked.
    """

    def __dealloc__(self):
        sensor_release(self.sensor)

    def __len__(self):
        return self.shape[0]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.data is NULL:
            raise BufferError("Metric.view makes views")
        if flags & PyBUF_WRITABLE:
            raise BufferError("samples are read-only")
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = self.shape[0] * self.strides[0]
        buffer.itemsize = sizeof(float) if self.is_histogram else sizeof(Sample)
        buffer.readonly = 1
        buffer.ndim = 2 if self.is_histogram else 1
        buffer.format = NULL
        if flags & PyBUF_FORMAT:
            buffer.format = <char *>(COUNT_FORMAT if self.is_histogram else SAMPLE_FORMAT)
        buffer.shape = NULL
        buffer.strides = NULL
        if flags & PyBUF_ND:
            buffer.shape = self.shape
        if flags & PyBUF_STRIDES == PyBUF_STRIDES:
            buffer.strides = self.strides
        buffer.suboffsets = NULL
        buffer.internal = NULL
