"""Copies of sensors with all of their statistics."""
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sample_window cimport window_reserve
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore, sensor_new, sensor_release
from kbroker._core.metrics.stats cimport Stat, stat_is_sampled
from kbroker._core.sync cimport atomic_load, mutex_lock, mutex_unlock


cdef Stat *stat_copy(const Stat *stat) noexcept nogil:
    """Its config is a copy too. NULL: memory is out."""
    cdef Stat *copy = <Stat *>calloc(1, sizeof(Stat))
    cdef StatConfig room
    if copy is NULL:
        return NULL
    copy[0] = stat[0]
    copy.config = &copy.fixed_config
    if not stat_is_sampled(stat):
        return copy
    room = stat.config[0]
    if room.samples < stat.window.length - 1:       # it had more samples once
        room.samples = stat.window.length - 1
    copy.window.block = NULL
    if not window_reserve(&copy.window, &room):     # copies from the original's ring, to which it points still
        free(copy)
        return NULL
    return copy


cdef MetricCore *metric_copy(SensorCore *sensor, SensorCore *copy, const MetricCore *metric) noexcept nogil:
    cdef MetricCore *made = <MetricCore *>calloc(1, sizeof(MetricCore))
    cdef int32_t i
    if made is NULL:
        return NULL
    made[0] = metric[0]
    made.sensor = copy
    for i in range(sensor.stat_count):
        if sensor.stats[i] is metric.stat:
            made.stat = copy.stats[i]
            if metric.stat.config is &metric.config:
                made.stat.config = &made.config
    return made


cdef bint copy_stats(SensorCore *sensor, SensorCore *copy) noexcept nogil:
    cdef int32_t i
    copy.stats = <Stat **>calloc(sensor.stat_count + 1, sizeof(Stat *))
    copy.metrics = <MetricCore **>calloc(sensor.metric_count + 1, sizeof(MetricCore *))
    if copy.stats is NULL or copy.metrics is NULL:
        return False
    copy.stat_capacity = sensor.stat_count + 1
    copy.metric_capacity = sensor.metric_count + 1
    for i in range(sensor.stat_count):
        copy.stats[i] = stat_copy(sensor.stats[i])
        if copy.stats[i] is NULL:
            return False
        copy.stat_count += 1
    for i in range(sensor.metric_count):
        copy.metrics[i] = metric_copy(sensor, copy, sensor.metrics[i])
        if copy.metrics[i] is NULL:
            return False
        copy.metric_count += 1
    return True


cdef SensorCore *sensor_copy(SensorCore *sensor) noexcept nogil:
    cdef SensorCore *copy = sensor_new(
        NULL, 0, sensor.expiration_ms, sensor.records, atomic_load(&sensor.last_record_ms))
    cdef bint done
    if copy is NULL:
        return NULL
    mutex_lock(&sensor.lock)
    copy.record_count = sensor.record_count
    done = copy_stats(sensor, copy)
    mutex_unlock(&sensor.lock)
    if not done:
        sensor_release(copy)
        return NULL
    return copy
