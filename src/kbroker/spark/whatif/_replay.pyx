"""Replay of logged values to the sensors that a broker judges by, a batch in one call without the GIL.

A counter is identified by a number; ``kbroker.common.quotas.resolve`` determines which clients share a counter.
"""
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from kbroker._core.metrics.metric_config cimport QUOTA_NONE, StatConfig, borrow_config
from kbroker._core.metrics.metric_config import MetricConfig
from kbroker._core.metrics.sensor_core cimport (
    MetricCore, SensorCore, metric_measure, sensor_has_expired, sensor_record, sensor_release,
    sensor_throttle_ms,
)
from kbroker.common._quota_counter cimport (
    KIND_MUTATION, KINDS, NO_LIMIT, counter_sensor_new, counter_throttle_ms, limited_config, narrowed,
)

KINDS_BY_NAME = {"Produce": 0, "Fetch": 1, "Request": 2, "ControllerMutation": 3}

cdef enum:
    ACTION_JUDGED = 0
    ACTION_COUNTED = 1
    ACTION_GIVEN_BACK = 2
    ACTION_STRICT = 3

JUDGED, COUNTED, GIVEN_BACK, STRICT = range(4)

cdef enum:
    RUN_DONE = -1
    RUN_NO_MEMORY = -2


cdef struct Counter:
    SensorCore *sensor          # owned count; NULL until the first value, and after an hour without one
    MetricCore *bounded         # of sensor
    double limit
    int32_t kind


