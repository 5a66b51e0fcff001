"""Snapshots of quota counters, for explanations: copies, never the sensors themselves.

A snapshot creates no counter and changes none: a counter is copied under its sensor's lock, and all results are
computed on copies by the sensors' own functions.
Locks: ``QuotaManager.lock`` or ``QuotaCore.lock`` for one look-up in a table, then only the sensor's.
"""
cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport qsort

from kbroker._core.metrics.metric_config cimport StatConfig, convert_ms
from kbroker._core.metrics.stats cimport OTHERS_UNKNOWN, Sample, SampleWindow
from kbroker._core.metrics.sensor_core cimport (
    RECORD_ACCEPTED, MetricCore, SensorCore, Violation, metric_get_config, metric_measure, metric_window_ms,
    sensor_check, sensor_copy, sensor_release, sensor_retain,
)
from kbroker._core.metrics.token_bucket cimport Bucket, bucket_burst, bucket_record
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.common._quota_counter cimport (
    KIND_MUTATION, KIND_PRODUCE, NO_LIMIT, Judgement, counter_judge, judge, set_limit,
)
from kbroker.network.connections._connection_quotas cimport ConnectionQuotas
from kbroker.network.connections._quota_core cimport AddressEntry, QuotaCore, addresses_find
from kbroker.quota._client_quotas cimport ClientQuotaManager
from kbroker.quota._client_sensors cimport ClientSensors, QuotaManager, find_client_sensors, sensors_release
from kbroker.common._text cimport Text
from kbroker.quota._entities cimport Match, decoded, encoded, text_of

cdef enum:
    MOST_REPLAYED = 120         # number of samples; the latest ones
    MOST_SHOWN = 120


cdef int by_start(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const Sample *>left).start_ms
    cdef int64_t b = (<const Sample *>right).start_ms
    return -1 if a < b else (1 if a > b else 0)


