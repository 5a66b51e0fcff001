"""Sensors without Python, which receive values and keep bounded statistics; charges of several sensors; copies.

Source: ``Sensor.java``, ``KafkaMetric.java``, ``QuotaUtils.java``.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc

from kbroker._core.metrics.metric_config cimport QUOTA_NONE, StatConfig, quota_accepts, round_half_up
from kbroker._core.metrics.stats cimport (
    FORM_SIMPLE_RATE, FORM_TOKEN_BUCKET, Stat, StatShape, stat_free, stat_is_sampled, stat_measure, stat_new,
    stat_part_is_rate, stat_record, window_reserve, window_size_ms,
)
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_store, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)


cdef SensorCore *sensor_new(SensorCore **parents, int32_t parent_count, int64_t expiration_ms, bint records,
                            int64_t now_ms) noexcept nogil:
    cdef SensorCore *sensor = <SensorCore *>calloc(1, sizeof(SensorCore))
    cdef int32_t i
    if sensor is NULL:
        return NULL
    if parent_count:
        sensor.parents = <SensorCore **>calloc(parent_count, sizeof(SensorCore *))
        if sensor.parents is NULL:
            free(sensor)
            return NULL
    mutex_init(&sensor.lock)
    atomic_store(&sensor.refs, 1)
    atomic_store(&sensor.last_record_ms, now_ms)
    sensor.expiration_ms = expiration_ms
    sensor.records = records
    for i in range(parent_count):
        sensor.parents[i] = sensor_retain(parents[i])
    sensor.parent_count = parent_count
    return sensor


cdef SensorCore *sensor_retain(SensorCore *sensor) noexcept nogil:
    atomic_add_fetch(&sensor.refs, 1)
    return sensor


cdef void sensor_release(SensorCore *sensor) noexcept nogil:
    cdef int32_t i
    if sensor is NULL or atomic_add_fetch(&sensor.refs, -1) != 0:
        return
    for i in range(sensor.parent_count):
        sensor_release(sensor.parents[i])
    for i in range(sensor.stat_count):
        stat_free(sensor.stats[i])
    for i in range(sensor.metric_count):
        free(sensor.metrics[i])
    free(sensor.parents)
    free(sensor.stats)
    free(sensor.metrics)
    mutex_destroy(&sensor.lock)
    free(sensor)


cdef bint sensor_has_expired(SensorCore *sensor, int64_t now_ms) noexcept nogil:
    return now_ms - atomic_load(&sensor.last_record_ms) > sensor.expiration_ms


cdef bint sensor_is_removed(SensorCore *sensor) noexcept nogil:
    return atomic_load(&sensor.removed) != 0


cdef void **grown(void **items, int32_t count, int32_t *capacity) noexcept nogil:
    """Return the array with capacity for one more pointer; NULL: out of memory, the array is unchanged."""
    cdef void **larger
    if count < capacity[0]:
        return items
    larger = <void **>realloc(items, <size_t>(capacity[0] * 2 + 2) * sizeof(void *))
    if larger is not NULL:
        capacity[0] = capacity[0] * 2 + 2
    return larger


cdef Stat *sensor_add_stat(SensorCore *sensor, const StatShape *shape, const StatConfig *config) noexcept nogil:
    cdef Stat *stat = stat_new(shape, config)
    cdef void **slots
    if stat is NULL:
        return NULL
    mutex_lock(&sensor.lock)
    slots = grown(<void **>sensor.stats, sensor.stat_count, &sensor.stat_capacity)
    if slots is not NULL:
        sensor.stats = <Stat **>slots
        sensor.stats[sensor.stat_count] = stat
        sensor.stat_count += 1
    mutex_unlock(&sensor.lock)
    if slots is NULL:
        stat_free(stat)
        return NULL
    return stat


cdef MetricCore *sensor_add_metric(SensorCore *sensor, Stat *stat, int32_t part, double quantile,
                                   const StatConfig *config, bint is_compound) noexcept nogil:
    cdef MetricCore *metric = <MetricCore *>calloc(1, sizeof(MetricCore))
    cdef void **slots
    if metric is NULL:
        return NULL
    metric.sensor = sensor
    metric.stat = stat
    metric.config = config[0]
    metric.part = part
    metric.quantile = quantile
    mutex_lock(&sensor.lock)
    slots = grown(<void **>sensor.metrics, sensor.metric_count, &sensor.metric_capacity)
    if slots is not NULL:
        sensor.metrics = <MetricCore **>slots
        metric.index = sensor.metric_count
        sensor.metrics[sensor.metric_count] = metric
        sensor.metric_count += 1
        if not is_compound:
            stat.config = &metric.config
    mutex_unlock(&sensor.lock)
    if slots is NULL:
        free(metric)
        return NULL
    return metric


cdef MetricCore *sensor_metric(SensorCore *sensor, int32_t index) noexcept nogil:
    cdef MetricCore *metric = NULL
    mutex_lock(&sensor.lock)
    if 0 <= index < sensor.metric_count:
        metric = sensor.metrics[index]
    mutex_unlock(&sensor.lock)
    return metric


cdef void sensor_record_locked(SensorCore *sensor, double value, int64_t now_ms) noexcept nogil:
    cdef int32_t i
    sensor.record_count += 1
    for i in range(sensor.stat_count):
        stat_record(sensor.stats[i], value, now_ms)


cdef inline int64_t throttle_locked(MetricCore *metric, double observed, int64_t now_ms,
                                    int64_t *window_ms) noexcept nogil:
    cdef double bound = metric.config.bound
    if metric.stat.form == FORM_TOKEN_BUCKET:
        window_ms[0] = metric.config.samples * metric.config.window_ms
        return round_half_up(-observed / bound * 1000)
    if not stat_part_is_rate(metric.stat, metric.part):
        window_ms[0] = 0
        return NO_THROTTLE_FORMULA
    window_ms[0] = window_size_ms(
        &metric.stat.window, &metric.config, metric.stat.form == FORM_SIMPLE_RATE, now_ms)
    return round_half_up((observed - bound) / bound * <double>window_ms[0])


cdef int sensor_check_locked(SensorCore *sensor, int64_t now_ms, Violation *violation) noexcept nogil:
    cdef MetricCore *metric
    cdef double value
    cdef int32_t i
    for i in range(sensor.metric_count):
        metric = sensor.metrics[i]
        if metric.config.quota_kind == QUOTA_NONE:
            continue
        value = stat_measure(metric.stat, metric.part, metric.quantile, &metric.config, now_ms)
        if metric.stat.form == FORM_TOKEN_BUCKET:
            if not value < 0.0:
                continue
        elif quota_accepts(&metric.config, value):
            continue
        if violation is not NULL:
            violation.metric = metric
            violation.observed = value
            violation.bound = metric.config.bound
            violation.throttle_ms = throttle_locked(metric, value, now_ms, &violation.window_ms)
        return RECORD_VIOLATED
    return RECORD_ACCEPTED


cdef int sensor_record_parents(SensorCore *sensor, double value, int64_t now_ms, bint check,
                               Violation *violation) noexcept nogil:
    cdef int32_t i
    for i in range(sensor.parent_count):
        if sensor_record(sensor.parents[i], value, now_ms, check, violation) != RECORD_ACCEPTED:
            return RECORD_VIOLATED
    return RECORD_ACCEPTED


cdef int sensor_record_own_and_unlock(SensorCore *sensor, double value, int64_t now_ms, bint check,
                                      Violation *violation, int64_t *number) noexcept nogil:
    """Record into the sensor's own statistics; the caller holds its lock, which is released.

    Returns: the result of the check; RECORD_ACCEPTED without one. ``number`` may be NULL.
    """
    cdef int result = RECORD_ACCEPTED
    sensor_record_locked(sensor, value, now_ms)
    if number is not NULL:
        number[0] = sensor.record_count
    if check:
        result = sensor_check_locked(sensor, now_ms, violation)
    mutex_unlock(&sensor.lock)
    return result


cdef int sensor_record(SensorCore *sensor, double value, int64_t now_ms, bint check,
                       Violation *violation) noexcept nogil:
    return sensor_record_numbered(sensor, value, now_ms, check, violation, NULL)


cdef int sensor_record_numbered(SensorCore *sensor, double value, int64_t now_ms, bint check, Violation *violation,
                                int64_t *number) noexcept nogil:
    if not sensor.records:
        if number is not NULL:
            number[0] = 0
        return RECORD_ACCEPTED
    atomic_store(&sensor.last_record_ms, now_ms)
    mutex_lock(&sensor.lock)
    if sensor_record_own_and_unlock(sensor, value, now_ms, check, violation, number) != RECORD_ACCEPTED:
        return RECORD_VIOLATED
    if sensor.parent_count == 0:
        return RECORD_ACCEPTED
    return sensor_record_parents(sensor, value, now_ms, check, violation)


cdef int sensor_check(SensorCore *sensor, int64_t now_ms, Violation *violation) noexcept nogil:
    cdef int result
    mutex_lock(&sensor.lock)
    result = sensor_check_locked(sensor, now_ms, violation)
    mutex_unlock(&sensor.lock)
    return result


cdef int sensor_record_strict(SensorCore *sensor, double value, int64_t now_ms, Violation *violation,
                              int64_t *number) noexcept nogil:
    cdef int result
    cdef int64_t latest
    mutex_lock(&sensor.lock)
    result = sensor_check_locked(sensor, now_ms, violation)
    if result == RECORD_ACCEPTED and sensor.records:
        atomic_store(&sensor.last_record_ms, now_ms)
        sensor_record_locked(sensor, value, now_ms)
    latest = sensor.record_count
    mutex_unlock(&sensor.lock)
    if number is not NULL:
        number[0] = latest
    if result == RECORD_ACCEPTED and sensor.records:
        sensor_record_parents(sensor, value, now_ms, False, NULL)
    return result


cdef int64_t sensor_throttle_ms(SensorCore *sensor, double value, int64_t now_ms, int64_t cap_ms) noexcept nogil:
    cdef Violation violation
    if sensor_record(sensor, value, now_ms, True, &violation) == RECORD_ACCEPTED or violation.throttle_ms < 0:
        return 0
    return cap_ms if 0 <= cap_ms < violation.throttle_ms else violation.throttle_ms


cdef double metric_measure(MetricCore *metric, int64_t now_ms) noexcept nogil:
    cdef double value
    mutex_lock(&metric.sensor.lock)
    value = stat_measure(metric.stat, metric.part, metric.quantile, &metric.config, now_ms)
    mutex_unlock(&metric.sensor.lock)
    return value


cdef double metric_used(MetricCore *metric, int64_t now_ms) noexcept nogil:
    cdef double used
    mutex_lock(&metric.sensor.lock)
    used = stat_measure(metric.stat, metric.part, metric.quantile, &metric.config, now_ms) / metric.config.bound
    mutex_unlock(&metric.sensor.lock)
    return used


cdef bint metric_is_rate(const MetricCore *metric) noexcept nogil:
    return stat_part_is_rate(metric.stat, metric.part)


cdef bint metric_has_throttle(const MetricCore *metric) noexcept nogil:
    return metric.stat.form == FORM_TOKEN_BUCKET or metric_is_rate(metric)


cdef int64_t metric_window_ms(MetricCore *metric, int64_t now_ms) noexcept nogil:
    cdef int64_t size_ms
    mutex_lock(&metric.sensor.lock)
    size_ms = window_size_ms(&metric.stat.window, &metric.config, metric.stat.form == FORM_SIMPLE_RATE, now_ms)
    mutex_unlock(&metric.sensor.lock)
    return size_ms


cdef int64_t metric_throttle_ms(MetricCore *metric, double observed, int64_t now_ms) noexcept nogil:
    cdef int64_t throttle_ms, window_ms
    mutex_lock(&metric.sensor.lock)
    throttle_ms = throttle_locked(metric, observed, now_ms, &window_ms)
    mutex_unlock(&metric.sensor.lock)
    return throttle_ms


cdef bint metric_set_config(MetricCore *metric, const StatConfig *config) noexcept nogil:
    cdef bint done = True
    mutex_lock(&metric.sensor.lock)
    if stat_is_sampled(metric.stat) and metric.stat.config is &metric.config:   # a compound stat records by its own
        done = window_reserve(&metric.stat.window, config)
    if done:
        metric.config = config[0]
    mutex_unlock(&metric.sensor.lock)
    return done


cdef void metric_get_config(MetricCore *metric, StatConfig *config) noexcept nogil:
    mutex_lock(&metric.sensor.lock)
    config[0] = metric.config
    mutex_unlock(&metric.sensor.lock)


# ---------------------------------------------------------------- several limits at once

cdef inline int32_t in_order(Charge *charges, int32_t count, SensorCore **ordered) noexcept nogil:
    """Collect the sensors of the charges, each once, in the order of their addresses; return their number."""
    cdef int32_t found = 0
    cdef int32_t i, at, moved
    cdef SensorCore *sensor
    for i in range(count):
        sensor = charges[i].sensor
        if sensor is NULL:
            continue
        at = found
        while at > 0 and <size_t>ordered[at - 1] > <size_t>sensor:
            at -= 1
        if at > 0 and ordered[at - 1] is sensor:
            continue
        found += 1
        for moved in range(found - 1, at, -1):
            ordered[moved] = ordered[moved - 1]
        ordered[at] = sensor
    return found


cdef inline void judge(Charge *charge, int result, int64_t *longest_ms) noexcept nogil:
    """Set the results of a charge whose violation is filled in."""
    charge.is_violated = result == RECORD_VIOLATED
    charge.throttle_ms = 0
    if not charge.is_violated or charge.violation.throttle_ms < 0:
        return
    charge.throttle_ms = charge.violation.throttle_ms
    if 0 <= charge.cap_ms < charge.throttle_ms:
        charge.throttle_ms = charge.cap_ms
    if charge.throttle_ms > longest_ms[0]:
        longest_ms[0] = charge.throttle_ms


cdef int sensors_charge(Charge *charges, int32_t count, int64_t now_ms, int64_t *throttle_ms) noexcept nogil:
    cdef SensorCore *ordered[LARGEST_CHARGES]
    cdef int32_t sensors, i
    cdef bint is_refused = False
    cdef Charge *charge
    throttle_ms[0] = 0
    if count > LARGEST_CHARGES:
        return CHARGE_TOO_MANY
    sensors = in_order(charges, count, ordered)
    for i in range(sensors):
        mutex_lock(&ordered[i].lock)
    for i in range(count):
        charge = &charges[i]
        charge.is_violated = False
        charge.throttle_ms = 0
        if charge.sensor is not NULL and charge.mode == CHARGE_STRICT:
            judge(charge, sensor_check_locked(charge.sensor, now_ms, &charge.violation), throttle_ms)
            is_refused = is_refused or charge.is_violated
    if not is_refused:
        for i in range(count):
            charge = &charges[i]
            if charge.sensor is NULL or not charge.sensor.records:
                continue
            atomic_store(&charge.sensor.last_record_ms, now_ms)
            sensor_record_locked(charge.sensor, charge.value, now_ms)
            if charge.mode == CHARGE_PERMISSIVE:
                judge(charge, sensor_check_locked(charge.sensor, now_ms, &charge.violation), throttle_ms)
    for i in range(sensors):
        mutex_unlock(&ordered[i].lock)
    if is_refused:
        return CHARGE_REFUSED
    for i in range(count):      # as in sensor_record: after the locks are released, and not after a failed check
        charge = &charges[i]
        if charge.sensor is NULL or charge.is_violated:
            continue
        if charge.sensor.records and charge.sensor.parent_count:
            judge(charge, sensor_record_parents(
                charge.sensor, charge.value, now_ms, charge.mode == CHARGE_PERMISSIVE, &charge.violation), throttle_ms)
    return CHARGE_ACCEPTED


# ----------------------------------------------------- copies

cdef Stat *stat_copy(const Stat *stat) noexcept nogil:
    """Copy a statistic with its config. NULL: out of memory."""
    cdef Stat *copy = <Stat *>calloc(1, sizeof(Stat))
    cdef StatConfig needed
    if copy is NULL:
        return NULL
    copy[0] = stat[0]
    copy.config = &copy.fixed_config
    if not stat_is_sampled(stat):
        return copy
    needed = stat.config[0]
    if needed.samples < stat.window.length - 1:       # the config had more samples before
        needed.samples = stat.window.length - 1
    copy.window.block = NULL
    if not window_reserve(&copy.window, &needed):     # copies from the original's ring, to which it still points
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
