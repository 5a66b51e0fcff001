"""Python's handle of one metric of a sensor: its value, its config, its samples.

The samples are a buffer (PEP 3118), so that NumPy reads them in place; NumPy itself is not needed here.
"""
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t
from operator import index

from kbroker._core.clock cimport Clock, clock_epoch_ms, clock_release, clock_retain
from kbroker._core.metrics.metric_config cimport QUOTA_NONE, QUOTA_UPPER, Quota, StatConfig, borrow_config
from kbroker._core.metrics.sensor_core cimport (
    MetricCore, SensorCore, metric_get_config, metric_is_rate, metric_measure, metric_set_config, metric_throttle_ms,
    metric_window_ms, sensor_release, sensor_retain,
)
from kbroker._core.metrics.stats cimport FORM_TOKEN_BUCKET, Sample, SampleWindow, stat_is_sampled
from kbroker._core.sync cimport mutex_lock, mutex_unlock

# The memory of a `cdef struct Sample`: four items of eight bytes, no gaps.
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

    It holds the memory, so it may outlive its sensor. Threads: reading is not locked.
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


cdef int64_t LARGEST_TIME_MS = 1 << 60


cdef int64_t checked_time(object time_ms, Clock *clock) except? -1:
    cdef int overflow = 0
    cdef int64_t now_ms
    if time_ms is None:
        return clock_epoch_ms(clock)
    if not PyLong_CheckExact(time_ms):
        if not hasattr(time_ms, "__index__"):
            raise TypeError(f"time_ms must be an integer or None, not {time_ms!r}")
        time_ms = index(time_ms)
    now_ms = PyLong_AsLongLongAndOverflow(time_ms, &overflow)    # a try statement would cost 5 ns per record
    if overflow != 0 or now_ms > LARGEST_TIME_MS or now_ms < -LARGEST_TIME_MS:
        raise ValueError(f"time_ms must lie within +-2**60, got {time_ms}")
    return now_ms