@cython.final
cdef class CounterSnapshot:
    """Copy of a counter at one moment. Created by ``client_snapshot`` and ``address_snapshot``.

    Its results for a time are those of the counter at that time if nothing had been recorded since.
    Attributes: ``is_bucket``: a bucket of mutations; ``record_count``: number of values recorded so far.
    Threads: one at a time.
    """
    cdef SensorCore *copy       # counted; never measured or recorded to, only copied
    cdef int32_t kind
    cdef int64_t cap_ms
    cdef int32_t limited        # index of the metric with the limit
    cdef double next_value      # minimum that the next record adds
    cdef double no_limit        # the bound that means no limit

    def __init__(self):
        raise TypeError("a CounterSnapshot is made by client_snapshot")

    def __dealloc__(self):
        sensor_release(self.copy)

    cdef object bound_of(self, double bound):
        return None if bound == self.no_limit else bound

    cdef SensorCore *another(self) except NULL:
        """Return a counted reference to a copy, for computations."""
        cdef SensorCore *copy
        with nogil:
            copy = sensor_copy(self.copy)
        if copy == NULL:
            raise MemoryError
        return copy

    @property
    def is_bucket(self) -> bool:
        return self.kind == KIND_MUTATION

    @property
    def record_count(self) -> int:
        return self.copy.record_count

    @property
    def limit(self) -> float | None:
        """Limit of the counter, or None."""
        cdef StatConfig config
        metric_get_config(self.copy.metrics[self.limited], &config)
        return self.bound_of(config.bound)

    @property
    def sample_ms(self) -> int:
        """Length of a sample in milliseconds."""
        return self.copy.metrics[0].config.window_ms

    @property
    def sample_count(self) -> int:
        """Number of samples of a rate."""
        return self.copy.metrics[0].config.samples

    def samples(self) -> list:
        """Return the latest samples that have data, in order: (start_ms, last_event_ms, value, records)."""
        cdef SensorCore *copy = self.another()
        cdef SampleWindow *window = &copy.stats[0].window
        cdef int32_t i, first
        try:
            qsort(window.ring, <size_t>window.length, sizeof(Sample), by_start)
            first = window.length - MOST_SHOWN if window.length > MOST_SHOWN else 0
            return [(window.ring[i].start_ms, window.ring[i].last_event_ms, window.ring[i].value,
                     window.ring[i].event_count)
                    for i in range(first, window.length) if window.ring[i].event_count > 0]
        finally:
            sensor_release(copy)

    def measure(self, int64_t now_ms) -> tuple:
        """Return (rate per second, milliseconds covered, tokens, maximum tokens); the last two None for a rate."""
        cdef SensorCore *copy = self.another()
        cdef StatConfig config
        cdef double rate
        cdef int64_t window_ms
        try:
            rate = metric_measure(copy.metrics[0], now_ms)
            window_ms = metric_window_ms(copy.metrics[0], now_ms)
            if self.kind != KIND_MUTATION:
                return rate, window_ms, None, None
            metric_get_config(copy.metrics[self.limited], &config)
            return (rate, window_ms, metric_measure(copy.metrics[self.limited], now_ms),
                    bucket_burst(&config, copy.metrics[self.limited].stat.unit))
        finally:
            sensor_release(copy)

    def next_delay(self, int64_t now_ms) -> tuple:
        """Return (delay, delay by the formula) in ms for a connection, or for a request that uses nothing now."""
        cdef SensorCore *copy = self.another()
        cdef Judgement judgement
        cdef int32_t delay_ms
        try:
            delay_ms = counter_judge(copy, self.kind, self.next_value, now_ms, self.cap_ms, &judgement)
            return delay_ms, judgement.asked_ms
        finally:
            sensor_release(copy)

    def left(self, int64_t now_ms) -> float | None:
        """Return the amount that a request may record now within the limit; below zero while the limit is exceeded.

        None without a limit. For a bucket: the tokens; while they are not below zero, the next request is not delayed.
        """
        cdef SensorCore *copy = self.another()
        cdef SampleWindow *window
        cdef MetricCore *metric
        cdef Judgement judgement
        cdef StatConfig config
        cdef double used = 0.0
        cdef int32_t i
        try:
            metric = copy.metrics[self.limited]
            metric_get_config(metric, &config)
            if self.bound_of(config.bound) is None:
                return None
            if self.kind == KIND_MUTATION:
                return metric_measure(metric, now_ms)
            counter_judge(copy, self.kind, 0.0, now_ms, self.cap_ms, &judgement)    # begins a sample when it is due
            window = &metric.stat.window
            for i in range(window.length):
                used += window.ring[i].value
            return config.bound * convert_ms(metric_window_ms(metric, now_ms), metric.stat.unit) - used
        finally:
            sensor_release(copy)

    def replay(self, double limit, int64_t now_ms) -> list:
        """Return the decisions under another limit for the same values, as far back as the samples reach.

        One row for each sample, in order, at its latest record, and a last one for now: (time_ms, observed, delay_ms,
        is_complete). The values of a sample count as one; ``is_complete``: no older sample that mattered at that time
        has been overwritten since. ``observed``: the rate; for a bucket, which begins full, the tokens left.
        Raises: ValueError for a limit that is not above 0.
        """
        cdef SensorCore *copy
        if not limit > 0:
            raise ValueError(f"a limit must be above 0, got {limit}")
        copy = self.another()
        try:
            qsort(copy.stats[0].window.ring, <size_t>copy.stats[0].window.length, sizeof(Sample), by_start)
            if self.kind == KIND_MUTATION:
                return self.replay_bucket(copy, limit, now_ms)
            return self.replay_rate(copy, limit, now_ms)
        finally:
            sensor_release(copy)

    cdef list replay_rate(self, SensorCore *copy, double limit, int64_t now_ms):
        cdef SampleWindow *window = &copy.stats[0].window
        cdef int32_t i, length = window.length, latest = window.length - 1
        cdef int64_t first_ms = window.ring[0].start_ms if length > 0 else now_ms
        cdef list rows = []
        set_limit(copy.metrics[self.limited], limit)
        while latest > 0 and window.ring[latest].event_count == 0:
            latest -= 1
        for i in range(length):
            window.length = i + 1       # the ring at that time, as far as its older samples still exist
            window.current = i
            window.others = OTHERS_UNKNOWN
            if window.ring[i].event_count > 0 and i + MOST_REPLAYED >= length:
                rows.append(self.replayed(copy, window.ring[i].last_event_ms, first_ms, i == latest))
        rows.append(self.replayed(copy, now_ms, first_ms, True))
        return rows

    cdef tuple replayed(self, SensorCore *copy, int64_t now_ms, int64_t first_ms, bint is_latest):
        """Return one row of ``replay``.

        Args: ``is_latest``: samples that are no longer in the ring had already left it at that time.
        """
        cdef Violation violation
        cdef Judgement judgement
        cdef int32_t delay_ms = 0
        cdef const StatConfig *config = &self.copy.metrics[0].config
        cdef bint complete = is_latest or now_ms - first_ms >= config.samples * config.window_ms or self.kept_all()
        if sensor_check(copy, now_ms, &violation) != RECORD_ACCEPTED:
            delay_ms = judge(&judgement, &violation, self.cap_ms)
        return now_ms, metric_measure(copy.metrics[self.limited], now_ms), delay_ms, complete

    cdef list replay_bucket(self, SensorCore *copy, double limit, int64_t now_ms):
        cdef SampleWindow *window = &copy.stats[0].window
        cdef MetricCore *metric = copy.metrics[self.limited]
        cdef Bucket *bucket = &metric.stat.bucket
        cdef StatConfig config
        cdef Violation violation
        cdef Judgement judgement
        cdef int32_t i, delay_ms
        cdef int64_t time_ms
        cdef list rows = []
        set_limit(metric, limit)
        metric_get_config(metric, &config)
        bucket.tokens = bucket_burst(&config, metric.stat.unit)
        bucket.last_update_ms = window.ring[0].start_ms if window.length > 0 else now_ms
        for i in range(window.length + 1):
            if i < window.length and window.ring[i].event_count == 0:
                continue
            time_ms = window.ring[i].last_event_ms if i < window.length else now_ms
            delay_ms = 0
            if sensor_check(copy, time_ms, &violation) != RECORD_ACCEPTED:
                delay_ms = judge(&judgement, &violation, self.cap_ms)
            elif i < window.length:
                bucket_record(bucket, &config, metric.stat.unit, window.ring[i].value, time_ms)
            if i + MOST_REPLAYED >= window.length:
                rows.append((time_ms, metric_measure(metric, time_ms), delay_ms, self.kept_all()))
        return rows

    cdef bint kept_all(self) noexcept:
        """Return whether the samples contain all values that were ever recorded."""
        cdef SampleWindow *window = &self.copy.stats[0].window
        cdef int64_t events = 0
        cdef int32_t i
        for i in range(window.length):
            events += window.ring[i].event_count
        return events == self.copy.record_count


