"""Statistics of a sensor: a sampled one, a rate over one, a meter, a running total, a last value or a token bucket.

A Stat is owned by its sensor and guarded by that sensor's lock; a MetricPart is the part of it that a metric shows. It
contains its SampleWindow, the ring of samples behind sums, averages, extremes, rates and percentiles, whose memory is
one block; a block that became too small is kept in ``block.older`` until the window is freed, so that a view of it
never dangles.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.metrics.histogram cimport HistogramScheme
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.token_bucket cimport Bucket

# ---------------------------------------------------- samples

cdef enum SampleKind:
    SAMPLE_SUM = 0
    SAMPLE_COUNT = 1
    SAMPLE_AVG = 2
    SAMPLE_MAX = 3
    SAMPLE_MIN = 4
    SAMPLE_HISTOGRAM = 5

cdef struct Sample:
    double value
    int64_t event_count
    int64_t start_ms
    int64_t last_event_ms

cdef struct SampleBlock:        # header of the memory: samples after it, histogram counts after those
    SampleBlock *older
    int32_t capacity

cdef enum OtherSamples:
    OTHERS_UNKNOWN = 0
    OTHERS_WHOLE = 1            # whole numbers, whose sum is exact in any order
    OTHERS_FRACTIONAL = 2

cdef struct SampleWindow:
    SampleBlock *block          # owned, with all older ones
    Sample *ring
    float *counts               # histogram: capacity x bins, else NULL
    double initial
    int64_t own_window_ms       # in place of the config's, or 0
    int32_t kind
    int32_t length              # existing samples, in the order of creation
    int32_t current
    int32_t others              # OtherSamples; OTHERS_UNKNOWN after any change of the samples but the current one
    # of all samples but the current one:
    double others_total
    int64_t others_start_ms     # the earliest one
    int64_t others_event_ms     # the earliest last event
    HistogramScheme scheme

cdef bint window_init(SampleWindow *window, int32_t kind, const StatConfig *config, int64_t own_window_ms,
                      const HistogramScheme *scheme) noexcept nogil     # false: out of memory
cdef void window_destroy(SampleWindow *window) noexcept nogil
# Reserve memory for the ring of this config (samples + 1 slots). False: out of memory, the window is unchanged.
cdef bint window_reserve(SampleWindow *window, const StatConfig *config) noexcept nogil
cdef void window_record(SampleWindow *window, const StatConfig *config, double value, int64_t now_ms) noexcept nogil
cdef double window_measure(SampleWindow *window, const StatConfig *config, int64_t now_ms) noexcept nogil
cdef double window_quantile(SampleWindow *window, const StatConfig *config, double quantile,
                            int64_t now_ms) noexcept nogil
# Return the stat divided by the elapsed window in the unit. is_simple: without the padding to samples - 1 windows.
cdef double window_rate(SampleWindow *window, const StatConfig *config, int32_t unit, bint is_simple,
                        int64_t now_ms) noexcept nogil
cdef int64_t window_size_ms(SampleWindow *window, const StatConfig *config, bint is_simple,
                            int64_t now_ms) noexcept nogil

# --------------------------------------------------- statistics

cdef enum StatForm:
    FORM_SAMPLED = 0
    FORM_RATE = 1
    FORM_SIMPLE_RATE = 2
    FORM_METER = 3
    FORM_PERCENTILES = 4
    FORM_TOKEN_BUCKET = 5
    FORM_VALUE = 6
    FORM_CUMULATIVE_SUM = 7
    FORM_CUMULATIVE_COUNT = 8

cdef enum MetricPart:
    PART_WHOLE = 0
    PART_TOTAL = 1              # of a meter
    PART_RATE = 2               # of a meter
    PART_QUANTILE = 3           # of percentiles

cdef struct StatShape:          # parameters of a stat; plain values
    int32_t form
    int32_t sample_kind
    int32_t unit
    int64_t own_window_ms
    HistogramScheme scheme

cdef struct Stat:
    int32_t form
    int32_t unit
    StatConfig *config          # config of the next record: its metric's, or fixed_config
    StatConfig fixed_config     # compound stats keep the one they were added with
    SampleWindow window
    Bucket bucket
    double total                # sums, counts, the last value

cdef Stat *stat_new(const StatShape *shape, const StatConfig *config) noexcept nogil      # NULL: out of memory
cdef void stat_free(Stat *stat) noexcept nogil
cdef bint stat_is_sampled(const Stat *stat) noexcept nogil
cdef void stat_record(Stat *stat, double value, int64_t now_ms) noexcept nogil
cdef double stat_measure(Stat *stat, int32_t part, double quantile, const StatConfig *config,
                         int64_t now_ms) noexcept nogil
cdef bint stat_part_is_rate(const Stat *stat, int32_t part) noexcept nogil

cdef class StatSpec:
    cdef StatShape shape
    cdef readonly tuple parts   # (name, part, quantile) of each metric; () for a simple stat
