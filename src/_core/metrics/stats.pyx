"""The statistics that a sensor can keep, as native structs, and the Python objects that describe them.

The ring of samples has one slot more than the config has samples: the extra one holds a sample that began before the
monitored window and still overlaps it. Samples begin with the first record after the one before was complete; they are
not aligned. Source: ``SampledStat``, ``Rate``, ``SimpleRate``, ``Percentiles``, ``Histogram``; every operation is in
their order, so that results agree to the last bit (the build forbids contracted multiply-adds for the same reason).
"""
cimport cython
from operator import index

from libc.math cimport INFINITY, NAN
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kbroker._core.metrics.histogram cimport HistogramScheme, bin_of, value_of_bin
from kbroker._core.metrics.metric_config cimport UNIT_SECONDS, StatConfig, convert_ms, unit_number
from kbroker._core.metrics.token_bucket cimport bucket_measure, bucket_record, fewer


# ---------------------------------------------------- samples

cdef extern from "<cfloat>" nogil:
    double DBL_MAX

cdef extern from *:
    """
    // As Math.max: -0.0 is below 0.0, and the result with a NaN is NaN.
    static inline double kb_larger(double a, double b) noexcept {
        if (a != a) return a;
        if (a == 0.0 && b == 0.0) return a + b;
        return a >= b ? a : b;
    }
    """
    double larger "kb_larger"(double a, double b) noexcept nogil


cdef inline int64_t sample_ms(const SampleWindow *window, const StatConfig *config) noexcept nogil:
    return window.own_window_ms if window.own_window_ms > 0 else config.window_ms


cdef SampleBlock *new_block(int32_t capacity, int32_t bins) noexcept nogil:
    cdef size_t size_bytes = sizeof(SampleBlock) + <size_t>capacity * (sizeof(Sample) + <size_t>bins * sizeof(float))
    cdef SampleBlock *block = <SampleBlock *>calloc(1, size_bytes)
    if block is not NULL:
        block.capacity = capacity
    return block


cdef bint window_init(SampleWindow *window, int32_t kind, const StatConfig *config, int64_t own_window_ms,
                      const HistogramScheme *scheme) noexcept nogil:
    memset(window, 0, sizeof(SampleWindow))
    window.kind = kind
    window.own_window_ms = own_window_ms
    if kind == SAMPLE_MAX:
        window.initial = -INFINITY
    elif kind == SAMPLE_MIN:
        window.initial = DBL_MAX
    if scheme is not NULL:
        window.scheme = scheme[0]
    return window_reserve(window, config)


cdef void window_destroy(SampleWindow *window) noexcept nogil:
    cdef SampleBlock *block = window.block
    cdef SampleBlock *older
    while block is not NULL:
        older = block.older
        free(block)
        block = older
    window.block = NULL


cdef bint window_reserve(SampleWindow *window, const StatConfig *config) noexcept nogil:
    cdef int32_t capacity = config.samples + 1
    cdef int32_t bins = window.scheme.bins
    cdef SampleBlock *block
    cdef Sample *ring
    cdef float *counts
    if window.block is not NULL and window.block.capacity >= capacity:
        return True
    block = new_block(capacity, bins)
    if block is NULL:
        return False
    ring = <Sample *>(<char *>block + sizeof(SampleBlock))
    counts = <float *>(ring + capacity) if bins else NULL
    if window.length > 0:
        memcpy(ring, window.ring, window.length * sizeof(Sample))
        if bins:
            memcpy(counts, window.counts, <size_t>window.length * bins * sizeof(float))
    block.older = window.block
    window.block, window.ring, window.counts = block, ring, counts
    return True


cdef inline void sample_reset(SampleWindow *window, int32_t number, int64_t now_ms) noexcept nogil:
    cdef Sample *sample = &window.ring[number]
    window.others = OTHERS_UNKNOWN
    sample.value = window.initial
    sample.event_count = 0
    sample.start_ms = sample.last_event_ms = now_ms
    if window.counts is not NULL:
        memset(window.counts + <size_t>number * window.scheme.bins, 0, window.scheme.bins * sizeof(float))


