# cython: freethreading_compatible=True
"""Rates and averages on the core's sensors, for native owners; see the contract in the .pxd."""
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.string cimport memset

from kbroker._core.metrics.metric_config cimport QUOTA_NONE, QUOTA_UPPER, UNIT_SECONDS, StatConfig
from kbroker._core.metrics.sample_window cimport SAMPLE_AVG, SAMPLE_SUM
from kbroker._core.metrics.sensor_core cimport (
    RECORD_ACCEPTED, Violation, metric_get_config, metric_measure, metric_set_config, sensor_add_metric,
    sensor_add_stat, sensor_new, sensor_record, sensor_release,
)
from kbroker._core.metrics.stats cimport FORM_RATE, FORM_SAMPLED, PART_WHOLE, Stat, StatShape


cdef void gauge_config(StatConfig *config, int32_t samples, int64_t window_ms, double limit) noexcept nogil:
    config.samples = samples
    config.window_ms = window_ms
    config.event_window = INT64_MAX
    config.quota_kind = QUOTA_NONE if limit < 0 else QUOTA_UPPER
    config.bound = limit


cdef bint make(Gauge *gauge, int32_t form, int32_t sample_kind, const StatConfig *config, int64_t expiration_ms,
               int64_t now_ms) noexcept nogil:
    cdef StatShape shape
    cdef Stat *stat = NULL
    memset(&shape, 0, sizeof(shape))
    shape.form = form
    shape.sample_kind = sample_kind
    shape.unit = UNIT_SECONDS
    gauge.metric = NULL
    gauge.sensor = sensor_new(NULL, 0, expiration_ms, True, now_ms)
    if gauge.sensor is not NULL:
        stat = sensor_add_stat(gauge.sensor, &shape, config)
    if stat is not NULL:
        gauge.metric = sensor_add_metric(gauge.sensor, stat, PART_WHOLE, 0.0, config, False)
    if gauge.metric is NULL:
        gauge_clear(gauge)
        return False
    return True


cdef bint gauge_make_rate(Gauge *gauge, const StatConfig *config, int64_t expiration_ms,
                          int64_t now_ms) noexcept nogil:
    return make(gauge, FORM_RATE, SAMPLE_SUM, config, expiration_ms, now_ms)


cdef bint gauge_make_avg(Gauge *gauge, const StatConfig *config, int64_t now_ms) noexcept nogil:
    return make(gauge, FORM_SAMPLED, SAMPLE_AVG, config, INT64_MAX, now_ms)


cdef void gauge_clear(Gauge *gauge) noexcept nogil:
    sensor_release(gauge.sensor)
    gauge.sensor = NULL
    gauge.metric = NULL


cdef int64_t gauge_count_one(Gauge *gauge, int64_t now_ms, int64_t cap_ms, Violation *violation) noexcept nogil:
    violation.throttle_ms = 0
    if sensor_record(gauge.sensor, 1.0, now_ms, True, violation) == RECORD_ACCEPTED or violation.throttle_ms < 0:
        return 0
    return cap_ms if 0 <= cap_ms < violation.throttle_ms else violation.throttle_ms


cdef void gauge_record(Gauge *gauge, double value, int64_t now_ms) noexcept nogil:
    sensor_record(gauge.sensor, value, now_ms, False, NULL)


cdef double gauge_measure(Gauge *gauge, int64_t now_ms) noexcept nogil:
    return metric_measure(gauge.metric, now_ms)


cdef bint gauge_set_limit(Gauge *gauge, double limit) noexcept nogil:
    cdef StatConfig config
    metric_get_config(gauge.metric, &config)
    config.bound = limit
    return metric_set_config(gauge.metric, &config)