@cython.final
@cython.no_gc
cdef class Metric:
    """One number of a sensor: a statistic's value under a config that may be replaced at any time.

    Made by ``Sensor.add``; stays readable after its sensor was removed. Threads: any. Source: ``KafkaMetric.java``.
    """

    def __cinit__(self, name):
        hash(name)
        self.name = name

    def __dealloc__(self):
        sensor_release(self.sensor)
        clock_release(self.clock)

    cdef int bind(self, SensorCore *sensor, MetricCore *metric, Clock *clock, object config) except -1:
        """Tie a new metric to its native part."""
        self.sensor = sensor_retain(sensor)
        self.clock = clock_retain(clock)
        self._config = config
        self.metric = metric
        return 0

    cdef int demand(self) except -1:
        if self.metric is NULL:
            raise ValueError(f"metric {self.name!r} belongs to no sensor: Sensor.add makes metrics")
        return 0

    cdef int demand_rate(self) except -1:
        self.demand()
        if not metric_is_rate(self.metric):
            raise ValueError(f"metric {self.name!r} is not a rate")
        return 0

    def measure(self, time_ms=None) -> float:
        """Return the value at ``time_ms`` (None: now). Measuring drops old samples and refills a token bucket."""
        cdef int64_t now_ms
        cdef double value
        self.demand()
        now_ms = checked_time(time_ms, self.clock)
        with nogil:
            value = metric_measure(self.metric, now_ms)
        return value

    def window_size_ms(self, time_ms=None) -> int:
        """Return the milliseconds by which a rate divides at ``time_ms``; ValueError if the metric is not a rate."""
        cdef int64_t now_ms, size_ms
        self.demand_rate()
        now_ms = checked_time(time_ms, self.clock)
        with nogil:
            size_ms = metric_window_ms(self.metric, now_ms)
        return size_ms

    def throttle_time_ms(self, observed=None, time_ms=None, max_throttle_ms=None) -> int:
        """Return the delay after which ``observed`` is back at the bound.

        A rate: (observed - bound) / bound x window; a token bucket: -tokens / bound seconds; rounded half up; below
        zero while the quota is kept.
        Args: observed: None: the measured value. max_throttle_ms: the maximum result, None for any.
        Raises: ValueError without a quota, or if the metric is neither a rate nor a token bucket.
        """
        cdef int64_t now_ms, throttle_ms
        cdef double value
        cdef StatConfig config
        self.demand()
        if self.metric.stat.form != FORM_TOKEN_BUCKET:
            self.demand_rate()
        metric_get_config(self.metric, &config)
        if config.quota_kind == QUOTA_NONE:
            raise ValueError(f"metric {self.name!r} has no quota")
        now_ms = checked_time(time_ms, self.clock)
        value = self.measure(now_ms) if observed is None else observed
        with nogil:
            throttle_ms = metric_throttle_ms(self.metric, value, now_ms)
        return throttle_ms if max_throttle_ms is None else min(throttle_ms, max_throttle_ms)

    @property
    def config(self):
        """Current config; an assigned one applies to all later records, checks and measurements.

        A Meter and Percentiles continue to record by the config they were added with; only reading uses the new one.
        """
        cdef StatConfig now
        cdef const StatConfig *known
        self.demand()
        with nogil:
            metric_get_config(self.metric, &now)
        known = borrow_config(self._config)
        if now.quota_kind != known.quota_kind or now.bound != known.bound:      # native code has moved the bound
            quota = None if now.quota_kind == QUOTA_NONE else Quota(now.bound, now.quota_kind == QUOTA_UPPER)
            self._config = self._config.replace(quota=quota)
        return self._config

    @config.setter
    def config(self, config):
        cdef const StatConfig *c_config = borrow_config(config)
        cdef bint done
        self.demand()
        with nogil:
            done = metric_set_config(self.metric, c_config)
        if not done:
            raise MemoryError
        self._config = config

    @property
    def is_rate(self) -> bool:
        """Return whether the metric divides by a window of time."""
        self.demand()
        return metric_is_rate(self.metric)

    def samples(self) -> list:
        """Return the samples in the order of the ring, without changing them; empty for a statistic without samples.

        A sample is (start_ms, last_event_ms, event_count, value).
        """
        cdef list found = []
        cdef Sample sample
        cdef int32_t i = 0
        cdef bint more
        self.demand()
        if not stat_is_sampled(self.metric.stat):
            return found
        while True:
            with nogil:     # one sample at a time: no Python object is made under the lock
                mutex_lock(&self.sensor.lock)
                more = i < self.metric.stat.window.length
                if more:
                    sample = self.metric.stat.window.ring[i]
                mutex_unlock(&self.sensor.lock)
            if not more:
                return found
            found.append((sample.start_ms, sample.last_event_ms, sample.event_count, sample.value))
            i += 1

    def view(self):
        """Return a live, read-only view of the samples, for ``numpy.asarray``.

        Its fields are value, event_count, start_ms, last_event_ms. Nothing is copied: the array shows every later
        record, without a lock (a sample read while it is written may mix old and new fields; ``samples`` never does).
        Its length is the ring's present length. A config with more samples than ever before moves the ring to new
        memory; older views then stay as they are.
        Raises: ValueError for a statistic without samples.
        """
        self.demand()
        if not stat_is_sampled(self.metric.stat):
            raise ValueError(f"metric {self.name!r} has no samples")
        return new_sample_view(self.sensor, &self.metric.stat.window, False)

    def histogram_view(self):
        """Return a live, read-only view of float counts, samples x bins, as ``view``.

        Raises: ValueError for a statistic other than Percentiles.
        """
        self.demand()
        if not stat_is_sampled(self.metric.stat) or self.metric.stat.window.counts is NULL:
            raise ValueError(f"metric {self.name!r} has no histogram")
        return new_sample_view(self.sensor, &self.metric.stat.window, True)

    def __repr__(self):
        return f"<Metric {self.name!r}>"
