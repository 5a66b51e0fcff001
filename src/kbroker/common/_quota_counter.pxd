"""Quota counter of a client: the sensor that a broker and a replay create and check alike.

Locks: none but the sensor's own.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sensor_core cimport MetricCore, SensorCore, Violation

cdef enum:                      # types of quota
    KIND_PRODUCE = 0
    KIND_FETCH = 1
    KIND_REQUEST = 2
    KIND_MUTATION = 3
    KINDS = 4

cdef enum:
    SENSOR_EXPIRATION_MS = 3600000

cdef struct Judgement:          # result of recording a value into a counter
    int64_t sequence            # number of the value in its counter; if it was not recorded, of the previous value
    int64_t asked_ms            # delay by the formula, uncapped; 0: the quota is not violated
    double observed             # set, like the rest, only for a violation
    double limit
    int64_t window_ms

cdef double NO_LIMIT            # Kafka's Long.MAX_VALUE

cdef inline int32_t narrowed(int64_t throttle_ms) noexcept nogil:
    """Return the value after Java's cast to int: the lower 32 bits."""
    return <int32_t><uint64_t>throttle_ms

# Make the config of a type's limited metric, its bound still NO_LIMIT, and the maximum throttle time (NO_CAP: none).
cdef void limited_config(int32_t kind, const StatConfig *samples, StatConfig *limited, int64_t *cap_ms) noexcept nogil
# Add a metric to a sensor; NULL: out of memory.
cdef MetricCore *add_metric(SensorCore *sensor, int32_t form, int32_t sample_kind,
                            const StatConfig *config) noexcept nogil
# Create a sensor with a rate or, for mutations, a rate without a quota and a token bucket; `bounded` becomes the
# limited metric. NULL: out of memory.
cdef SensorCore *counter_sensor_new(int32_t kind, const StatConfig *limited, const StatConfig *unlimited, double limit,
                                    int64_t now_ms, MetricCore **bounded) noexcept nogil
cdef void set_limit(MetricCore *bounded, double limit) noexcept nogil
# Fill a judgement from a violation; return the delay, at most cap_ms.
cdef int32_t judge(Judgement *judgement, const Violation *violation, int64_t cap_ms) noexcept nogil
# Record with a check; a mutation only if nothing is violated already. The delay is an int32 like Java's: a huge one may
# be negative.
cdef int32_t counter_throttle_ms(SensorCore *sensor, int32_t kind, double value, int64_t now_ms,
                                 int64_t cap_ms) noexcept nogil
cdef int32_t counter_judge(SensorCore *sensor, int32_t kind, double value, int64_t now_ms, int64_t cap_ms,
                           Judgement *judgement) noexcept nogil