cdef void window_record(SampleWindow *window, const StatConfig *config, double value, int64_t now_ms) noexcept nogil:
    cdef Sample *sample
    cdef float *bin
    if window.length == 0:
        window.length = 1
        sample_reset(window, 0, now_ms)
    sample = &window.ring[window.current]
    if now_ms - sample.start_ms >= sample_ms(window, config) or sample.event_count >= config.event_window:
        window.current += 1
        if window.current >= config.samples + 1:        # the config may have fewer samples than the ring by now
            window.current %= config.samples + 1
        if window.current >= window.length:
            window.length += 1                          # no more than the capacity: current <= samples
        sample_reset(window, window.current, now_ms)
        sample = &window.ring[window.current]
    if window.kind == SAMPLE_SUM or window.kind == SAMPLE_AVG:
        sample.value += value
    elif window.kind == SAMPLE_COUNT:
        sample.value += 1.0
    elif window.kind == SAMPLE_MAX:
        sample.value = larger(sample.value, value)
    elif window.kind == SAMPLE_MIN:
        sample.value = fewer(sample.value, value)
    else:
        bin = window.counts + <size_t>window.current * window.scheme.bins + bin_of(&window.scheme, value)
        bin[0] += 1.0
    sample.event_count += 1
    sample.last_event_ms = now_ms


cdef inline void purge(SampleWindow *window, const StatConfig *config, int64_t now_ms) noexcept nogil:
    """Empty the samples whose last event has left the monitored window; they stay where they are."""
    cdef int64_t expire_ms = config.samples * sample_ms(window, config)
    cdef int32_t i
    for i in range(window.length):
        if now_ms - window.ring[i].last_event_ms >= expire_ms:
            sample_reset(window, i, now_ms)


cdef inline double combine(const SampleWindow *window) noexcept nogil:
    """Return one value of all samples, in the order of the ring; without events NaN, for a sum or a count 0."""
    cdef double total = 0.0
    cdef int64_t events = 0
    cdef int32_t i
    if window.kind == SAMPLE_SUM or window.kind == SAMPLE_COUNT:
        for i in range(window.length):
            total += window.ring[i].value
        return total
    if window.kind == SAMPLE_MAX or window.kind == SAMPLE_MIN:
        total = window.initial
        for i in range(window.length):
            events += window.ring[i].event_count
            if window.kind == SAMPLE_MAX:
                total = larger(total, window.ring[i].value)
            else:
                total = fewer(total, window.ring[i].value)
        return total if events else NAN
    for i in range(window.length):
        total += window.ring[i].value
        events += window.ring[i].event_count
    return total / <double>events if events else NAN


cdef double window_measure(SampleWindow *window, const StatConfig *config, int64_t now_ms) noexcept nogil:
    if window.kind == SAMPLE_HISTOGRAM:
        return window_quantile(window, config, 0.5, now_ms)
    purge(window, config, now_ms)
    return combine(window)


cdef double window_quantile(SampleWindow *window, const StatConfig *config, double quantile,
                            int64_t now_ms) noexcept nogil:
    cdef float count = 0.0
    cdef float total = 0.0
    cdef float wanted = <float>quantile
    cdef int32_t bin, i
    purge(window, config, now_ms)
    for i in range(window.length):
        count += <float>window.ring[i].event_count
    if count == 0.0:
        return NAN
    for bin in range(window.scheme.bins):
        for i in range(window.length):
            total += window.counts[<size_t>i * window.scheme.bins + bin]
            if total / count > wanted:
                return value_of_bin(&window.scheme, bin)
    return INFINITY


