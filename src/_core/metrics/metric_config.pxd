"""The config of a metric: number and length of its samples, its quota; and the arithmetic of units and rounding.

Plain values without a lock: the owner of a StatConfig guards it.
"""
from libc.math cimport floor
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t

cdef enum:
    QUOTA_NONE = 0
    QUOTA_UPPER = 1
    QUOTA_LOWER = 2

cdef enum RecordingLevelNumber:
    LEVEL_INFO = 0
    LEVEL_DEBUG = 1
    LEVEL_TRACE = 2

cdef enum UnitNumber:
    UNIT_NANOSECONDS = 0
    UNIT_MICROSECONDS = 1
    UNIT_MILLISECONDS = 2
    UNIT_SECONDS = 3
    UNIT_MINUTES = 4
    UNIT_HOURS = 5
    UNIT_DAYS = 6

cdef struct StatConfig:
    int64_t window_ms           # length of ONE sample, >= 1
    int64_t event_window        # events after which a sample is complete, >= 1
    double bound                # of the quota
    int32_t samples             # >= 1
    int32_t quota_kind

cdef inline double convert_ms(int64_t ms, int32_t unit) noexcept nogil:
    """Return milliseconds in a unit, with fractions."""
    if unit == UNIT_SECONDS:
        return <double>ms / 1000.0
    if unit == UNIT_MILLISECONDS:
        return <double>ms
    if unit == UNIT_MICROSECONDS:
        return <double>ms * 1000.0
    if unit == UNIT_NANOSECONDS:
        return <double>ms * 1000.0 * 1000.0
    if unit == UNIT_MINUTES:
        return <double>ms / 60000.0
    if unit == UNIT_HOURS:
        return <double>ms / 3600000.0
    return <double>ms / 86400000.0

cdef inline bint quota_accepts(const StatConfig *config, double value) noexcept nogil:
    """Return whether a value is within the quota: equality is not a violation, NaN is one."""
    return value <= config.bound if config.quota_kind == QUOTA_UPPER else value >= config.bound

cdef inline int64_t round_half_up(double x) noexcept nogil:
    """Return the nearest integer, halves toward plus infinity; 0 for NaN; the nearest limit if out of range."""
    cdef double whole
    if x != x:
        return 0
    if x >= 9223372036854775807.0:
        return INT64_MAX
    if x <= -9223372036854775808.0:
        return INT64_MIN
    whole = floor(x)
    return <int64_t>whole + (1 if x - whole >= 0.5 else 0)

cdef class Quota:
    cdef readonly double bound
    cdef readonly bint is_upper

cdef class MetricConfig:
    cdef StatConfig config      # immutable
    cdef int32_t level
    cdef readonly Quota quota
    cdef readonly object tags   # a read-only mapping

cdef const StatConfig *borrow_config(object config) except NULL     # TypeError unless a MetricConfig
cdef int32_t level_number(object level) except -1
cdef int32_t unit_number(object unit) except -1
