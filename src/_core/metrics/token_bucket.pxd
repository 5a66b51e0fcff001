"""A bucket that fills at the bound's rate up to samples x window x bound, and may go below zero without limit.

Plain arithmetic, guarded by the lock of the sensor it belongs to. A new bucket was last touched at time 0: with a
clock that gives the time of day it is full at its next touch; with a clock that begins at 0 it begins empty.
Source: ``TokenBucket.java``.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.metric_config cimport QUOTA_NONE, StatConfig, convert_ms

cdef struct Bucket:
    double tokens
    int64_t last_update_ms

cdef inline double fewer(double a, double b) noexcept nogil:
    """Return the smaller number; NaN takes precedence, and -0.0 is below 0.0."""
    if a != a:
        return a
    if a == 0.0 and b == 0.0:
        return -(-a - b)
    return a if a <= b else b

cdef inline double bucket_burst(const StatConfig *config, int32_t unit) noexcept nogil:
    return <double>config.samples * convert_ms(config.window_ms, unit) * config.bound

cdef inline void bucket_refill(Bucket *bucket, const StatConfig *config, int32_t unit, double burst,
                               int64_t now_ms) noexcept nogil:
    bucket.tokens = fewer(burst, bucket.tokens + config.bound * convert_ms(now_ms - bucket.last_update_ms, unit))
    bucket.last_update_ms = now_ms

cdef inline void bucket_record(Bucket *bucket, const StatConfig *config, int32_t unit, double value,
                               int64_t now_ms) noexcept nogil:
    """Take `value` tokens; a negative value gives tokens back. Without a quota nothing happens."""
    cdef double burst
    if config.quota_kind == QUOTA_NONE:
        return
    burst = bucket_burst(config, unit)
    bucket_refill(bucket, config, unit, burst, now_ms)
    bucket.tokens = fewer(burst, bucket.tokens - value)

cdef inline double bucket_measure(Bucket *bucket, const StatConfig *config, int32_t unit,
                                  int64_t now_ms) noexcept nogil:
    """Return the current tokens, which may be below zero; without a quota the largest int64."""
    if config.quota_kind == QUOTA_NONE:
        return 9223372036854775807.0
    bucket_refill(bucket, config, unit, bucket_burst(config, unit), now_ms)
    return bucket.tokens
