"""Sampled statistics: a ring of samples, each a value with its count, start and last event.

The ring has one slot more than the config has samples: the extra one holds a sample that began before the monitored
window and still overlaps it. Samples begin with the first record after the one before was complete; they are aligned to
nothing. Source: ``SampledStat``, ``Rate``, ``SimpleRate``, ``Percentiles``, ``Histogram``; every operation is in
their order, so that results agree to the last bit (the build forbids contracted multiply-adds for the same reason).
"""
from libc.math cimport INFINITY, NAN, sqrt
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kbroker._core.metrics.metric_config cimport StatConfig, convert_ms

cdef extern from "<cfloat>" nogil:
    double DBL_MAX

cdef extern from *:
    """
    // Zeroes are ordered (-0.0 below 0.0) and NaN wins, as Math.max and Math.min have it.
    static inline double kb_larger(double a, double b) noexcept {
        if (a != a) return a;
        if (a == 0.0 && b == 0.0) return a + b;
        return a >= b ? a : b;
    }
    static inline double kb_smaller(double a, double b) noexcept {
        if (a != a) return a;
        if (a == 0.0 && b == 0.0) return -(-a - b);
        return a <= b ? a : b;
    }
    """
    double larger "kb_larger"(double a, double b) noexcept nogil
    double smaller "kb_smaller"(double a, double b) noexcept nogil


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


cdef inline void sample_reset(SampleWindow *window, int32_t index, int64_t now_ms) noexcept nogil:
    cdef Sample *sample = &window.ring[index]
    sample.value = window.initial
    sample.event_count = 0
    sample.start_ms = sample.last_event_ms = now_ms
    if window.counts is not NULL:
        memset(window.counts + <size_t>index * window.scheme.bins, 0, window.scheme.bins * sizeof(float))


cdef inline int32_t bin_of(const HistogramScheme *scheme, double value) noexcept nogil:
    """Bin of a value, which is pinned to the range first; NaN goes to the first bin."""
    cdef double place
    if value > scheme.largest:
        value = scheme.largest
    elif value < scheme.smallest:
        value = scheme.smallest
    if scheme.is_linear:
        place = -0.5 + 0.5 * sqrt(1.0 + 8.0 * value / scheme.scale)
    elif value <= scheme.smallest:
        return 0
    elif value >= scheme.largest:
        return scheme.bins - 1
    else:
        place = (value - scheme.smallest) / scheme.scale
    if place != place:
        return 0
    return scheme.bins - 1 if place >= scheme.bins - 1 else <int32_t>place


cdef inline double value_of_bin(const HistogramScheme *scheme, int32_t index) noexcept nogil:
    if scheme.is_linear:
        return scheme.scale * (<double>index * (<double>index + 1.0)) / 2.0
    return scheme.smallest + <double>index * scheme.scale


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
        sample.value = smaller(sample.value, value)
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
    """All samples as one value, in the order in which they lie."""
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
                total = smaller(total, window.ring[i].value)
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
    """The window by which a rate divides, of the time since its oldest sample began."""
    cdef int64_t size_ms
    cdef int32_t full, fewest
    if is_simple:
        return elapsed if elapsed > config.window_ms else config.window_ms
    # At least samples - 1 whole windows are taken to have passed, and what has passed of the present one.
    size_ms = sample_ms(window, config)
    fewest = config.samples - 1
    if 0 <= elapsed < size_ms:          # spares the division
        full = 0
    elif elapsed >= 0 and elapsed - size_ms * fewest >= 0 and elapsed < INT32_MAX:
        full = fewest                   # likewise: enough whole windows, however many
    else:
        full = <int32_t>(elapsed // size_ms)
    if full < fewest:                   # wraps as Java's integers do, should the clock run backwards by ages
        elapsed = <int64_t>(<uint64_t>elapsed
                            + <uint64_t><int64_t><int32_t>(<uint32_t>fewest - <uint32_t>full) * <uint64_t>size_ms)
    return elapsed if elapsed > 1 else 1


cdef inline int64_t elapsed_ms(SampleWindow *window, int64_t now_ms) noexcept nogil:
    """Return the span of the samples after a purge; make the first sample where there is none."""
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


cdef double sum_rate(SampleWindow *window, const StatConfig *config, int32_t unit, bint is_simple,
                     int64_t now_ms) noexcept nogil:
    """window_rate of a sum or count, the three walks over the samples in one: this is what every quota check costs."""
    cdef int64_t expire_ms = config.samples * sample_ms(window, config)
    cdef int64_t oldest = now_ms
    cdef double total = 0.0
    cdef Sample *sample = window.ring
    cdef const Sample *end = sample + window.length
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
        total += sample.value
        if sample.start_ms < oldest:
            oldest = sample.start_ms
        sample += 1
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