cdef CounterSnapshot snapshot_of(SensorCore *sensor, int32_t kind, int64_t cap_ms, double next_value, double no_limit):
    """Return a snapshot of a sensor, and release the caller's reference."""
    cdef CounterSnapshot snapshot
    cdef SensorCore *copy
    with nogil:
        copy = sensor_copy(sensor)
        sensor_release(sensor)
    if copy == NULL:
        raise MemoryError
    snapshot = CounterSnapshot.__new__(CounterSnapshot)
    snapshot.copy = copy
    snapshot.kind = kind
    snapshot.cap_ms = cap_ms
    snapshot.limited = 1 if kind == KIND_MUTATION else 0
    snapshot.next_value = next_value
    snapshot.no_limit = no_limit
    return snapshot


def client_snapshot(ClientQuotaManager manager not None, str user not None, str client_id not None) -> tuple:
    """Return a client's current quota and its counter: (limit, level, user tag, client tag, snapshot).

    ``limit``: None where no quota applies, and ``level`` is then 0. The tags as in ``Resolution``, but not encoded.
    ``snapshot``: None where nothing was counted yet.
    """
    cdef bytes user_name = encoded(user, "user"), client_name = encoded(client_id, "client_id")
    cdef Text user_text = text_of(user_name), client_text = text_of(client_name)
    cdef QuotaManager *quota_manager = manager.demand()
    cdef ClientSensors *sensors
    cdef SensorCore *sensor = NULL
    cdef Match match
    with nogil:
        sensors = find_client_sensors(quota_manager, user_text, client_text, &match)
        if sensors != NULL:
            sensor = sensor_retain(sensors.quota)
            sensors_release(sensors)
    snapshot = None if sensor == NULL else snapshot_of(sensor, quota_manager.kind, quota_manager.cap_ms, 0.0, NO_LIMIT)
    limit = None if match.limit == NO_LIMIT else match.limit
    return limit, match.level, decoded(match.user), decoded(match.client_id), snapshot


def address_snapshot(ConnectionQuotas connections not None, str address not None, bint shadow=False):
    """Return a CounterSnapshot of the connection rate of an address; None where nothing was counted yet."""
    cdef bytes name = address.encode("utf-8", "surrogateescape")
    cdef const char *text = name
    cdef QuotaCore *core = connections.core
    cdef AddressEntry *entry
    cdef SensorCore *sensor = NULL
    with nogil:
        mutex_lock(&core.lock)
        entry = addresses_find(&core.addresses, text)
        if entry != NULL:
            sensor = entry.shadow_rate.sensor if shadow else entry.rate.sensor
            if sensor != NULL:
                sensor_retain(sensor)
        mutex_unlock(&core.lock)
    return None if sensor == NULL else snapshot_of(sensor, KIND_PRODUCE, core.window_ms, 1.0, INT32_MAX)
