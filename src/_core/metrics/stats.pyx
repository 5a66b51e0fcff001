"""The statistics a sensor can keep, as native structs, and the Python objects that describe them."""
cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.metrics.metric_config cimport StatConfig, UNIT_SECONDS, unit_number
from kbroker._core.metrics.sample_window cimport (
    SAMPLE_AVG, SAMPLE_COUNT, SAMPLE_HISTOGRAM, SAMPLE_MAX, SAMPLE_MIN, SAMPLE_SUM, window_destroy, window_init,
    window_measure, window_quantile, window_rate, window_record,
)
from kbroker._core.metrics.token_bucket cimport bucket_measure, bucket_record

from operator import index

cdef int32_t LARGEST_BINS = 1 << 20


cdef bint stat_is_sampled(const Stat *stat) noexcept nogil:
    return stat.form <= FORM_PERCENTILES


cdef Stat *stat_new(const StatShape *shape, const StatConfig *config) noexcept nogil:
    cdef Stat *stat = <Stat *>calloc(1, sizeof(Stat))
    if stat is NULL:
        return NULL
    stat.form = shape.form
    stat.unit = shape.unit
    stat.fixed_config = config[0]
    stat.config = &stat.fixed_config
    if stat_is_sampled(stat) and not window_init(
            &stat.window, shape.sample_kind, config, shape.own_window_ms,
            &shape.scheme if shape.form == FORM_PERCENTILES else NULL):
        free(stat)
        return NULL
    return stat


cdef void stat_free(Stat *stat) noexcept nogil:
    if stat is NULL:
        return
    if stat_is_sampled(stat):
        window_destroy(&stat.window)
    free(stat)


cdef void stat_record(Stat *stat, double value, int64_t now_ms) noexcept nogil:
    if stat.form <= FORM_SIMPLE_RATE or stat.form == FORM_PERCENTILES:
        window_record(&stat.window, stat.config, value, now_ms)
    elif stat.form == FORM_TOKEN_BUCKET:
        bucket_record(&stat.bucket, stat.config, stat.unit, value, now_ms)
    elif stat.form == FORM_METER:
        window_record(&stat.window, stat.config, value, now_ms)
        stat.total += 1.0 if stat.window.kind == SAMPLE_COUNT else value
    elif stat.form == FORM_CUMULATIVE_SUM:
        stat.total += value
    elif stat.form == FORM_CUMULATIVE_COUNT:
        stat.total += 1.0
    else:
        stat.total = value


cdef double stat_measure(Stat *stat, int32_t part, double quantile, const StatConfig *config,
                         int64_t now_ms) noexcept nogil:
    if stat.form == FORM_RATE or part == PART_RATE:
        return window_rate(&stat.window, config, stat.unit, False, now_ms)
    if stat.form == FORM_TOKEN_BUCKET:
        return bucket_measure(&stat.bucket, config, stat.unit, now_ms)
    if stat.form == FORM_SIMPLE_RATE:
        return window_rate(&stat.window, config, stat.unit, True, now_ms)
    if stat.form == FORM_SAMPLED:
        return window_measure(&stat.window, config, now_ms)
    if part == PART_QUANTILE:
        return window_quantile(&stat.window, config, quantile, now_ms)
    return stat.total


cdef bint stat_part_is_rate(const Stat *stat, int32_t part) noexcept nogil:
    return stat.form == FORM_RATE or stat.form == FORM_SIMPLE_RATE or part == PART_RATE


cdef class StatSpec:
    """Description that ``Sensor.add`` makes a statistic from. It has no state, so one may be added to many sensors.

    Made by the classes below. Threads: any; immutable.
    """

    def __cinit__(self, *args, **kwargs):
        if type(self) is StatSpec:
            raise TypeError("StatSpec describes nothing: use Rate, Avg, TokenBucket, ...")

    def __repr__(self):
        return f"{type(self).__name__}()"


cdef int sampled(StatSpec spec, int32_t kind) except -1:
    spec.shape.form = FORM_SAMPLED
    spec.shape.sample_kind = kind
    spec.shape.unit = UNIT_SECONDS
    spec.parts = ()
    return 0


