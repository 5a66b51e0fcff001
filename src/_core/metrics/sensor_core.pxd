"""A sensor: a stream of values that feeds several statistics, some of them bounded by a quota; and its parents.

Locks: ``SensorCore.lock`` guards everything below it in the struct. It is a leaf but for sensors_charge, which takes
the locks of several sensors in the order of their addresses; nothing else is taken under it. Ownership: counted; a
sensor holds a count on each parent. Stats and metrics live as long as their sensor, so a borrowed MetricCore needs a
count on the sensor. Everything here is safe from any thread without the GIL.

Measuring a sensor empties the samples that are too old, and checking a bucket fills it. To read without a change, make
a copy (sensor_copy): the same functions return for it the numbers that the original would give.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.stats cimport Stat, StatShape
from kbroker._core.sync cimport AtomicI64, Mutex

cdef enum:
    NO_THROTTLE_FORMULA = -1    # throttle_ms of a violation that is neither a rate's nor a token bucket's
    NO_CAP = -1

cdef enum RecordResult:
    RECORD_ACCEPTED = 0
    RECORD_VIOLATED = 1

cdef struct MetricCore:
    SensorCore *sensor          # borrowed: the owner
    Stat *stat                  # borrowed from the same sensor
    StatConfig config           # guarded by the sensor's lock
    double quantile
    int32_t part
    int32_t index               # place among the sensor's metrics

cdef struct Violation:
    MetricCore *metric          # borrowed: of the sensor or one of its parents
    double observed
    double bound
    int64_t throttle_ms         # uncapped time until the average is back at the bound, or NO_THROTTLE_FORMULA
    int64_t window_ms           # time that a rate covers now; time in which a token bucket fills

cdef struct SensorCore:
    AtomicI64 refs
    AtomicI64 last_record_ms
    AtomicI64 removed           # 1: no longer in its registry; a cached sensor is looked up again by name
    int64_t expiration_ms       # INT64_MAX: never; fixed at creation
    bint records                # false: too detailed for its config; fixed at creation
    int32_t parent_count
    SensorCore **parents        # owned counts; fixed at creation
    Mutex lock
    int64_t record_count        # values recorded so far
    int32_t stat_count
    int32_t metric_count
    int32_t stat_capacity
    int32_t metric_capacity
    Stat **stats
    MetricCore **metrics

cdef SensorCore *sensor_new(SensorCore **parents, int32_t parent_count, int64_t expiration_ms, bint records,
                            int64_t now_ms) noexcept nogil
cdef SensorCore *sensor_retain(SensorCore *sensor) noexcept nogil
cdef void sensor_release(SensorCore *sensor) noexcept nogil
cdef bint sensor_has_expired(SensorCore *sensor, int64_t now_ms) noexcept nogil
cdef bint sensor_is_removed(SensorCore *sensor) noexcept nogil
# Add a stat that several metrics may show; NULL: out of memory. A simple stat (is_compound false) takes its config
# from its one metric from then on, a compound one keeps `config`.
cdef Stat *sensor_add_stat(SensorCore *sensor, const StatShape *shape, const StatConfig *config) noexcept nogil
cdef MetricCore *sensor_add_metric(SensorCore *sensor, Stat *stat, int32_t part, double quantile,
                                   const StatConfig *config, bint is_compound) noexcept nogil
# Return the metric at an index in the order of addition, borrowed; NULL if there is none.
cdef MetricCore *sensor_metric(SensorCore *sensor, int32_t index) noexcept nogil
# Record, then check every quota in the order of the metrics, then the parents; the first violation ends it (recorded
# values stay, parents are not reached). The violation is written only with RECORD_VIOLATED.
cdef int sensor_record(SensorCore *sensor, double value, int64_t now_ms, bint check,
                       Violation *violation) noexcept nogil
# Call sensor_record and set *number to the value's place among all recorded values, from 1; 0: it was not recorded.
cdef int sensor_record_numbered(SensorCore *sensor, double value, int64_t now_ms, bint check, Violation *violation,
                                int64_t *number) noexcept nogil
cdef int sensor_check(SensorCore *sensor, int64_t now_ms, Violation *violation) noexcept nogil
# Check, and record without a check only if nothing is violated, in one step. *number: as above; for a refused value,
# the number of the latest recorded value; NULL: not needed.
cdef int sensor_record_strict(SensorCore *sensor, double value, int64_t now_ms, Violation *violation,
                              int64_t *number) noexcept nogil
# Call sensor_record; return 0 or the throttle time of the violation, at most cap_ms unless NO_CAP (0 without a
# formula).
cdef int64_t sensor_throttle_ms(SensorCore *sensor, double value, int64_t now_ms, int64_t cap_ms) noexcept nogil
cdef double metric_measure(MetricCore *metric, int64_t now_ms) noexcept nogil
# Return a measured value as a share of the bound of its quota.
cdef double metric_used(MetricCore *metric, int64_t now_ms) noexcept nogil
cdef bint metric_is_rate(const MetricCore *metric) noexcept nogil
cdef int64_t metric_window_ms(MetricCore *metric, int64_t now_ms) noexcept nogil     # rates only
cdef int64_t metric_throttle_ms(MetricCore *metric, double observed, int64_t now_ms) noexcept nogil
cdef bint metric_set_config(MetricCore *metric, const StatConfig *config) noexcept nogil     # false: out of memory
cdef void metric_get_config(MetricCore *metric, StatConfig *config) noexcept nogil
cdef bint metric_has_throttle(const MetricCore *metric) noexcept nogil      # a rate's or a token bucket's
# The caller holds the lock (sensors_charge); the first function releases it.
cdef int sensor_record_own_and_unlock(SensorCore *sensor, double value, int64_t now_ms, bint check,
                                      Violation *violation, int64_t *number) noexcept nogil
cdef void sensor_record_locked(SensorCore *sensor, double value, int64_t now_ms) noexcept nogil
cdef int sensor_check_locked(SensorCore *sensor, int64_t now_ms, Violation *violation) noexcept nogil
cdef int sensor_record_parents(SensorCore *sensor, double value, int64_t now_ms, bint check,
                               Violation *violation) noexcept nogil

# Several limits judged by one call: the strict ones are checked first, and if one refuses, nothing is recorded. Then
# all charges are recorded, the permissive ones with a check. All sensors are locked meanwhile, in the order of their
# addresses, so that no record is made between check and record; parents are recorded afterwards.

cdef enum:
    LARGEST_CHARGES = 16

cdef enum ChargeModeNumber:
    CHARGE_PERMISSIVE = 0       # recorded, then checked: a violation is a delay
    CHARGE_STRICT = 1           # checked, then recorded: a violation refuses the whole call
    CHARGE_UNCHECKED = 2        # recorded only

cdef enum ChargeResult:
    CHARGE_ACCEPTED = 0         # everything is recorded (the delay may still be above 0)
    CHARGE_REFUSED = 1          # nothing is recorded
    CHARGE_TOO_MANY = -1        # more than LARGEST_CHARGES: nothing done

cdef struct Charge:
    SensorCore *sensor          # borrowed; NULL: no such limit, skipped
    double value                # weight
    int64_t cap_ms              # longest delay of this limit, or NO_CAP
    int32_t mode
    # the result
    bint is_violated
    int64_t throttle_ms         # of this limit, capped; 0 if it is kept or its violation has no formula
    Violation violation         # valid if is_violated

# Charge all sensors; throttle_ms becomes the longest delay of all limits (of the strict ones, if the call is refused).
cdef int sensors_charge(Charge *charges, int32_t count, int64_t now_ms, int64_t *throttle_ms) noexcept nogil

# ----------------------------------------------------- copies
# Copy a sensor without its parents, under its lock while the samples are copied. The only count is the caller's.
# NULL: out of memory.
cdef SensorCore *sensor_copy(SensorCore *sensor) noexcept nogil