cdef inline int64_t padded_ms(const SampleWindow *window, const StatConfig *config, bint is_simple,
                              int64_t elapsed) noexcept nogil:
    """Return the window by which a rate divides, from the time since its oldest sample began."""
    cdef int64_t size_ms
    cdef int32_t full, fewest
    if is_simple:
        return elapsed if elapsed > config.window_ms else config.window_ms
    # Count at least samples - 1 whole windows as passed, and the elapsed part of the current one.
    size_ms = sample_ms(window, config)
    fewest = config.samples - 1
    if 0 <= elapsed < size_ms:          # spares the division
        full = 0
    elif elapsed >= 0 and elapsed - size_ms * fewest >= 0 and elapsed < INT32_MAX:
        full = fewest                   # spares it too: any sufficient number of whole windows has this effect
    else:
        full = <int32_t>(elapsed // size_ms)
    if full < fewest:                   # wraps as Java's integers do, if the clock was set far back
        elapsed = <int64_t>(<uint64_t>elapsed
                            + <uint64_t><int64_t><int32_t>(<uint32_t>fewest - <uint32_t>full) * <uint64_t>size_ms)
    return elapsed if elapsed > 1 else 1


cdef inline int64_t elapsed_ms(SampleWindow *window, int64_t now_ms) noexcept nogil:
    """Return the span of the samples after a purge; make the first sample if none exists."""
    cdef int64_t oldest
    cdef int32_t i
    if window.length == 0:
        window.length = 1
        sample_reset(window, 0, now_ms)
    oldest = window.ring[0].start_ms
    for i in range(1, window.length):
        if window.ring[i].start_ms < oldest:
            oldest = window.ring[i].start_ms
    return now_ms - oldest


cdef int32_t MOST_EXACT = 4096


cdef inline bint is_exact(double value) noexcept nogil:
    """Return whether sums of MOST_EXACT such numbers are exact, and so the same in any order."""
    return -1099511627776.0 < value < 1099511627776.0 and <double><int64_t>value == value


cdef void sum_others(SampleWindow *window) noexcept nogil:
    cdef Sample *sample
    cdef int32_t i
    window.others = OTHERS_WHOLE if window.length <= MOST_EXACT else OTHERS_FRACTIONAL
    window.others_total = 0.0
    window.others_start_ms = window.others_event_ms = INT64_MAX >> 1    # if none exist; now minus it does not overflow
    for i in range(window.length):
        if i == window.current:
            continue
        sample = &window.ring[i]
        if not is_exact(sample.value):
            window.others = OTHERS_FRACTIONAL
        window.others_total += sample.value
        window.others_start_ms = min(window.others_start_ms, sample.start_ms)
        window.others_event_ms = min(window.others_event_ms, sample.last_event_ms)


cdef double sum_rate(SampleWindow *window, const StatConfig *config, int32_t unit, bint is_simple,
                     int64_t now_ms) noexcept nogil:
    """Return window_rate of a sum or count, in one pass over the samples instead of three, for the checks of quotas.

    For whole numbers, such as bytes, only the current sample is read: the sum of the others is kept.
    """
    cdef int64_t expire_ms = config.samples * sample_ms(window, config)
    cdef int64_t oldest = now_ms
    cdef double total = 0.0
    cdef Sample *sample = &window.ring[window.current]
    cdef const Sample *end
    if (window.others == OTHERS_WHOLE and is_exact(sample.value) and now_ms - sample.last_event_ms < expire_ms
            and now_ms - window.others_event_ms < expire_ms):
        total = window.others_total + sample.value
        oldest = min(window.others_start_ms, sample.start_ms)
        return total / convert_ms(padded_ms(window, config, is_simple, now_ms - oldest), unit)
    sample = window.ring
    end = sample + window.length
    if sample < end:
        oldest = INT64_MAX
    else:
        window.length = 1
        sample_reset(window, 0, now_ms)
    while sample < end:
        if now_ms - sample.last_event_ms >= expire_ms:
            sample.value = 0.0
            sample.event_count = 0
            sample.start_ms = sample.last_event_ms = now_ms
            window.others = OTHERS_UNKNOWN
        total += sample.value
        if sample.start_ms < oldest:
            oldest = sample.start_ms
        sample += 1
    if window.others == OTHERS_UNKNOWN:
        sum_others(window)
    return total / convert_ms(padded_ms(window, config, is_simple, now_ms - oldest), unit)


cdef double window_rate(SampleWindow *window, const StatConfig *config, int32_t unit, bint is_simple,
                        int64_t now_ms) noexcept nogil:
    cdef double value
    if window.kind == SAMPLE_SUM or window.kind == SAMPLE_COUNT:
        return sum_rate(window, config, unit, is_simple, now_ms)
    value = window_measure(window, config, now_ms)      # purges; a second purge would find nothing
    return value / convert_ms(padded_ms(window, config, is_simple, elapsed_ms(window, now_ms)), unit)


cdef int64_t window_size_ms(SampleWindow *window, const StatConfig *config, bint is_simple,
                            int64_t now_ms) noexcept nogil:
    purge(window, config, now_ms)
    return padded_ms(window, config, is_simple, elapsed_ms(window, now_ms))


# --------------------------------------------------- statistics

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
    """Description from which ``Sensor.add`` makes a statistic. It has no state: one may be added to many sensors.

    Created by the classes below. Threads: any; immutable.
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
        stat: the statistic that is divided by the time, WindowedSum by default.
        unit: "seconds" by default.
        window_ms: sample length of this stat, instead of the length in the config.
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
        unit: time unit of the rate.
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

    A value outside the range is counted at its edge. A percentile is the lower edge of the bin in which it lies; NaN
    without data; infinity for 100 and above.
    Args:
        size_bytes: size of the counts of one sample, four bytes a bin, at least two bins.
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
    """Tokens that accrue at the quota's rate, up to samples x window x bound; every record takes its value of them.

    Its metric measures the tokens left, which may go below zero without limit; the quota is violated while they are
    below zero. Without a quota it records nothing and measures the largest int64.
    Args: unit: time unit of the bound, "seconds" by default.
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
    """Sum of all recorded values."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_CUMULATIVE_SUM


@cython.final
cdef class CumulativeCount(StatSpec):
    """Number of all recorded values."""

    def __cinit__(self):
        sampled(self, SAMPLE_SUM)
        self.shape.form = FORM_CUMULATIVE_COUNT
