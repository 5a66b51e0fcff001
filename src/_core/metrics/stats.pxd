"""One statistic of a sensor: a sampled one, a rate over one, a meter, a running total, a last value or a token bucket.

A Stat is owned by its sensor and guarded by that sensor's lock. What a metric shows of it is a MetricPart.
"""
from libc.stdint cimport int32_t, int64_t
from kbroker._core.metrics.metric_config cimport StatConfig
from kbroker._core.metrics.sample_window cimport HistogramScheme, SampleWindow
from kbroker._core.metrics.token_bucket cimport Bucket

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

cdef struct StatShape:          # what a stat is made from; plain values
    int32_t form
    int32_t sample_kind
    int32_t unit
    int64_t own_window_ms
    HistogramScheme scheme

cdef struct Stat:
    int32_t form
    int32_t unit
    StatConfig *config          # what a record reads: its metric's, or fixed_config
    StatConfig fixed_config     # compound stats keep the one they were added with
    SampleWindow window
    Bucket bucket
    double total                # sums, counts, the last value

cdef Stat *stat_new(const StatShape *shape, const StatConfig *config) noexcept nogil      # NULL: memory is out
cdef void stat_free(Stat *stat) noexcept nogil
cdef bint stat_is_sampled(const Stat *stat) noexcept nogil
cdef void stat_record(Stat *stat, double value, int64_t now_ms) noexcept nogil
cdef double stat_measure(Stat *stat, int32_t part, double quantile, const StatConfig *config,
                         int64_t now_ms) noexcept nogil
cdef bint stat_part_is_rate(const Stat *stat, int32_t part) noexcept nogil

cdef class StatSpec:
    cdef StatShape shape
    cdef readonly tuple parts   # of (name, part, quantile); () for a simple stat