@cython.final
cdef class WindowedSum(StatSpec):
    """Sum over the window; 0 without data."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)


@cython.final
cdef class WindowedCount(StatSpec):
    """Number of records in the window; 0 without data."""

    def __cinit__(self):
        sampled(self, SAMPLE_COUNT)


@cython.final
cdef class Avg(StatSpec):
    """Mean over the window; NaN without data."""

    def __cinit__(self):
        sampled(self, SAMPLE_AVG)


@cython.final
cdef class Max(StatSpec):
    """Largest value of the window; NaN without data."""

    def __cinit__(self):
        sampled(self, SAMPLE_MAX)


@cython.final
cdef class Min(StatSpec):
    """Smallest value of the window; NaN without data."""

    def __cinit__(self):
        sampled(self, SAMPLE_MIN)


cdef int rate_of(StatSpec spec, int32_t form, object stat, object unit, object window_ms) except -1:
    cdef StatSpec inner
    if stat is not None and not isinstance(stat, StatSpec):
        raise TypeError(f"stat must be a sampled stat or None, not {type(stat).__name__}")
    sampled(spec, SAMPLE_SUM)
    if stat is not None:
        inner = stat
        if inner.shape.form != FORM_SAMPLED:
            raise ValueError(f"a rate goes over WindowedSum, WindowedCount, Avg, Max or Min, not {type(stat).__name__}")
        spec.shape.sample_kind = inner.shape.sample_kind
    spec.shape.form = form
    spec.shape.unit = unit_number(unit)
    if window_ms is not None:
        if not 1 <= index(window_ms) <= 1 << 40:
            raise ValueError(f"window_ms must be 1 to {1 << 40} or None, got {window_ms}")
        spec.shape.own_window_ms = window_ms
    return 0


@cython.final
cdef class Rate(StatSpec):
    """A sampled stat per unit of time, taking at least ``samples - 1`` whole windows to have passed.

    11 samples of 1 s and one record of v: v/10 at once, v/10.5 half a second later.
    Args:
        stat: what is divided by the time, WindowedSum by default.
        unit: "seconds" by default.
        window_ms: a sample length of the stat's own in place of the config's.
    Raises: ValueError, TypeError.
    Source: ``Rate.java``.
    """

    def __cinit__(self, stat=None, unit="seconds", *, window_ms=None):
        rate_of(self, FORM_RATE, stat, unit, window_ms)


@cython.final
cdef class SimpleRate(StatSpec):
    """Sum per second over the time since the oldest sample began, at least one window.

    Source: ``SimpleRate.java`` (replication quotas).
    """

    def __cinit__(self):
        rate_of(self, FORM_SIMPLE_RATE, None, "seconds", None)


@cython.final
cdef class Meter(StatSpec):
    """Two metrics of one stream of values: their rate, and their total (a count if the rate is one of counts).

    Args:
        rate_name, total_name: names of the two metrics.
        stat: WindowedSum (default) or WindowedCount.
        unit: of the rate.
    Source: ``Meter.java``.
    """

    def __cinit__(self, rate_name, total_name, stat=None, unit="seconds"):
        rate_of(self, FORM_METER, stat, unit, None)
        if rate_name == total_name:
            raise ValueError(f"a meter's two metrics need two names, got {rate_name!r} twice")
        self.parts = ((total_name, <int>PART_TOTAL, 0.0), (rate_name, <int>PART_RATE, 0.0))


@cython.final
cdef class Percentiles(StatSpec):
    """Percentiles of the window by a histogram whose bins are float counts.

    A value outside of the range is counted at its edge. A percentile is the lower edge of the bin in which it lies; NaN
    without data; infinity for 100 and above.
    Args:
        size_bytes: of the counts of one sample, four bytes a bin, at least two bins.
        largest: upper end of the range.
        percentiles: name of the metric to percentile, 0 to 100.
        smallest: lower end of the range.
        bucketing: "constant" widths, or "linear": widths that grow from 0 (``smallest`` must be 0).
    Raises: ValueError.
    Source: ``Percentiles.java``, ``Histogram.java``.
    """

    def __cinit__(self, size_bytes, double largest, percentiles, *, double smallest=0.0, bucketing="constant"):
        if not 8 <= index(size_bytes) <= LARGEST_BINS * 4:
            raise ValueError(f"size_bytes must be 8 to {LARGEST_BINS * 4}, got {size_bytes}")
        bins = size_bytes // 4
        if bucketing not in ("constant", "linear"):
            raise ValueError(f"bucketing must be constant or linear, got {bucketing!r}")
        if not -1e300 <= smallest < largest <= 1e300:
            raise ValueError(f"the range must be finite and not empty, got {smallest} to {largest}")
        if bucketing == "linear" and smallest != 0.0:
            raise ValueError(f"linear bucketing begins at 0, not at {smallest}")
        percentiles = dict(percentiles)
        if not percentiles:
            raise ValueError("percentiles must name at least one")
        for name, percentile in percentiles.items():
            if not 0.0 <= percentile <= 100.0:
                raise ValueError(f"percentile {name!r} must be 0 to 100, got {percentile}")
        sampled(self, SAMPLE_HISTOGRAM)
        self.shape.form = FORM_PERCENTILES
        self.shape.scheme.bins = bins
        self.shape.scheme.smallest = smallest
        self.shape.scheme.largest = largest
        self.shape.scheme.is_linear = bucketing == "linear"
        if self.shape.scheme.is_linear:
            self.shape.scheme.scale = largest / (bins * (bins - 1.0) / 2.0)
        else:
            self.shape.scheme.scale = (largest - smallest) / bins
        self.parts = tuple((name, <int>PART_QUANTILE, percentile / 100.0) for name, percentile in percentiles.items())


@cython.final
cdef class TokenBucket(StatSpec):
    """Tokens that come at the quota's rate, up to samples x window x bound; every record takes its value of them.

    Its metric measures the tokens left, which may go below zero without limit; the quota is violated while they are
    below zero. Without a quota it records nothing and measures the largest int64.
    Args: unit: of the bound, "seconds" by default.
    Source: KIP-599, ``TokenBucket.java``.
    """

    def __cinit__(self, unit="seconds"):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_TOKEN_BUCKET
        self.shape.unit = unit_number(unit)


@cython.final
cdef class Value(StatSpec):
    """The last value recorded; 0 at first."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_VALUE


@cython.final
cdef class CumulativeSum(StatSpec):
    """Sum of everything ever recorded."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_CUMULATIVE_SUM


@cython.final
cdef class CumulativeCount(StatSpec):
    """Number of everything ever recorded."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_CUMULATIVE_COUNT