cdef class Counters:
    """Counters by number, each with its type and limit; cold at first.

    Args:
        samples, window_ms: quota.window.num, and quota.window.size.seconds as milliseconds.
        controller_samples, controller_window_ms: the same with controller.quota.
        expires: whether a counter that was idle for an hour becomes cold, as in the broker.
    Raises: ValueError for impossible settings.
    Threads: one at a time.
    """

    cdef Counter *counters      # owned
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef StatConfig limited[KINDS]
    cdef int64_t cap_ms[KINDS]
    cdef StatConfig unlimited
    cdef bint expires

    def __cinit__(self, *, samples=11, window_ms=1000, controller_samples=11, controller_window_ms=1000,
                  bint expires=True):
        client, controller = MetricConfig(samples, window_ms), MetricConfig(controller_samples, controller_window_ms)
        default = MetricConfig()        # in a variable: a borrowed pointer is valid only while the object exists
        cdef int kind
        for kind in range(KINDS):
            limited_config(kind, borrow_config(controller if kind == KIND_MUTATION else client), &self.limited[kind],
                           &self.cap_ms[kind])
        self.expires = expires
        self.unlimited = borrow_config(default)[0]
        self.unlimited.quota_kind = QUOTA_NONE

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.size):
            sensor_release(self.counters[i].sensor)
        free(self.counters)

    def __len__(self):
        return self.size

    cdef Counter *at(self, Py_ssize_t number) except NULL:
        if not 0 <= number < self.size:
            raise IndexError(f"expected the number of one of {self.size} counters, got {number}")
        return &self.counters[number]

    def add(self, str quota_type not None, limit=None) -> int:
        """Add a counter, and return its number. Args: ``limit``: None for no limit. Raises: ValueError."""
        cdef Counter *counter
        if quota_type not in KINDS_BY_NAME:
            raise ValueError(f"quota_type must be one of {', '.join(KINDS_BY_NAME)}, got {quota_type!r}")
        if limit is not None and not limit > 0:
            raise ValueError(f"a limit must be above 0, got {limit}")
        if self.size == self.capacity:
            counter = <Counter *>realloc(self.counters, <size_t>(self.capacity * 2 + 16) * sizeof(Counter))
            if counter == NULL:
                raise MemoryError
            self.counters = counter
            self.capacity = self.capacity * 2 + 16
        counter = &self.counters[self.size]
        memset(counter, 0, sizeof(Counter))
        counter.limit = NO_LIMIT if limit is None else limit
        counter.kind = KINDS_BY_NAME[quota_type]
        self.size += 1
        return self.size - 1

    def reset(self, Py_ssize_t number, double limit) -> None:
        """Reset a counter, with another limit. Raises: IndexError, ValueError."""
        cdef Counter *counter = self.at(number)
        if not limit > 0:
            raise ValueError(f"a limit must be above 0, got {limit}")
        sensor_release(counter.sensor)
        counter.sensor = NULL
        counter.limit = limit

    def run(self, const int32_t[::1] counter not None, const int64_t[::1] time_ms not None,
            const double[::1] value not None, const int8_t[::1] action not None,
            const int32_t[::1] request not None, int32_t[::1] delay_ms not None,
            int32_t[::1] served_ms not None) -> None:
        """Replay a batch, in its order; the counters keep their values for the next one.

        Args, all but the last of the same length:
            counter: numbers.
            time_ms: since 1970.
            value: bytes, percent of a thread, mutations.
            action: JUDGED (record, then check), COUNTED (record only), GIVEN_BACK (take the value off again, if the
                request was delayed), STRICT (check, and record only a value that passes).
            request: place of the value's request in ``served_ms``.
            delay_ms: output: the delay of each value, by its own counter.
            served_ms: raised to the longest delay of each request; begin with zeroes.
        Raises: ValueError for lengths that differ; IndexError for a counter or request that does not exist (the
            values before it are recorded).
        """
        cdef Py_ssize_t n = counter.shape[0], at
        if not (time_ms.shape[0] == value.shape[0] == action.shape[0] == request.shape[0] == delay_ms.shape[0] == n):
            raise ValueError("the columns have different lengths")
        with nogil:
            at = self.feed(n, counter, time_ms, value, action, request, delay_ms, served_ms)
        if at == RUN_NO_MEMORY:
            raise MemoryError
        if at != RUN_DONE:
            raise IndexError(f"value {at}: counter {counter[at]} or request {request[at]} does not exist")

    cdef Py_ssize_t feed(self, Py_ssize_t n, const int32_t[::1] counters, const int64_t[::1] time_ms,
                         const double[::1] value, const int8_t[::1] action, const int32_t[::1] request,
                         int32_t[::1] delay_ms, int32_t[::1] served_ms) noexcept nogil:
        cdef Py_ssize_t i
        cdef int32_t delay, of
        cdef Counter *counter
        for i in range(n):
            of = request[i]
            if not 0 <= counters[i] < self.size or not 0 <= of < served_ms.shape[0]:
                return i
            counter = &self.counters[counters[i]]
            delay_ms[i] = 0
            if not self.take(counter, action[i], value[i], time_ms[i], served_ms[of] > 0, &delay):
                return RUN_NO_MEMORY
            delay_ms[i] = delay
            if delay > served_ms[of]:
                served_ms[of] = delay
        return RUN_DONE

    cdef inline bint take(self, Counter *counter, int8_t action, double value, int64_t now_ms, bint is_delayed,
                          int32_t *delay_ms) noexcept nogil:
        """Replay one value. False: out of memory."""
        delay_ms[0] = 0
        if action == ACTION_GIVEN_BACK and not is_delayed:
            return True
        if not self.wake(counter, now_ms):
            return False
        if action == ACTION_COUNTED:
            sensor_record(counter.sensor, value, now_ms, False, NULL)
        elif action == ACTION_GIVEN_BACK:
            sensor_record(counter.sensor, -value, now_ms, False, NULL)
        elif action == ACTION_JUDGED and counter.kind == KIND_MUTATION:     # of a client that does not support error 89
            delay_ms[0] = narrowed(sensor_throttle_ms(counter.sensor, value, now_ms, self.cap_ms[KIND_MUTATION]))
        else:
            delay_ms[0] = counter_throttle_ms(counter.sensor, counter.kind, value, now_ms, self.cap_ms[counter.kind])
        return True

    cdef inline bint wake(self, Counter *counter, int64_t now_ms) noexcept nogil:
        """Give a counter a sensor if it has none, or if it was idle for an hour; false: out of memory."""
        if self.expires and counter.sensor != NULL and sensor_has_expired(counter.sensor, now_ms):
            sensor_release(counter.sensor)
            counter.sensor = NULL
        if counter.sensor == NULL:
            counter.sensor = counter_sensor_new(
                counter.kind, &self.limited[counter.kind], &self.unlimited, counter.limit, now_ms, &counter.bounded)
        return counter.sensor != NULL

    def observe(self, Py_ssize_t number, const int64_t[::1] time_ms not None, const double[::1] value not None,
                double[::1] observed not None) -> None:
        """Feed one counter without judging, and write its rate after each value into ``observed``.

        Raises: IndexError; ValueError for lengths that differ, and for mutations, which are judged by tokens.
        """
        cdef Counter *counter = self.at(number)
        cdef Py_ssize_t n = time_ms.shape[0], i
        cdef bint done = True
        if not (value.shape[0] == observed.shape[0] == n):
            raise ValueError("the columns have different lengths")
        if counter.kind == KIND_MUTATION:
            raise ValueError("mutations have no rate to be judged by")
        with nogil:
            for i in range(n):
                done = self.wake(counter, time_ms[i])
                if not done:
                    break
                sensor_record(counter.sensor, value[i], time_ms[i], False, NULL)
                observed[i] = metric_measure(counter.bounded, time_ms[i])
        if not done:
            raise MemoryError

    def throttled_seconds(self, Py_ssize_t number, const int64_t[::1] time_ms not None,
                          const double[::1] value not None, const int8_t[::1] action not None) -> int:
        """Feed one counter, and return the number of seconds in which it delayed something.

        GIVEN_BACK refers to the value judged last. A second must not occur again after a later one.
        Raises: IndexError; ValueError for lengths that differ.
        """
        cdef Counter *counter = self.at(number)
        cdef Py_ssize_t n = time_ms.shape[0], i
        cdef int64_t seconds = 0, last = -INT64_MAX, second
        cdef int32_t delay = 0, judged = 0
        cdef bint done = True
        if not (value.shape[0] == action.shape[0] == n):
            raise ValueError("the columns have different lengths")
        with nogil:
            for i in range(n):
                done = self.take(counter, action[i], value[i], time_ms[i], judged > 0, &delay)
                if not done:
                    break
                if action[i] == ACTION_JUDGED or action[i] == ACTION_STRICT:
                    judged = delay
                    second = time_ms[i] // 1000
                    if delay > 0 and second != last:
                        seconds += 1
                        last = second
        if not done:
            raise MemoryError
        return seconds
