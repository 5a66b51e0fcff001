"""One native sensor with one metric, made without Python: a rate with an upper quota, or an average.

A Gauge is guarded by its owner's lock; its sensor locks for itself.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore, Violation

cdef struct Gauge:
    SensorCore *sensor          # owned count
    MetricCore *metric          # borrowed from it

# Config of samples of window_ms; a limit makes it an upper quota, a negative one none.
cdef void gauge_config(StatConfig *config, int32_t samples, int64_t window_ms, double limit) noexcept nogil
# False: memory is out, nothing was made.
cdef bint gauge_make_rate(Gauge *gauge, const StatConfig *config, int64_t expiration_ms, int64_t now_ms) noexcept nogil
cdef bint gauge_make_avg(Gauge *gauge, const StatConfig *config, int64_t now_ms) noexcept nogil
cdef void gauge_clear(Gauge *gauge) noexcept nogil
# Records 1, checked: the delay of a violation (filled in), at most cap_ms; 0 if the quota is kept.
cdef int64_t gauge_count_one(Gauge *gauge, int64_t now_ms, int64_t cap_ms, Violation *violation) noexcept nogil
cdef void gauge_record(Gauge *gauge, double value, int64_t now_ms) noexcept nogil      # unchecked
cdef double gauge_measure(Gauge *gauge, int64_t now_ms) noexcept nogil
cdef bint gauge_set_limit(Gauge *gauge, double limit) noexcept nogil                   # false: memory is out
