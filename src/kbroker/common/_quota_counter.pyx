"""Sensors of client quota counters: their statistics, and the delay computed for a violation.

Source: ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager``, ``QuotaUtils``.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.metrics.metric_config cimport QUOTA_UPPER, UNIT_SECONDS, StatConfig
from kbroker._core.metrics.sensor_core cimport (
    NO_CAP, RECORD_ACCEPTED, MetricCore, SensorCore, Violation, metric_get_config, metric_set_config,
    sensor_add_metric, sensor_add_stat, sensor_new, sensor_record_numbered, sensor_record_strict, sensor_release,
)
from kbroker._core.metrics.stats cimport FORM_RATE, FORM_TOKEN_BUCKET, PART_WHOLE, SAMPLE_SUM, Stat, StatShape

cdef double NO_LIMIT = 9223372036854775807.0


cdef void limited_config(int32_t kind, const StatConfig *samples, StatConfig *limited, int64_t *cap_ms) noexcept nogil:
    limited[0] = samples[0]
    limited.quota_kind = QUOTA_UPPER
    limited.bound = NO_LIMIT
    cap_ms[0] = samples.window_ms if kind == KIND_REQUEST else NO_CAP


cdef MetricCore *add_metric(SensorCore *sensor, int32_t form, int32_t sample_kind,
                            const StatConfig *config) noexcept nogil:
    cdef StatShape shape
    cdef Stat *stat
    shape.form = form
    shape.sample_kind = sample_kind
    shape.unit = UNIT_SECONDS
    shape.own_window_ms = 0
    stat = sensor_add_stat(sensor, &shape, config)
    if stat == NULL:
        return NULL
    return sensor_add_metric(sensor, stat, PART_WHOLE, 0.0, config, False)


cdef SensorCore *counter_sensor_new(int32_t kind, const StatConfig *limited, const StatConfig *unlimited, double limit,
                                    int64_t now_ms, MetricCore **bounded) noexcept nogil:
    cdef StatConfig config = limited[0]
    cdef SensorCore *sensor = sensor_new(NULL, 0, SENSOR_EXPIRATION_MS, True, now_ms)
    cdef bint done = sensor != NULL
    config.bound = limit
    if done and kind == KIND_MUTATION:
        done = add_metric(sensor, FORM_RATE, SAMPLE_SUM, unlimited) != NULL
    if done:
        bounded[0] = add_metric(sensor, FORM_TOKEN_BUCKET if kind == KIND_MUTATION else FORM_RATE, SAMPLE_SUM, &config)
        done = bounded[0] != NULL
    if not done:
        sensor_release(sensor)
        return NULL
    return sensor


cdef void set_limit(MetricCore *bounded, double limit) noexcept nogil:
    cdef StatConfig config
    metric_get_config(bounded, &config)
    if config.bound != limit:
        config.bound = limit
        metric_set_config(bounded, &config)     # cannot fail: the ring keeps its size


cdef int32_t counter_throttle_ms(SensorCore *sensor, int32_t kind, double value, int64_t now_ms,
                                 int64_t cap_ms) noexcept nogil:
    cdef Judgement judgement
    return counter_judge(sensor, kind, value, now_ms, cap_ms, &judgement)


cdef int32_t judge(Judgement *judgement, const Violation *violation, int64_t cap_ms) noexcept nogil:
    judgement.asked_ms = max(violation.throttle_ms, 0)
    judgement.observed = violation.observed
    judgement.limit = violation.bound
    judgement.window_ms = violation.window_ms
    return narrowed(cap_ms if 0 <= cap_ms < judgement.asked_ms else judgement.asked_ms)


cdef int32_t counter_judge(SensorCore *sensor, int32_t kind, double value, int64_t now_ms, int64_t cap_ms,
                           Judgement *judgement) noexcept nogil:
    cdef Violation violation
    cdef int result
    judgement.asked_ms = 0
    if kind == KIND_MUTATION:
        result = sensor_record_strict(sensor, value, now_ms, &violation, &judgement.sequence)
    else:
        result = sensor_record_numbered(sensor, value, now_ms, True, &violation, &judgement.sequence)
    return 0 if result == RECORD_ACCEPTED else judge(judgement, &violation, cap_ms)
